"""The state of a process's global random number generators: kept, put back, saved as plain numbers."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


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
        """Back from what `to_plain` gave."""
        python = plain["python"]
        state = python["version"], tuple(python["words"].tolist()), python["gauss"]
        saved, numpy = plain.get("numpy"), None
        if saved is not None and "numpy" in sys.modules:
            keys = saved["keys"].cpu().numpy().astype("uint32")
            numpy = ("MT19937", keys, saved["place"], saved["has_gauss"], saved["cached"])
        return cls(plain["torch"].cpu(), state, numpy)
