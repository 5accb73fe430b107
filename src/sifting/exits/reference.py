"""The part of a loss that cannot be learned away: that of a reference, which is taken off the exit's.

A sample with a wrong label, or text that nobody could predict, has a high loss forever. Its loss
beside that of a reference tells it apart: what a reference finds hard as well is hard, and not
useful (RHO-LOSS, Mindermann et al., 2022; JEST, Evans et al., 2024; Rho-1, Lin et al., 2024).

Shapes: B samples of a batch, N samples in a table.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sifting import checksums
from sifting.data.packing import unpack
from sifting.data.stream import plain_indices
from sifting.exits.base import Exit, ids_in
from sifting.model.call import Call
from sifting.model.parts import IGNORE, Score
from sifting.model.plan import Plan
from sifting.selection.choice import Rule
from sifting.selection.tokens import Tokens, described

REDUCIBLE = "reducible"
FORMAT = 1
SHOWN = 5  # IDs that a message names
MANY = 2**31  # a larger number is no index, but a hash or a mistake


class Reference(ABC):
    """Gives the loss that a sample would have anyway, which `score="reducible"` takes off.

    `ReferenceTable` is a short example.
    """

    by_id = False  # whether IDs are all it needs

    def expect(self, samples: int | None) -> None:  # noqa: B027
        """Take note of how many samples the data set has, where their IDs are its indices."""

    def begin(self, call: Call, batch: Any) -> None:  # noqa: B027
        """Take note of the first batch that is drawn; raise where this could be asked nothing of such ones."""

    def weighed_by(self, tokens: Tokens) -> None:  # noqa: B027
        """Take note of how the sifter makes a document's score of its tokens'; raise where it cannot be held
        against this.
        """

    @abstractmethod
    def losses(self, plan: Plan, model: nn.Module, batch: Any, ids: Sequence[Any] | None) -> Tensor:
        """One loss per sample of a batch on the model's device; called without gradients.

        Args:
            ids: of its samples, where the sifter drew them itself.
        """

    def check(self, call: Call, batch: Any, ids: Sequence[Any] | None) -> None:  # noqa: B027
        """Raise where a batch, as the loader gave it, is of other data than this is of."""

    def of_ids(self, ids: Sequence[Any]) -> Tensor:
        """One loss for each ID, where `by_id` is set."""
        raise TypeError(f"{type(self).__name__} does not know samples by their IDs")

    def state_dict(self) -> dict[str, Any]:
        """What it has learned, as plain tensors and numbers."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        if state:
            raise ValueError(
                f"the state holds a reference that has learned ({', '.join(state)}), and this sifter's is "
                f"{self!r}: make the sifter with the reference the state was saved with"
            )


class ReferenceTable(Reference):
    """Losses of a model that is not trained any more, one for each sample ID.

    >>> table = ReferenceTable(torch.tensor([0.5, 2.0]))
    >>> table.of_ids([1, 0, 1]).tolist()
    [2.0, 0.5, 2.0]
    >>> table.of_ids([7])
    Traceback (most recent call last):
    ValueError: the reference has no loss of sample 7 (it has 2, of the IDs 0 to 1): ...

    `sifting.reference.reference_losses` and `sift reference` make one. A sample that it does not have is an
    error, not a guess.

    Args:
        losses_N: one loss for each sample.
        ids: of the samples, as strings; by default they are numbered.
        marks_N: a checksum of each sample's labels, which shows whether data is other data; None where labels
            differ from one reading to the next.
        about: what model they are of, for people.
        tokens: how they were made of a document's tokens, as `selection.tokens.described` says it; None where
            that is not known.
    """

    by_id = True

    def __init__(
        self,
        losses_N: Tensor,
        *,
        ids: Sequence[str] | None = None,
        marks_N: Tensor | None = None,
        about: str = "",
        tokens: str | None = None,
    ) -> None:
        self.losses_N, self.marks_N, self.about = losses_N.float().cpu(), marks_N, about
        self.tokens = tokens
        self.ids = None if ids is None else list(ids)
        self._places = None if ids is None else {one: place for place, one in enumerate(ids)}
        if self.losses_N.ndim != 1 or not len(self.losses_N):
            raise ValueError(f"losses of shape {tuple(losses_N.shape)}: give one for each sample")
        if self.ids is not None and len(self._places or ()) != len(self.losses_N):
            raise ValueError(
                f"{len(self.ids)} IDs, {len(self._places or ())} of them different, for {len(losses_N)} "
                "losses: give one of its own to each"
            )
        self._checked_N = torch.zeros(len(self.losses_N), dtype=torch.bool)
        self._by_index = False  # whether samples are drawn by their index

    def __len__(self) -> int:
        return len(self.losses_N)

    def __repr__(self) -> str:
        mark = zlib.crc32(self.losses_N.numpy().tobytes())
        return f"ReferenceTable({len(self)} samples, {mark:08x})"

    def expect(self, samples: int | None) -> None:
        self._by_index = True
        if samples is not None and self.ids is None and samples != len(self):
            raise ValueError(
                f"the reference is of {len(self)} samples, and the data set has {samples}: it is of other data "
                "or packing. Make it again (sift reference), from the data set that is trained, which must "
                "not pack several documents into a row (TRL: packing=False, or packing_strategy='wrapped')"
            )

    def begin(self, call: Call, batch: Any) -> None:
        self._checked_N.zero_()  # it may have been used with other data before
        if not self._by_index:
            ids_in(call, batch, "a reference table")

    def weighed_by(self, tokens: Tokens) -> None:
        if self.tokens not in (None, described(tokens)):
            raise ValueError(
                f"the reference weighs a document's tokens by {self.tokens}, and this sifter by "
                f"{described(tokens)}, which cannot be held against each other: make it again with the same "
                f"tokens= (sift reference --tokens {tokens.name}, or reference_losses(…, tokens=…))"
            )

    def of_ids(self, ids: Sequence[Any]) -> Tensor:
        return self.losses_N[self._found(ids)]

    def _found(self, ids: Sequence[Any]) -> Tensor:
        given = plain_indices(ids)
        if self._places is not None:
            places = [self._places.get(str(one), -1) for one in given]
        else:
            whole = [isinstance(one, int) and 0 <= one < len(self) for one in given]
            places = [one if sound else -1 for one, sound in zip(given, whole, strict=True)]
        missing = [one for one, place in zip(given, places, strict=True) if place < 0]
        found = torch.tensor(places, dtype=torch.long)
        if not missing:
            broken = ~self.losses_N[found].isfinite()
            missing = [one for one, wrong in zip(given, broken.tolist(), strict=True) if wrong]
        if missing:
            shown = ", ".join(map(str, missing[:SHOWN])) + (", …" if len(missing) > SHOWN else "")
            known = "" if self.ids is not None else f", of the IDs 0 to {len(self) - 1}"
            plural = "s" if len(missing) > 1 else ""
            raise ValueError(
                f"the reference has no loss of sample{plural} {shown} (it has {len(self)}{known}): make it again "
                "from all samples that are trained (sift reference)"
            )
        return found

    def losses(self, plan: Plan, model: nn.Module, batch: Any, ids: Sequence[Any] | None) -> Tensor:
        return self.losses_N[self._found(self._names(plan.call, batch, ids))]

    @staticmethod
    def _names(call: Call, batch: Any, ids: Sequence[Any] | None) -> Sequence[Any]:
        """What the user's `ids=` calls the samples, as where the table was made; else what drew them."""
        if ids is not None and call.ids is None:
            return ids
        return ids_in(call, batch, "a reference table")

    def check(self, call: Call, batch: Any, ids: Sequence[Any] | None) -> None:
        if self.marks_N is None:
            return
        ids = self._names(call, batch, ids)
        places_B = self._found(ids)
        rows_R = (~self._checked_N[places_B]).nonzero().squeeze(1)  # each sample is looked at once
        marks_R = label_marks(call, batch, rows=rows_R.tolist()) if len(rows_R) else None
        if marks_R is None:
            return
        other_R = self.marks_N[places_B[rows_R]] != marks_R
        if bool(other_R.any()):
            row = int(rows_R[other_R][0])
            raise ValueError(
                f"the reference is of other data: sample {plain_indices(ids)[row]} has other labels than when it "
                f"was made, as have {int(other_R.sum())} of {len(other_R)} that were looked at. Make it again "
                "(sift reference), from the data set that is trained, in its order"
            )
        self._checked_N[places_B[rows_R]] = True

    def save(self, path: str | Path) -> None:
        """Write it whole or not at all, with a checksum; plain JSON, of which nothing is unpickled."""
        marks = None if self.marks_N is None else _text(self.marks_N)
        content = {
            "format": FORMAT,
            "kind": "reference losses",
            "samples": len(self),
            "about": self.about,
            "tokens": self.tokens,
            "ids": self.ids,
            "losses": _text(self.losses_N),
            "marks": marks,
        }
        checksums.write_json(Path(path), content)

    @classmethod
    def load(cls, path: str | Path) -> ReferenceTable:
        """Read what `save` wrote.

        Raises:
            Damaged: where it is not as it was written, or something else.
            OSError: where it cannot be read.
        """
        path = Path(path)
        found = checksums.read_json(path)
        if found.get("kind") != "reference losses" or found.get("format") != FORMAT:
            raise checksums.Damaged(
                f"{path} holds no reference losses of format {FORMAT}: make them with sift reference"
            )
        count = found.get("samples")
        try:
            losses_N = _numbers(found["losses"], torch.float32, count)
            marks = found["marks"]
            marks_N = None if marks is None else _numbers(marks, torch.int64, count)
            about, tokens = str(found["about"]), found.get("tokens")
            return cls(losses_N, ids=found["ids"], marks_N=marks_N, about=about, tokens=tokens)
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise checksums.Damaged(f"{path} is damaged: {error}") from error


def _text(values_N: Tensor) -> str:
    return base64.b64encode(values_N.numpy().tobytes()).decode("ascii")


def _numbers(text: str, dtype: torch.dtype, count: Any) -> Tensor:
    values_N = torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=dtype)
    if len(values_N) != count:
        raise ValueError(f"{len(values_N)} values of {count} samples")
    return values_N


def label_marks(call: Call, batch: Any, *, rows: Sequence[int] | None = None) -> Tensor | None:
    """A checksum of each sample's labels, whatever they are padded with; None where there are none.

    >>> padded = label_marks(Call(), {"labels": torch.tensor([[5, 6, -100, -100]])})
    >>> bool(padded == label_marks(Call(), {"labels": torch.tensor([[5, 6]])}))
    True

    Args:
        call: how labels are found in a batch.
        batch: of samples.
        rows: which of them; all by default.
    """
    if call.samples.documents(batch) is not None:
        documents = unpack(batch)
        chosen = documents if rows is None else [documents[row] for row in rows]
        named = [{k: v for k, v in part.items() if "label" in str(k)} for part in chosen]
        return torch.tensor([_mark(list(part.values())) for part in named])
    labels = list(call.labels_of(batch).values())
    size = call.samples.size(batch)
    if not labels or any(len(value) != size for value in labels):
        return None
    some = range(size) if rows is None else rows
    there = [_numbered(value) if isinstance(value, Tensor) else value for value in labels]
    return torch.tensor([_mark([value[row] for value in there]) for row in some])


def _numbered(labels: Any) -> Any:
    """Labels as an array of one of two types; a batch at once, since each call of torch takes microseconds."""
    found = torch.as_tensor(labels).detach().cpu()
    return (found.float() if found.is_floating_point() else found.long()).numpy()


def _mark(labels: list[Any]) -> int:
    mark = 0
    for value in labels:
        flat = (_numbered(value) if isinstance(value, Tensor | list | tuple) else value).reshape(-1)
        flat = flat[1:] if len(flat) > 1 else flat  # packing hides what nothing predicts
        mark = zlib.crc32(flat[flat != IGNORE].tobytes(), mark)
    return mark


def make_reference(
    score: Score | None,
    reference: str | Path | Reference | None,
    exit: Exit,
    *,
    keep: Any,
    rule: Rule,
) -> tuple[Score | None, Reference | None]:
    """By what the exit scores, and what is taken off its scores, for `score=` and `reference=`."""
    if score != REDUCIBLE:
        if reference is not None:
            raise ValueError(
                f"reference= is what score='reducible' takes off, and score={score!r}: leave one of them out"
            )
        return score, None
    if reference is None:
        raise ValueError(
            "score='reducible' is the loss less that of a reference: pass reference=, a file that sift "
            "reference wrote, or HeldOutReference(held_out_batches)"
        )
    if keep == "auto":
        raise ValueError(
            "score='reducible' goes with a fixed keep=: an autopilot chooses its scorer by itself"
        )
    if getattr(rule.policy, "positive", False):
        raise ValueError(
            f"policy={rule.policy.name!r} needs scores of at least 0, and a loss less another may be below: "
            "choose policy='percentile' or 'top'"
        )
    found = ReferenceTable.load(reference) if isinstance(reference, str | Path) else reference
    if not isinstance(found, Reference):
        raise TypeError(
            f"reference={reference!r}: give the path of a file that sift reference wrote, a ReferenceTable or "
            "a HeldOutReference"
        )
    if exit.by_id and not found.by_id:
        raise ValueError(
            f"{exit!r} scores samples by their IDs, before they are read, and {found!r} has to see them: make a "
            "ReferenceTable (sift reference), or choose another exit="
        )
    return "loss", found
