"""The global random streams of a process, as plain tensors and numbers."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


def get_streams() -> dict[str, Any]:
    """State of the global streams of torch (CPU), Python and, where it is in use, NumPy.

    >>> state = get_streams()
    >>> first = torch.rand(()), random.random()
    >>> set_streams(state)
    >>> first == (torch.rand(()), random.random())
    True
    """
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, place, has_gauss, cached = numpy.random.get_state()
        if kind == "MT19937":
            state["numpy"] = {
                "keys": torch.tensor(keys.astype("int64")),
                "place": int(place),
                "has_gauss": int(has_gauss),
                "cached": float(cached),
            }
    return state


def set_streams(state: Mapping[str, Any]) -> None:
    """Put the global streams back to a state that `get_streams` gave."""
    torch.set_rng_state(state["torch"].cpu())
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    numpy = sys.modules.get("numpy")
    saved = state.get("numpy")
    if numpy is not None and saved is not None:
        keys = saved["keys"].cpu().numpy().astype("uint32")
        numpy.random.set_state(
            ("MT19937", keys, saved["place"], saved["has_gauss"], saved["cached"])
        )
