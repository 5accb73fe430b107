"""A table of losses by sample, whose cost a step does not grow with the number of samples.

Legend: N samples, B of a batch, G groups of samples.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sifting.data.keys import Key, plain_keys

BITS = 10
GROUP = 2**BITS  # samples that have one bound
MANY = (
    2**24
)  # a number above it is a place only where there is room for an eighth of so many already
SHARE = 8
MOSTLY = 0.99  # of the sum of losses, that one batch takes out of it
LATER = 2**13  # losses written whose groups' bounds may wait
MOST = 2**15 - 1  # times passed over that are told apart


class LossTable:
    """The loss of each sample as last trained, and how often it was passed over since.

    >>> table = LossTable()
    >>> slots = table.slots(["a", "b"])
    >>> table.write(slots, torch.tensor([1.0, 3.0]))
    >>> table.levels()
    (2.0, 3.0)

    The sum of all losses is kept as they are written. So is a bound for each group of samples, which
    none of its losses exceeds: only where the highest of all falls are groups looked at, the highest
    bound first.

    Args:
        size: number of samples, where IDs are whole numbers below it; it grows otherwise. Whole numbers are
            places, unless most of those places would stay empty: then they are keys, as anything else hashable.
    """

    def __init__(self, size: int | None = None) -> None:
        self.losses_N = torch.empty(0)  # not a number: never trained
        self.passed_N = torch.empty(0, dtype=torch.int16)
        self.bounds_G = torch.empty(0)
        self._waiting: list[Tensor] = []  # slots of losses that the bounds do not cover yet
        self._waiting_count = 0
        self._slots: dict[Key, int] = {}  # of IDs that are no places
        self._objects: dict[Key, Any] = {}  # what they are the plain forms of, of some
        self._length, self._limit, self._known = 0, size, 0
        self._numbered = size is not None  # whether IDs are whole numbers, as far as it is known
        # a loss may be negative (of densities), and to be passed over must raise a score
        self._total = 0.0  # of the absolute losses
        self._highest: float | None = -math.inf  # None where it fell, and was not looked for yet
        if size is not None:
            self.reserve(size)

    def __len__(self) -> int:
        """Samples that there is room for by now."""
        return self._length

    def reserve(self, size: int) -> None:
        """Make room for so many samples."""
        self._length = max(size, self._length)
        room = self.losses_N.shape[0]
        if size <= room:
            return
        room = max(size, 2 * room) if room else size
        groups = -(-room // GROUP)
        more = groups * GROUP - len(self.losses_N)
        self.losses_N = torch.cat([self.losses_N, torch.full((more,), math.nan)])
        self.passed_N = torch.cat([self.passed_N, torch.zeros(more, dtype=torch.int16)])
        new = groups - len(self.bounds_G)
        self.bounds_G = torch.cat([self.bounds_G, torch.full((new,), -math.inf)])

    def slots(self, ids: Sequence[Any] | Tensor) -> Tensor:
        """The place of each sample, with room made for new ones.

        Args:
            ids: whole numbers, which are places themselves while there are not many below them, or anything
                hashable.
        """
        if isinstance(ids, Tensor):
            slots_B = ids.long().cpu()
        else:
            found = _whole(ids)
            if found is None:
                return self._keyed(ids)
            slots_B = found
        if self._slots:
            return self._keyed(slots_B.tolist())
        if not slots_B.shape[0]:
            return slots_B
        limit = self._limit
        bounds = slots_B.aminmax()
        least, most = int(bounds.min.item()), int(bounds.max.item())
        if limit is None and max(-least, most) >= max(MANY, SHARE * self._length):
            return self._keyed(
                slots_B.tolist()
            )  # hashes, say: places for all would fill the memory
        if least < 0 or (limit is not None and most >= limit):
            raise self._no_place(least if least < 0 else most)
        self._numbered = True
        self.reserve(most + 1)
        return slots_B

    def _no_place(self, number: int) -> ValueError:
        room = "from 0 on" if self._limit is None else f"from 0 to {self._limit - 1}"
        return ValueError(
            f"the ID {number} is not one of a MemoryExit({self._limit or ''}), whose whole numbers go {room}: "
            "give it the size of the data set, or IDs that are strings"
        )

    def _keyed(self, ids: Sequence[Any]) -> Tensor:
        """Places in the order in which keys come."""
        keys = plain_keys(ids)
        if self._numbered:
            odd = next((key for key in keys if not isinstance(key, int)), None)
            if odd is not None:
                raise ValueError(
                    f"the ID {odd!r} is not a whole number, but those before it were: give all samples "
                    "IDs of one kind"
                )
            if self._limit is not None:
                raise self._no_place(max(ids, key=abs))
            # numbers that were places so far are keys from now on
            self._slots = {place: place for place in range(self._length)}
            self._numbered = False
        for key, one in zip(keys, ids, strict=True):
            by_name = type(key) is tuple and not isinstance(one, tuple | frozenset)
            if by_name and self._objects.setdefault(key, one) != one:
                raise ValueError(
                    f"the IDs {one!r} and {self._objects[key]!r} are different and print alike: give IDs that "
                    "are strings"
                )
        slots_B = torch.tensor([self._slots.setdefault(key, len(self._slots)) for key in keys])
        self.reserve(len(self._slots))
        return slots_B.long()

    def read(self, slots_B: Tensor) -> tuple[Tensor, Tensor]:
        """Losses, not a number where there is none, and how often each was passed over."""
        return self.losses_N.index_select(0, slots_B), self.passed_N.index_select(0, slots_B)

    def pass_over(self, slots_B: Tensor, passed_B: Tensor) -> None:
        """Count these samples as candidates, beyond what was read; to be trained sets it to 0.

        What was read is changed in place.
        """
        self.passed_N.index_copy_(0, slots_B, passed_B.clamp_max_(MOST - 1).add_(1))

    def write(self, slots_B: Tensor, losses_B: Tensor) -> None:
        """Remember losses; those that are not finite leave the last good ones."""
        total = _size(losses_B)
        if not math.isfinite(total):
            sound_B = losses_B.isfinite()
            return self.write(slots_B[sound_B], losses_B[sound_B])
        size = slots_B.shape[0]  # `len` of a tensor costs four times as much
        if len(set(slots_B.tolist())) < size:
            last_B = _last(slots_B)
            return self.write(slots_B[last_B], losses_B[last_B])
        if not size:
            return None
        before_B = self.losses_N.index_select(0, slots_B)
        before = _size(before_B)
        if math.isnan(before):  # some were never trained
            before_B = before_B[~before_B.isnan()]
            before = _size(before_B)
            self._known += size - before_B.shape[0]
        self.losses_N.index_copy_(0, slots_B, losses_B)
        if before > MOSTLY * self._total:  # so that its rounding would be all that is left
            self._total = _size(self.losses_N.nan_to_num(0.0))
        else:
            self._total += total - before
        self.passed_N.index_fill_(0, slots_B, 0)
        self._waiting.append(slots_B)
        self._waiting_count += size
        if self._waiting_count > LATER:
            self._raise_bounds()
        highest = self._highest
        if highest is not None:
            most = losses_B.max().item()
            fell = before_B.shape[0] and before_B.max().item() >= highest
            self._highest = most if most >= highest else None if fell else highest
        return None

    def levels(self) -> tuple[float, float]:
        """Mean of the absolute losses remembered, and the highest loss; 0 where there are none."""
        if not self._known:
            return 0.0, 0.0
        if self._highest is None:
            self._highest = self._find_highest()
        return self._total / self._known, self._highest

    def _raise_bounds(self) -> None:
        """Let the bounds cover what was written; of many steps at once, which costs little more."""
        if self._waiting:
            slots = torch.cat(self._waiting)
            losses = self.losses_N.index_select(0, slots)  # of several writes, the last counts
            self.bounds_G.scatter_reduce_(0, slots >> BITS, losses, "amax")
        self._waiting, self._waiting_count = [], 0

    def _find_highest(self) -> float:
        """The highest loss: that of the group with the highest bound, once its bound is met."""
        self._raise_bounds()
        losses_GS = self.losses_N.view(-1, GROUP)
        while True:
            bound, group = self.bounds_G.max(dim=0)
            highest = losses_GS[group].nan_to_num(-math.inf).max()
            if bool(highest == bound):
                return highest.item()
            self.bounds_G[group] = highest

    def state_dict(self) -> dict[str, Any]:
        """As plain tensors and numbers."""
        length = self._length
        keys = list(self._slots)
        return {
            "losses": self.losses_N[:length].clone(),
            "passed": self.passed_N[:length].clone(),
            "total": self._total,  # as it was added up: in another order its last bits differ
            **({"keys": keys} if keys else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        losses_N, passed_N = state["losses"].detach().float().cpu(), state["passed"]
        fresh = LossTable()
        fresh._limit = self._limit
        fresh.reserve(len(losses_N))
        fresh.losses_N[: len(losses_N)] = losses_N
        fresh.passed_N[: len(losses_N)] = passed_N.detach().short().cpu()
        fresh._slots = {key: place for place, key in enumerate(state.get("keys", ()))}
        fresh._known = int((~losses_N.isnan()).sum())
        met = bool(fresh._known or passed_N.any())
        fresh._numbered = not fresh._slots and (self._limit is not None or met)
        if fresh._known:
            fresh._total = float(state.get("total", _size(losses_N.nan_to_num(0.0))))
            fresh.bounds_G = fresh.losses_N.view(-1, GROUP).nan_to_num(-math.inf).amax(dim=1)
            fresh._highest = fresh.bounds_G.max().item()
        self.__dict__.update(fresh.__dict__)


def _whole(ids: Sequence[Any]) -> Tensor | None:
    """IDs as a tensor, NumPy's and torch's numbers too; None where they are not whole numbers of 64 bits.

    By way of an array, which is several times as fast as `torch.tensor`.
    """
    try:
        numbers = array("q", ids)
    except (TypeError, OverflowError):
        return None
    return torch.frombuffer(numbers, dtype=torch.long) if numbers else torch.empty(0).long()


def _last(slots_B: Tensor) -> Tensor:
    """Where each sample comes last, of those that come more than once."""
    slots_U, which_B = torch.unique(slots_B, return_inverse=True)
    places_B = torch.arange(len(slots_B))
    return torch.zeros_like(slots_U).scatter_reduce_(0, which_B, places_B, "amax")


def _size(losses_B: Tensor) -> float:
    """Sum of the absolute values."""
    return float(torch.linalg.vector_norm(losses_B, 1, dtype=torch.float64).item())
