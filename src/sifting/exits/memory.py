"""The exit with memory: a sample's score is its exact loss as last trained.

Legend: N samples of the data set, B of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from torch import Tensor, nn

from sifting.data.keys import plain_keys
from sifting.exits.base import Exit, Setting, TrainedBatch, ids_in
from sifting.exits.loss_table import MOST, LossTable
from sifting.exits.table_state import check_table
from sifting.measure.audit import warn_user
from sifting.model.parts import Score
from sifting.model.plan import Plan
from sifting.parallel.ranks import Ranks

SHARE_EVERY = 10  # training steps between two exchanges of what ranks have learned
MISSED = 10  # training steps without a loss before a warning


class MemoryExit(Exit):
    """Remembers the loss of each sample from when it was last trained, and scores by that.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from sifting import Sifter
    >>> data = TensorDataset(torch.randn(24, 4), torch.randint(0, 3, (24,)))
    >>> model = nn.Linear(4, 3)
    >>> sifter = Sifter(model, exit=MemoryExit())
    >>> for x, y in sifter(DataLoader(data, batch_size=8)):
    ...     loss = nn.functional.cross_entropy(model(x), y)   # its losses are read here
    >>> sifter.exit.score_ids([0, 1, 2]).shape
    torch.Size([3])

    Nothing is run to score: the losses come from the forward of your own training step, in
    warm-up too; from the first, where there are several. It needs data that is seen more than
    once. Where the sifter draws the samples itself (a `DataLoader` over a map-style data set), it
    knows them by their indices and chooses before anything is read: what is dropped is never
    fetched, decoded or collated. Elsewhere `Sifter(ids=…)` finds their IDs in the batch. A sample
    never trained has the highest score of all.

    A remembered loss grows stale: what was easy once is never looked at again, whether or not the
    model has forgotten it. So each time a sample is passed over, its score rises by `revisit`
    times the mean loss remembered, up to the highest one, until it is trained again.

    In a distributed run of one model, ranks tell each other every few steps what they have learned.

    Args:
        size: samples in the data set, where IDs are whole numbers below it; by default the memory
            grows as it meets them, and IDs may be anything that can be a key of a dict and prints as what it is.
        revisit: how much a score rises each time its sample is passed over, in mean losses; 0
            for not at all.
    """

    runs = False
    observes = True
    by_id = True
    learns = True
    shardable = True
    needs_labels = False
    default_score = "loss"
    remedy = "a larger revisit="
    cheaper = "a larger keep="

    def __init__(self, size: int | None = None, *, revisit: float = 0.1) -> None:
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(f"size={size!r}: give the number of samples in the data set")
        if not isinstance(revisit, int | float) or not 0 <= revisit < math.inf:
            raise ValueError(f"revisit={revisit!r}: give a number of at least 0")
        self.size, self.revisit = size, float(revisit)
        self.table = LossTable(size)
        self._trained: list[tuple[Tensor, Tensor]] = []  # losses on their way into the memory
        self._untold: list[tuple[list[Any], Tensor]] = []  # and to the other ranks
        self._scored: list[Tensor] = []  # candidates of the selection under way
        self._missed = self._steps = self._told = 0  # steps, and how many when ranks last talked
        self._under_way = False  # whether a step is that has told its losses
        self._bound = self._drawn = False  # by a sifter; by index
        self._ranks: Ranks | None = None

    def __repr__(self) -> str:
        size = "" if self.size is None else f"{self.size}, "
        return f"MemoryExit({size}revisit={self.revisit:g})"

    def suits(self, setting: Setting) -> None:
        if setting.score != "loss":
            raise ValueError(
                f"score={setting.score!r}: a MemoryExit remembers losses and nothing else: use score='loss'"
            )
        if setting.trim > 0:
            raise ValueError(
                f"trim={setting.trim} leaves out the highest scores, which a MemoryExit gives to samples that "
                "were never trained, so that they never would be: use trim=0"
            )

    def bind(self, model: nn.Module, stack: str | None) -> None:
        if self._bound:
            raise ValueError("this MemoryExit is in use by another sifter: make one for each")
        self._bound = True

    def join(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def expect(self, samples: int | None) -> None:
        if self.size is not None and samples is not None and samples > self.size:
            raise ValueError(
                f"the data set has {samples} samples, and this is a MemoryExit({self.size}): give it the size "
                "of the data set, or none"
            )
        self._drawn = True
        if samples is not None:
            self.table.reserve(samples)
        self._share_if_due()  # where a run continues from a state that was taken within a step

    def prepare(self, plan: Plan, model: nn.Module, probe: Any) -> None:
        if plan.call.ids is not None and not self._drawn:  # else the indices are the IDs
            self.table.slots(ids_in(plan.call, probe))

    def score(self, plan: Plan, model: nn.Module, batch: Any, score: Score, learn: bool) -> Tensor:
        ids = ids_in(plan.call, batch)
        slots_B = self.table.slots(ids)
        if learn:
            self._scored.append(slots_B)
        return self._score(slots_B, ids)[0]

    def score_ids(self, ids: Sequence[Any]) -> Tensor:
        slots_B = self.table.slots(ids)
        scores_B, passed_B = self._score(slots_B, ids)
        self.table.pass_over(slots_B, passed_B)
        return scores_B

    def peek(self, ids: Sequence[Any]) -> Tensor:
        """Scores of samples that are no candidates of a step: nothing is counted as passed over."""
        return self._score(self.table.slots(ids), ids)[0]

    def remembered(self, ids: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Losses as last trained, not a number where there is none, and how often each was passed over."""
        self._write()
        return self.table.read(self.table.slots(ids))

    def new(self, ids: Sequence[Any]) -> Tensor:
        """Which samples have no loss yet, since they were never trained."""
        return self.remembered(ids)[0].isnan()

    def _score(self, slots_B: Tensor, ids: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Scores, and how often each was passed over before."""
        self._write()
        mean, highest = self.table.levels()
        losses_B, passed_B = self.table.read(slots_B)
        if self.reference is not None:
            losses_B = losses_B - self.reference(ids)
            highest = max(highest, float(losses_B.nan_to_num(-math.inf).max()))
        scores_B = scores_of(losses_B, passed_B, mean=mean, highest=highest, revisit=self.revisit)
        return scores_B, passed_B

    def learn(self, plan: Plan) -> None:
        """Take note that these were candidates; those that are trained start again at 0."""
        for slots_B in self._scored:
            self.table.pass_over(slots_B, self.table.read(slots_B)[1])
        self._scored = []

    def missed(self) -> None:
        # counted when a step is over: a loop may draw many batches before it trains the first
        self._missed += 1
        if self._missed == MISSED:
            warn_user(
                f"the losses of the last {MISSED} training steps did not reach the MemoryExit, which "
                "therefore knows nothing new: train the model that the sifter was given, on each batch as "
                "a whole and with logits that fit its labels, or call sifter.observe(losses)"
            )

    def observe(self, trained: TrainedBatch, losses_B: Tensor) -> None:
        ids = trained.ids
        if ids is None:
            ids = ids_in(trained.call, trained.members)
        # not written yet: on a GPU, reading them now would wait for the forward
        self._trained.append((self.table.slots(ids), losses_B.detach()))
        if self._ranks is not None:
            self._untold.append((plain_keys(ids), losses_B.detach()))
        self._missed, self._under_way = 0, True
        if len(self._trained) > MISSED:  # in warm-up nothing is scored
            self._write()

    def end_step(self) -> None:
        self._steps, self._under_way = self._steps + 1, False
        self._share_if_due()

    def _share_if_due(self) -> None:
        if self._ranks is not None and self._steps // SHARE_EVERY > self._told // SHARE_EVERY:
            self._told = self._steps
            self._share(self._ranks)

    def _share(self, ranks: Ranks) -> None:
        """Tell all ranks what was trained here; what came last is remembered, on all of them alike."""
        own = [(ids, losses_B.float().cpu()) for ids, losses_B in self._untold]
        self._untold = []
        self._write()
        for step in zip_longest(*ranks.gather(own)):
            for ids, losses_B in filter(None, step):
                self.table.write(self.table.slots(ids), losses_B)

    def _write(self) -> None:
        for slots_B, losses_B in self._trained:
            self.table.write(slots_B, losses_B.float().cpu())
        self._trained = []

    def state_dict(self) -> dict[str, Any]:
        self._write()
        told: dict[str, Any] = {"steps": self._steps + self._under_way, "told": self._told}
        if self._untold:
            told["untold_ids"] = [ids for ids, _ in self._untold]
            told["untold"] = [losses_B.float().cpu() for _, losses_B in self._untold]
        return {**self.table.state_dict(), **told}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "losses" not in state or "passed" not in state:
            raise ValueError(
                f"the state holds {', '.join(state) or 'nothing'} of an exit, not the losses of a "
                "MemoryExit: make the sifter with the exit the state was saved with"
            )
        check_table(state, most=MOST)
        if self.size is not None and len(state["losses"]) != self.size:
            raise ValueError(
                f"the state remembers {len(state['losses'])} samples, and this is a MemoryExit({self.size}): "
                "make it with the size it was saved with"
            )
        self.table.load_state_dict(state)
        self._trained, self._scored, self._untold = [], [], []
        self._steps, self._told = int(state.get("steps", 0)), int(state.get("told", 0))
        self._under_way = False
        if "untold" in state and self._ranks is not None:
            self._untold = list(zip(state["untold_ids"], state["untold"], strict=True))


def scores_of(
    losses_B: Tensor, passed_B: Tensor, *, mean: float, highest: float, revisit: float
) -> Tensor:
    """Scores from losses remembered: higher for what was passed over, highest for the unknown.

    >>> import torch
    >>> scores_of(torch.tensor([0.5, 0.5, 3.0, math.nan]), torch.tensor([0, 4, 9, 0]),
    ...           mean=1.0, highest=3.0, revisit=0.1).tolist()
    [0.5, 0.8999999761581421, 3.0, 4.0]

    Args:
        losses_B: as last trained; not a number where there is none.
        passed_B: how often each was passed over since.
        mean: of all losses remembered.
        highest: of all losses remembered.
        revisit: rise for each time, in means.
    """
    raised_B = losses_B.add(passed_B, alpha=revisit * mean).clamp_max_(highest)
    return raised_B.nan_to_num_(highest + 1.0)  # a loss that is not a number stayed so
