"""The state of a process's global random number generators: kept, put back, saved as plain numbers."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sifting.plain import Plain, generator_state

# between the seeds of two ranks: of those, torch's generator on a CPU and NumPy's see the lower 32 bits
STRIDE = 0x9E3779B9  # 2**32 over the golden ratio, so that near seeds of near ranks do not meet


def seed_all(seed: int, *, rank: int = 0) -> None:
    """Seed torch's, Python's and, where it is in use, NumPy's global streams.

    >>> seed_all(7)
    >>> first = torch.rand(()), random.random()
    >>> seed_all(7)
    >>> first == (torch.rand(()), random.random())
    True

    Args:
        seed: of a run.
        rank: of the process, where several draw on their own; the first draws as one alone would.
    """
    own = seed + rank * STRIDE
    torch.manual_seed(own)
    random.seed(own)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(own % 2**32)


def save_random_state() -> dict[str, Any]:
    """All global streams of this process, its GPUs' too, as tensors and numbers for a checkpoint."""
    state = RandomState.now().to_plain()
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def load_random_state(streams: Mapping[str, Any]) -> None:
    """Put the streams back to what `save_random_state` gave."""
    RandomState.from_plain(streams).restore()
    if "cuda" in streams and torch.cuda.is_available():
        torch.cuda.set_rng_state(streams["cuda"].cpu())


@dataclass(frozen=True)
class RandomState:
    """State of the global streams of torch (CPU), Python and, where it is in use, NumPy.

    >>> streams = RandomState.now()
    >>> first = torch.rand(()), random.random()
    >>> streams.restore()
    >>> first == (torch.rand(()), random.random())
    True
    >>> RandomState.from_plain(streams.to_plain()).restore()
    >>> first == (torch.rand(()), random.random())
    True
    """

    torch: Tensor
    python: tuple[Any, ...]
    numpy: Any = None

    @classmethod
    def now(cls) -> RandomState:
        """As they are: some microseconds, so that it can be done at every step."""
        numpy = sys.modules.get("numpy")
        state = None if numpy is None else numpy.random.get_state()
        return cls(torch.get_rng_state(), random.getstate(), state)

    def restore(self) -> None:
        """Put them back to this state."""
        torch.set_rng_state(self.torch)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)

    def same_as(self, other: RandomState) -> bool:
        """Whether nothing was drawn between this state and another.

        >>> before = RandomState.now()
        >>> before.same_as(RandomState.now()), before.same_as((random.random(), RandomState.now())[1])
        (True, False)
        """
        if not torch.equal(self.torch, other.torch) or self.python != other.python:
            return False
        if self.numpy is None or other.numpy is None:
            return self.numpy is other.numpy
        return bool((self.numpy[1] == other.numpy[1]).all() and self.numpy[2:] == other.numpy[2:])

    def to_plain(self) -> dict[str, Any]:
        """As tensors and numbers, to be saved."""
        version, words, gauss = self.python
        plain: dict[str, Any] = {
            "torch": self.torch,
            "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        }
        if self.numpy is not None and self.numpy[0] == "MT19937":
            _, keys, place, has_gauss, cached = self.numpy
            plain["numpy"] = {
                "keys": torch.tensor(keys.astype("int64")),
                "place": int(place),
                "has_gauss": int(has_gauss),
                "cached": float(cached),
            }
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> RandomState:
        """Back from what `to_plain` gave; each is tried on a generator of its own first."""
        found = Plain(plain, "the random streams")
        python = found.made("python", _python_state)
        numpy = None
        if "numpy" in found and "numpy" in sys.modules:
            numpy = found.made("numpy", _numpy_state)
        return cls(found.made("torch", generator_state), python, numpy)


class StreamWatch:
    """Tells whether a random number was drawn since it was made, on a model's GPU too.

    >>> watch = StreamWatch(torch.device("cpu"))
    >>> watch.drawn, torch.rand(()).ndim, watch.drawn
    (False, 0, True)
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = RandomState.now(), self._cuda()

    def _cuda(self) -> Tensor | None:
        return torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None

    @property
    def drawn(self) -> bool:
        """Whether one was."""
        (streams, before), now = self._before, self._cuda()
        same = before is None or now is None or torch.equal(before, now)
        return not (same and streams.same_as(RandomState.now()))


def _python_state(plain: Any) -> tuple[Any, ...]:
    found = Plain(plain, "Python's random stream")
    gauss = None if found.get("gauss") is None else found.number("gauss")
    state = found.whole("version"), tuple(found.tensor("words", dims=1).tolist()), gauss
    random.Random().setstate(state)
    return state


def _numpy_state(plain: Any) -> tuple[Any, ...]:
    found = Plain(plain, "NumPy's random stream")
    keys = found.tensor("keys", dims=1).cpu().numpy().astype("uint32")
    place, has_gauss = found.whole("place"), found.whole("has_gauss", most=1)
    state = ("MT19937", keys, place, has_gauss, found.number("cached"))
    sys.modules["numpy"].random.RandomState(0).set_state(state)
    return state
