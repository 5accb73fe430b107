"""The exit with memory: a sample's score is its exact loss as last trained.

Legend: N samples of the data set, B of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sifting.data import batch as batches
from sifting.exits.base import Exit, Setting, TrainedBatch
from sifting.measure.audit import warn_user
from sifting.model.call import Call
from sifting.model.objective import Score
from sifting.model.plan import Plan

MISSED = 10  # training steps without a loss before a warning


class MemoryExit(Exit):
    """Remembers the loss of each sample from when it was last trained, and scores by that.

    >>> from sifting import Sifter
    >>> data = [(torch.randn(8, 4), torch.randint(0, 3, (8,)), torch.arange(8)) for _ in range(3)]
    >>> model = nn.Linear(4, 3)
    >>> sifter = Sifter(model, exit=MemoryExit(8), ids=2, score="loss")
    >>> for x, y, _ in sifter(data):
    ...     loss = nn.functional.cross_entropy(model(x), y)   # its losses are read here
    >>> sifter.score(data[0]).shape
    torch.Size([8])

    Nothing is run to score: the losses come from the forward of your own training step, in
    warm-up too; from the first, where there are several. It needs data that is seen more than
    once, and a number for every sample, which `Sifter(ids=…)` finds in the batch. A sample never
    trained has the highest score of all.

    A loss remembered grows stale: what was easy once is never looked at again, whether or not the
    model has forgotten it. So each time a sample is passed over, its score rises by `revisit`
    times the mean loss remembered, up to the highest one, until it is trained again.

    In a distributed run each rank remembers what it trained itself.

    Args:
        size: samples in the data set; their numbers go from 0 to size − 1.
        revisit: how much a score rises each time its sample is passed over, in mean losses; 0
            for not at all.
    """

    runs = False
    observes = True
    shardable = True
    default_score = "loss"

    def __init__(self, size: int, *, revisit: float = 0.1) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size={size!r}: give the number of samples in the data set")
        if not isinstance(revisit, int | float) or not 0 <= revisit < math.inf:
            raise ValueError(f"revisit={revisit!r}: give a number of at least 0")
        self.size, self.revisit = size, float(revisit)
        self.losses_N = torch.full((size,), math.nan)  # not a number: never trained
        self.passed_N = torch.zeros(size, dtype=torch.int32)  # times passed over since
        self._trained: list[tuple[Tensor, Tensor]] = []  # losses on their way into the memory
        self._scored: list[Tensor] = []  # candidates of the selection under way
        self._levels: tuple[float, float] | None = None  # mean and highest loss, once known
        self._missed = 0
        self._bound = False

    def __repr__(self) -> str:
        return f"MemoryExit({self.size}, revisit={self.revisit:g})"

    def suits(self, setting: Setting) -> None:
        score, call, trim = setting.score, setting.call, setting.trim
        if score != "loss":
            raise ValueError(
                f"score={score!r}: a MemoryExit remembers losses and nothing else: use score='loss'"
            )
        if call.ids is None:
            raise ValueError(
                "a MemoryExit has to know which sample is which: pass ids= to the Sifter, the key of "
                "the batch that holds the samples' numbers, its position, or a function of the batch"
            )
        if trim > 0:
            raise ValueError(
                f"trim={trim} leaves out the highest scores, which a MemoryExit gives to samples that were "
                "never trained, so that they never would be: use trim=0"
            )
        if setting.scope == "global":
            raise ValueError(
                "scope='global' moves samples to ranks that do not remember them: use scope='rank' "
                "with a MemoryExit"
            )

    def bind(self, model: nn.Module, stack: str | None) -> None:
        if self._bound:
            raise ValueError("this MemoryExit is in use by another sifter: make one for each")
        self._bound = True

    def prepare(self, plan: Plan, model: nn.Module, probe: Any) -> None:
        self._ids(plan.call, probe)

    def score(self, plan: Plan, model: nn.Module, batch: Any, score: Score, learn: bool) -> Tensor:
        ids_B = self._ids(plan.call, batch)
        self._write()
        if learn:
            self._scored.append(ids_B)
        if self._levels is None:
            known = self.losses_N[~self.losses_N.isnan()]
            # a loss may be negative (of densities), and to be passed over must raise a score
            self._levels = (0.0, 0.0)
            if len(known):
                self._levels = float(known.abs().mean()), float(known.max())
        mean, highest = self._levels
        return scores_of(
            self.losses_N[ids_B],
            self.passed_N[ids_B],
            mean=mean,
            highest=highest,
            revisit=self.revisit,
        )

    def learn(self, plan: Plan) -> None:
        """Take note that these were candidates; those that are trained start again at 0."""
        for ids_B in self._scored:
            self.passed_N[ids_B] += 1
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
        # not written yet: on a GPU, reading them now would wait for the forward
        self._trained.append((self._ids(trained.call, trained.members), losses_B.detach()))
        self._missed = 0
        if len(self._trained) > MISSED:  # in warm-up nothing is scored
            self._write()

    def _write(self) -> None:
        for ids_B, losses_B in self._trained:
            losses_B = losses_B.float().cpu()
            sound_B = losses_B.isfinite()  # of a run that breaks, the last good ones stay
            self.losses_N[ids_B[sound_B]] = losses_B[sound_B]
            self.passed_N[ids_B[sound_B]] = 0
            self._levels = None
        self._trained = []

    def _ids(self, call: Call, batch: Any) -> Tensor:
        """The numbers of a batch's samples, checked."""
        ids_B, size = call.ids_of(batch).cpu(), batches.batch_size(batch)
        if len(ids_B) != size:
            raise ValueError(f"ids={call.ids!r} gave {len(ids_B)} numbers for {size} samples")
        if size and not 0 <= int(ids_B.min()) <= int(ids_B.max()) < self.size:
            wrong = ids_B[(ids_B < 0) | (ids_B >= self.size)][0]
            raise ValueError(
                f"ids={call.ids!r} gave the number {int(wrong)}, but a MemoryExit({self.size}) has numbers "
                f"from 0 to {self.size - 1}: give it the size of the data set"
            )
        return ids_B

    def state_dict(self) -> dict[str, Any]:
        self._write()
        return {"losses": self.losses_N.clone(), "passed": self.passed_N.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"losses", "passed"}:
            raise ValueError(
                f"the state holds {', '.join(state) or 'nothing'} of an exit, not the losses of a "
                "MemoryExit: make the sifter with the exit the state was saved with"
            )
        if len(state["losses"]) != self.size:
            raise ValueError(
                f"the state remembers {len(state['losses'])} samples, and this is a MemoryExit({self.size}): "
                "make it with the size it was saved with"
            )
        self.losses_N = state["losses"].detach().float().cpu().clone()
        self.passed_N = state["passed"].detach().int().cpu().clone()
        self._trained, self._scored, self._levels = [], [], None


def scores_of(
    losses_B: Tensor, passed_B: Tensor, *, mean: float, highest: float, revisit: float
) -> Tensor:
    """Scores from losses remembered: higher for what was passed over, highest for the unknown.

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
    raised_B = (losses_B + revisit * mean * passed_B).clamp_max(highest)
    return torch.where(losses_B.isnan(), highest + 1.0, raised_B)
