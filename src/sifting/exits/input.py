"""The exit before the model: a light predictor of the labels on what the model is given.

Shapes: B samples, F pooled features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from sifting.exits.checks import by_sample
from sifting.exits.predictors import Rate
from sifting.exits.tuned import TunedExit
from sifting.model.call import mask_of
from sifting.model.failed_call import failed_calls
from sifting.model.features import WIDEST, model_input, pooled_input
from sifting.model.parts import Score
from sifting.model.plan import Plan
from sifting.model.stack import StackError
from sifting.plain import Plain

ALWAYS, SELDOM = 200, 4  # batches from each of which it learns; of later ones, one in so many
COUNT = "batches scored"  # in a state, beside the predictors


class Pooled(NamedTuple):
    """What was looked at of a batch, how often it was written by then, and what became of it."""

    hidden: Tensor
    version: int
    mask: Tensor | None
    features_BF: Tensor


class InputExit(TunedExit):
    """A linear predictor on what the model is given: coarse images, features, embedded tokens.

    >>> from sifting import Sifter
    >>> import torch
    >>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(288, 3))
    >>> sifter = Sifter(model, exit=InputExit(), keep=0.5)
    >>> sifter.score((torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]))).shape
    torch.Size([4])

    The cheapest exit that looks at samples: nothing of the model is run but, for tokens, its
    embedding. What it looks at does not change as the model does, so it does not decay; and a
    linear map cannot learn single samples by heart, however often they come. It tells the
    ambiguous from the obvious, no more.

    It needs one prediction per sample; language models want a `TunedExit`.

    Args:
        lr: learning rate of its own Adam; or "width" (see `TunedExit`).
    """

    remedy = "exit='tuned', exit=MemoryExit()"
    cheaper = "exit=MemoryExit(), or a larger every="

    def __init__(self, *, lr: Rate = 1e-2) -> None:
        super().__init__(lr=lr)
        self._member: Any = None  # of a batch that the model is given as it is
        self._by_losses = False  # whether it learns from exact losses, which the model is run for
        self._scored = 0  # batches from which it could have learned
        self._again = False  # while a batch is scored once more
        self._last: Pooled | None = None  # what it looked at last
        self.always: float = ALWAYS

    def __repr__(self) -> str:
        return "InputExit()"

    @property
    def runs(self) -> bool:  # type: ignore[override]
        """Whether anything of the model is run: not where it looks at a member of the batch itself."""
        return self._member is None or self._by_losses

    @property
    def place(self) -> str | None:
        return None

    def work(self, plan: Plan, model: nn.Module, probe: Any) -> float:
        return 0.0

    def bind(self, model: nn.Module, stack: str | None) -> None:
        if self._bound:
            raise ValueError("this InputExit is in use by another sifter: make one for each")
        self._bound = True

    @failed_calls()
    def prepare(self, plan: Plan, model: nn.Module, probe: Any) -> None:
        if plan.heads:
            raise StackError(
                "an InputExit cannot reach the model's own head, which predicts at every position: choose a "
                "TunedExit at a block of its stack"
            )
        self.check_labels(plan, probe)
        for part in plan.parts:
            if part.has_classes and len(plan.shapes[part.logits]) > 1:
                raise ValueError(
                    f"an InputExit cannot predict {part.logits} at every position: choose exit='tuned' or "
                    "exit='last'"
                )
        self._member = None
        given = by_sample(
            plan.call.samples,
            probe,
            lambda batch: self._hidden(plan, model, batch),
            who="an InputExit",
            instead="choose exit='tuned' or exit='last'",
        )
        self._member = _place_of(given, probe)
        self._by_losses = plan.kind == "losses"

    def score(self, plan: Plan, model: nn.Module, batch: Any, score: Score, learn: bool) -> Tensor:
        if learn:
            self._scored += 1
            learn = self._scored <= self.always or self._scored % SELDOM == 0
        return super().score(plan, model, batch, score, learn)

    def score_again(self, plan: Plan, model: nn.Module, batch: Any, score: Score) -> Tensor:
        """Scores, by another score, of the batch that was scored just before: it is not pooled again."""
        self._again = True
        try:
            return self.score(plan, model, batch, score, False)
        finally:
            self._again, self._last = False, None

    def rehearse(self) -> None:
        self._scored = max(self._scored, ALWAYS)

    def _hidden(self, plan: Plan, model: nn.Module, batch: Any) -> Tensor:
        found: Any = None
        if isinstance(batch, Mapping):
            found = batch.get(self._member)
        elif self._member is not None:
            found = batch[self._member]
        if isinstance(found, Tensor):
            return found
        return model_input(model, lambda: plan.call.run(model, batch))

    def _pooled(self, model: nn.Module, hidden: Tensor, batch: Any) -> Tensor:
        last, self._last, mask = self._last, None, mask_of(batch)
        version = -1 if hidden.is_inference() else hidden._version
        same = self._again and last is not None and last.hidden is hidden and last.mask is mask
        if same and last is not None and last.version == version >= 0:
            return last.features_BF
        pooled_BF = pooled_input(hidden.detach().float(), widest=WIDEST, mask=mask)
        self._last = None if self._again else Pooled(hidden, version, mask, pooled_BF)
        return pooled_BF

    def learn(self, plan: Plan) -> None:
        self._last = None  # which is the end of a batch
        super().learn(plan)

    def unlearned(self) -> dict[str, Any]:
        return {**super().unlearned(), COUNT: self._scored}

    def take_in(self, lessons: Mapping[str, Any]) -> None:
        super().take_in({name: found for name, found in lessons.items() if name != COUNT})
        self._scored = int(lessons.get(COUNT, self._scored))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), COUNT: self._scored}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        scored = Plain({COUNT: 0, **state}, "the exit").whole(COUNT)
        super().load_state_dict({name: saved for name, saved in state.items() if name != COUNT})
        self._scored = scored


def _place_of(given: Tensor, batch: Any) -> Any:
    """Where in a batch a tensor stands: a key or a number; None where it is no member of it."""
    if isinstance(batch, Mapping):
        return next((key for key, member in batch.items() if member is given), None)
    if isinstance(batch, list | tuple):
        return next((i for i, member in enumerate(batch) if member is given), None)
    return None
