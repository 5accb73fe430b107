"""A table of losses by sample, whose cost a step does not grow with the number of samples.

Legend: N samples, B of a batch, G groups of samples.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sifting.data.stream import plain_index

GROUP = 128  # samples whose sum and maximum are kept together
MANY = 2**31  # samples: a larger number is no index, but a hash or a mistake
MOST = 2**15 - 1  # times passed over that are told apart


class LossTable:
    """The loss of each sample as last trained, and how often it was passed over since.

    >>> table = LossTable()
    >>> slots = table.slots(["a", "b"])
    >>> table.write(slots, torch.tensor([1.0, 3.0]))
    >>> table.levels()
    (2.0, 3.0)

    Sums and maxima are kept for groups of samples, so that a step looks only at the groups that
    it writes to.

    Args:
        size: number of samples, where IDs are whole numbers below it; it grows otherwise.
    """

    def __init__(self, size: int | None = None) -> None:
        self.losses_N = torch.empty(0)  # not a number: never trained
        self.passed_N = torch.empty(0, dtype=torch.int16)
        self.sums_G = torch.empty(0, dtype=torch.float64)
        self.highest_G = torch.empty(0)
        self._slots: dict[Hashable, int] = {}  # of IDs that are not whole numbers
        self._length, self._limit, self._known = 0, size, 0
        if size is not None:
            self.reserve(size)

    def __len__(self) -> int:
        """Samples that there is room for by now."""
        return self._length

    def reserve(self, size: int) -> None:
        """Make room for so many samples."""
        self._length = max(size, self._length)
        room = len(self.losses_N)
        if size <= room:
            return
        room = max(size, 2 * room) if room else size
        groups = -(-room // GROUP)
        more = groups * GROUP - len(self.losses_N)
        self.losses_N = torch.cat([self.losses_N, torch.full((more,), math.nan)])
        self.passed_N = torch.cat([self.passed_N, torch.zeros(more, dtype=torch.int16)])
        new = groups - len(self.sums_G)
        self.sums_G = torch.cat([self.sums_G, torch.zeros(new, dtype=torch.float64)])
        self.highest_G = torch.cat([self.highest_G, torch.full((new,), -math.inf)])

    def slots(self, ids: Sequence[Any] | Tensor) -> Tensor:
        """The place of each sample, with room made for new ones.

        Args:
            ids: whole numbers, which are places themselves, or anything hashable.
        """
        if isinstance(ids, Tensor):
            slots_B = ids.long().cpu()
        else:
            if not all(type(one) is int for one in ids):
                ids = [plain_index(one) for one in ids]  # as NumPy or torch drew them
                if not all(type(one) is int for one in ids):
                    return self._keyed(ids)
            slots_B = torch.tensor(ids, dtype=torch.long)
        if self._slots:
            return self._keyed(slots_B.tolist())
        if not len(slots_B):
            return slots_B
        limit = self._limit
        least, most = (int(bound) for bound in slots_B.aminmax())
        if least < 0 or most >= (MANY if limit is None else limit):
            wrong_B = (slots_B < 0) | (slots_B >= (MANY if limit is None else limit))
            room = f"from 0 to {limit - 1}" if limit is not None else f"from 0 to {MANY - 1:,}"
            raise ValueError(
                f"the ID {int(slots_B[wrong_B][0])} is not one of a MemoryExit({limit or ''}), whose whole "
                f"numbers go {room}: give it the size of the data set, or IDs that are strings"
            )
        self.reserve(most + 1)
        return slots_B

    def _keyed(self, ids: Sequence[Any]) -> Tensor:
        if self._length and not self._slots:
            raise ValueError(
                f"the ID {ids[0]!r} is no whole number, and those before it were: give all samples "
                "IDs of one kind"
            )
        slots_B = torch.tensor([self._slots.setdefault(one, len(self._slots)) for one in ids])
        self.reserve(len(self._slots))
        return slots_B.long()

    def read(self, slots_B: Tensor) -> tuple[Tensor, Tensor]:
        """Losses, not a number where there is none, and how often each was passed over."""
        return self.losses_N[slots_B], self.passed_N[slots_B]

    def pass_over(self, slots_B: Tensor) -> None:
        """Count these samples as candidates; to be trained sets them back to 0."""
        self.passed_N[slots_B] = (self.passed_N[slots_B].int() + 1).clamp_max(MOST).short()

    def write(self, slots_B: Tensor, losses_B: Tensor) -> None:
        """Remember losses; those that are not finite leave the last good ones."""
        sound_B = losses_B.isfinite()
        if not bool(sound_B.all()):
            slots_B, losses_B = slots_B[sound_B], losses_B[sound_B]
        if not len(slots_B):
            return
        new_B = self.losses_N[slots_B].isnan()
        if bool(new_B.any()):
            self._known += len(torch.unique(slots_B[new_B]))
        self.losses_N[slots_B] = losses_B
        self.passed_N[slots_B] = 0
        groups_B = slots_B // GROUP
        # of a batch's, most differ: to find the same ones takes longer than to do them twice
        self._regroup(groups_B if len(groups_B) < GROUP else torch.unique(groups_B))

    def _regroup(self, groups_G: Tensor) -> None:
        losses_GS = self.losses_N.view(-1, GROUP)[groups_G]
        self.highest_G[groups_G] = losses_GS.nan_to_num(-math.inf).amax(dim=1)
        # a loss may be negative (of densities), and to be passed over must raise a score
        self.sums_G[groups_G] = losses_GS.nan_to_num_(0.0).abs_().sum(dim=1, dtype=torch.float64)

    def levels(self) -> tuple[float, float]:
        """Mean of the absolute losses remembered, and the highest loss; 0 where there are none."""
        if not self._known:
            return 0.0, 0.0
        return float(self.sums_G.sum()) / self._known, float(self.highest_G.max())

    def state_dict(self) -> dict[str, Any]:
        """As plain tensors and numbers."""
        length = self._length
        keys = list(self._slots)
        return {
            "losses": self.losses_N[:length].clone(),
            "passed": self.passed_N[:length].clone(),
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
        if len(losses_N):
            fresh._regroup(torch.arange(len(fresh.sums_G)))
        self.__dict__.update(fresh.__dict__)
