"""What fills up shorter sequences where batches are joined: given, or found in batches that were met.

Shapes: B samples, T positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sifting.plain import Plain

# One value for what the model is given, or one for each key.
Pad = float | Mapping[str, float]
ZERO = ("attention_mask", "token_type_ids")
NO_LABEL = -100


class Filling:
    """The value that fills up each member of a batch.

    >>> filling = Filling(7)
    >>> short, long = torch.ones(1, 2, dtype=torch.long), torch.ones(1, 3, dtype=torch.long)
    >>> [filling.value(name, [short, long], [None, None]) for name in ("input_ids", "labels")]
    [7, -100]

    What is found in one batch holds for later ones: two that are joined may happen to have no padding.

    Args:
        pad: one value, for the one member that neither is known by its name (attention masks,
            token types, labels) nor has an entry; or one for each key. None to find all of it.
    """

    def __init__(self, pad: Pad | None = None) -> None:
        check_pad(pad)
        self.pad = pad
        self.found: dict[str, float] = {}
        self._settled = False  # whether a batch with padding was met

    def meet(self, batch: Any, members: Callable[[], Mapping[str, Any]]) -> None:
        """Look for padding in a batch, until one has some.

        Args:
            batch: as the loader gave it.
            members: gives its per-sample members by name.
        """
        mask = None if self._settled else mask_of(batch)
        if mask is None or mask.device.type != "cpu" or bool(mask.all()):
            return  # on a GPU, looking would wait for it
        self._settled = True
        for name, member in members().items():
            if isinstance(member, Tensor):
                self._find(name, [member], [mask])

    def value(self, name: str, column: Sequence[Tensor], masks: Sequence[Tensor | None]) -> float:
        """What fills up a member of several batches.

        Args:
            name: of the member.
            column: it, of each batch.
            masks: their attention masks.

        Raises:
            ValueError: where nothing says so.
        """
        given = self._given(name, column[0])
        if given is None:
            given = self._find(name, column, masks)
        if given is None:
            given = self.found.get(name)
        if given is None and is_label(name, column[0]):
            given = NO_LABEL
        if given is None:
            raise ValueError(
                f"{name} has {' and '.join(str(part.shape[1]) for part in column)} positions in batches that "
                f"are to be joined, and what to fill them up with cannot be found in them{self._but()}: pass "
                f"pad={{{name!r}: …}}, or draws='batch'"
            )
        if column[0].is_floating_point():
            return float(given)
        if given != int(given):
            raise ValueError(f"pad={self.pad!r}: {name} holds whole numbers, and {given} is none")
        return int(given)

    def takes_the_one(self, name: str, member: Tensor) -> bool:
        """Whether a single `pad=` is what fills up a member."""
        known = name in ZERO or is_label(name, member)
        return self.pad is not None and not isinstance(self.pad, Mapping) and not known

    def _given(self, name: str, member: Tensor) -> float | None:
        if isinstance(self.pad, Mapping) and name in self.pad:
            return self.pad[name]
        if name in ZERO:
            return 0
        if not self.takes_the_one(name, member):
            return None
        if member.dtype == torch.bool:
            raise ValueError(
                f"pad={self.pad!r}: {name} holds True and False, and which of them says that a position is "
                f"padding is not known: pass pad={{{name!r}: 0 or 1, …}}, a value for each key"
            )
        assert isinstance(self.pad, int | float)
        return self.pad

    def _find(
        self, name: str, column: Sequence[Tensor], masks: Sequence[Tensor | None]
    ) -> float | None:
        """What batches have where their attention masks are 0; None where that is not one value."""
        for part, mask in zip(column, masks, strict=True):
            if mask is None or mask.shape != part.shape[:2] or bool(mask.all()):
                continue
            values = part[mask == 0].flatten()
            if len(values) and bool((values == values[0]).all()):
                self.found[name] = values[0].item()
                return self.found[name]
        return None

    def _but(self) -> str:
        """What a `pad=` has that does not help."""
        if not isinstance(self.pad, Mapping):
            return ""
        return f" nor in pad={dict(self.pad)!r}"

    def state_dict(self) -> dict[str, float]:
        return dict(self.found)

    @staticmethod
    def checked(state: Any) -> dict[str, float]:
        """What a state says was found."""
        found = Plain(state, "the padding")
        return {name: found.number(name) for name in found}

    def load_state_dict(self, found: Mapping[str, float]) -> None:
        self.found, self._settled = dict(found), bool(found)


def check_pad(pad: Any) -> None:
    """Raise unless `pad=` is a number, or has one for each key.

    >>> check_pad({"input_ids": "<pad>"})
    Traceback (most recent call last):
    ValueError: pad={'input_ids': '<pad>'}: give a number, or a dict with one for each key of the batch
    """
    values = list(pad.values()) if isinstance(pad, Mapping) else [pad]
    if pad is None:
        return
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise ValueError(
                f"pad={pad!r}: give a number, or a dict with one for each key of the batch"
            )


def is_label(name: str, member: Tensor) -> bool:
    """Whether a member holds classes by its name, where −100 says that a position has none."""
    return "label" in name and not member.is_floating_point() and member.dtype != torch.bool


def mask_of(batch: Any) -> Tensor | None:
    """The attention mask of a batch, 0 where there is padding."""
    if isinstance(batch, list | tuple) and batch and isinstance(batch[0], Mapping):
        batch = batch[0]
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    return mask if isinstance(mask, Tensor) else None
