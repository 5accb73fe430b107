"""(early loss, exact loss) pairs of candidate batches: from arrays, or from a run's files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sifting.theory._checks import Floats, floats, nonnegative

AUDITS = "audits.jsonl"  # the file of a run folder that holds the pairs


@dataclass(frozen=True)
class Pairs:
    """Candidate batches, each with its proxies' losses and its exact losses in the same order.

    >>> Pairs.of(early=[0.9, 0.2, 0.4], exact=[1.1, 0.1, 0.5])
    Pairs(1 batch, 3 pairs)
    >>> Pairs.of(early=np.ones((5, 8)), exact=np.ones((5, 8)))
    Pairs(5 batches, 40 pairs)

    Args:
        early: per batch, what the proxy said. Any finite score; the log-noise needs them above 0.
        exact: per batch, the exact losses, finite and at least 0.
        steps: at which each batch was logged; 0, 1, … where not given.
    """

    early: tuple[Floats, ...]
    exact: tuple[Floats, ...]
    steps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.early) != len(self.exact):
            raise ValueError(
                f"early has {len(self.early)} batches and exact {len(self.exact)}, but every "
                "batch needs both"
            )
        if not self.early:
            raise ValueError("there are no batches, but estimation needs one or more")
        early, exact = [], []
        for i, (e, f) in enumerate(zip(self.early, self.exact, strict=True)):
            e = floats(f"early[{i}]", e, np.isfinite, "finite losses", "leave the batch out")
            f = nonnegative(f"exact[{i}]", f, "the theory is about losses of at least 0")
            if e.ndim != 1 or e.shape != f.shape:
                raise ValueError(
                    f"batch {i} has {e.shape} early and {f.shape} exact losses, but every "
                    "candidate needs one of each"
                )
            early.append(e)
            exact.append(f)
        object.__setattr__(self, "early", tuple(early))
        object.__setattr__(self, "exact", tuple(exact))
        if not self.steps:
            object.__setattr__(self, "steps", tuple(range(len(early))))

    @classmethod
    def of(
        cls, early: ArrayLike | Sequence[ArrayLike], exact: ArrayLike | Sequence[ArrayLike]
    ) -> Pairs:
        """From two vectors (one batch), two matrices (a batch in each row) or two lists of vectors.

        Args:
            early: what the proxy said.
            exact: the exact losses, in the same order.
        """
        return cls(_batches("early", early), _batches("exact", exact))

    def __repr__(self) -> str:
        n, total = len(self.early), sum(e.size for e in self.early)
        return f"Pairs({n} batch{'' if n == 1 else 'es'}, {total} pairs)"


def read_pairs(path: str | Path) -> Pairs:
    """The pairs that a run logged: of its folder, or of the file `audits.jsonl` in it.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> line = '{"step": 10, "early": [0.9, 0.2], "exact": [1.1, 0.1]}'
    >>> _ = (folder / "audits.jsonl").write_text(line + "\\n")
    >>> read_pairs(folder)
    Pairs(1 batch, 2 pairs)

    Each line is one candidate batch. A last line without its end, as a run that was stopped leaves
    it, is skipped with a warning; any other damage raises, naming the file and the line.

    Args:
        path: the run folder, or the file.
    """
    path = Path(path)
    file = path / AUDITS if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} does not exist: it is written by runs that audit their exit"
        )
    lines = file.read_bytes().split(b"\n")
    last = max((i for i, line in enumerate(lines) if line.strip()), default=-1)
    early: list[Any] = []
    exact: list[Any] = []
    steps: list[int] = []
    for i, line in enumerate(lines[: last + 1]):
        if not line.strip():
            continue
        where = f"{file}, line {i + 1}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # bad JSON, or bytes that are not UTF-8
            if i == last:
                warnings.warn(f"{where} is cut off and was skipped", stacklevel=2)
                continue
            raise ValueError(f"{where} is damaged ({error}): restore or delete it") from None
        if not isinstance(record, dict) or not {"early", "exact"} <= record.keys():
            raise ValueError(f"{where} must be an object with `early` and `exact`: {line[:80]!r}")
        try:
            one = Pairs.of(record["early"], record["exact"])
        except (ValueError, TypeError) as error:
            raise ValueError(f"{where}: {error}") from None
        if len(one.early) != 1:
            raise ValueError(f"{where}: `early` and `exact` must be flat lists of numbers")
        early += one.early
        exact += one.exact
        step = record.get("step")
        steps.append(step if isinstance(step, int) else i)
    if not early:
        raise ValueError(f"{file} holds no complete line, but estimation needs one or more")
    return Pairs(tuple(early), tuple(exact), tuple(steps))


def _batches(name: str, value: ArrayLike | Sequence[ArrayLike]) -> tuple[Floats, ...]:
    if isinstance(value, (list, tuple)) and value and np.ndim(value[0]) == 1:
        return tuple(np.asarray(row) for row in value)
    array = floats(name, value, np.isfinite, "finite losses", "leave the batch out")  # type: ignore[arg-type]
    if array.ndim not in (1, 2) or 0 in array.shape:
        raise ValueError(
            f"{name} has shape {array.shape}, but it must be a vector (one batch) or a matrix "
            "(a batch in each row), and not empty"
        )
    return tuple(array[None] if array.ndim == 1 else array)
