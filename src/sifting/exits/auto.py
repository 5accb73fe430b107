"""The exit of the autopilot: several scorers, of which one is in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sifting.data.stream import plain_indices
from sifting.exits.base import Exit, Setting, TrainedBatch, ids_in
from sifting.exits.input import InputExit
from sifting.exits.loss_predictor import LossPredictor, features
from sifting.exits.memory import MemoryExit
from sifting.exits.tuned import TunedExit
from sifting.model.parts import Score
from sifting.model.plan import Plan
from sifting.model.stack import StackError
from sifting.parallel.ranks import Ranks
from sifting.plain import Plain

MEMORY, PREDICTED = "memory", "predicted"


class AutoExit(Exit):
    """Scorers that compete: a tuned exit where it is cheapest, and a memory.

    >>> sorted(AutoExit().scorers)
    ['input', 'memory', 'tuned']

    Of the exits that look at the samples, the first that fits the model is taken: one on what the
    model is given (`InputExit`), which runs nothing of it, else one at an early place. A
    memory competes where the samples' IDs are known; and where it does, so does a predictor of exact
    losses from both.

    Args:
        scorers: by name, in the order in which they are tried.

    Attributes:
        active: name of the scorer in use.
        looks: name of the one that looks at the samples; empty where none fits.
        costs: what each takes to score a sample, as a share of a forward.
        refused: why a scorer takes no part, by its name.
    """

    observes = True
    learns = True
    default_explore = 0.1  # less than a tuned exit alone: looks, too, find out where choosing harms
    cheaper = "a fixed exit= of your own"

    def __init__(self, scorers: Mapping[str, Exit] | None = None) -> None:
        self._named = scorers is not None  # by the user, who wants to know why it does not fit
        if scorers is None:
            scorers = {"input": InputExit(), "tuned": TunedExit(), MEMORY: MemoryExit()}
        self.scorers: dict[str, Exit] = dict(scorers)
        self.active = self.looks = ""
        self.costs: dict[str, float] = {}
        self.refused: dict[str, str] = {}
        self.predictor = LossPredictor()
        self._prepared = self._rehearses = False

    def __repr__(self) -> str:
        return f"AutoExit({self.active or ', '.join(self.scorers)})"

    @property
    def by_id(self) -> bool:  # type: ignore[override]
        """Whether the scorer in use needs only the samples' IDs."""
        return self.active == MEMORY

    @property
    def runs(self) -> bool:  # type: ignore[override]
        """Whether its scorer that looks at samples runs the model for it."""
        return not self._prepared or bool(self.looks and self.scorers[self.looks].runs)

    @property
    def shardable(self) -> bool:  # type: ignore[override]
        """Where a scorer is; the others take no part then."""
        return any(scorer.shardable for scorer in self.scorers.values())

    @property
    def memory(self) -> MemoryExit | None:
        found = self.scorers.get(MEMORY)
        return found if isinstance(found, MemoryExit) else None

    @property
    def competing(self) -> tuple[str, ...]:
        """Names of all that can be selected by."""
        return (*self.scorers, PREDICTED) if self._predicts else tuple(self.scorers)

    @property
    def _predicts(self) -> bool:
        return not self._named and self.memory is not None and bool(self.looks)

    def suits(self, setting: Setting) -> None:
        for name, scorer in list(self.scorers.items()):
            score = setting.score if name != MEMORY else "loss"
            try:
                scorer.suits(Setting(score, setting.scope, setting.call, setting.trim))
            except ValueError as error:
                if self._named:
                    raise
                self._refuse(name, error)

    def bind(self, model: nn.Module, stack: str | None) -> None:
        for name, scorer in list(self.scorers.items()):
            try:
                scorer.bind(model, stack)
            except StackError as error:
                if stack is not None or self._named:
                    raise
                self._refuse(name, error)

    def join(self, ranks: Ranks) -> None:
        for scorer in self.scorers.values():
            scorer.join(ranks)

    def keep_shardable(self) -> None:
        """Leave out what cannot score a model whose parameters are spread over ranks."""
        for name, scorer in list(self.scorers.items()):
            if not scorer.shardable:
                self._refuse(name, "it cannot score a model whose parameters are sharded")

    def prepare(self, plan: Plan, model: nn.Module, probe: Any) -> None:
        for name, scorer in list(self.scorers.items()):
            if name == MEMORY:
                continue
            if self.looks and self.looks != name:
                self._refuse(name, f"{self.looks!r} is cheaper")
                continue
            try:
                scorer.prepare(plan, model, probe)
            except ValueError as error:
                if self._named or name == self.looks:  # in use: of batches of another kind
                    raise
                self._refuse(name, error)
                continue
            self.looks = name
            self.costs.setdefault(name, scorer.work(plan, model, probe))
        self.costs[MEMORY] = 0.0
        if self.looks:
            self.costs[PREDICTED] = self.costs[self.looks]
        self._prepared = True
        if not self.active:
            self.active = PREDICTED if self._rehearses and self._predicts else self.looks

    def _refuse(self, name: str, why: object) -> None:
        del self.scorers[name]
        self.refused[name] = str(why)

    def score(self, plan: Plan, model: nn.Module, batch: Any, score: Score, learn: bool) -> Tensor:
        memory = self.memory
        if self.active == MEMORY and memory is not None and plan.call.ids is not None:
            return memory.score(plan, model, batch, score, learn)
        if not self.looks:
            raise ValueError(
                "none of the autopilot's scorers fits this model and its batches: "
                + "; ".join(f"{name}: {why}" for name, why in self.refused.items())
            )
        return self.scorers[self.looks].score(plan, model, batch, score, learn)

    def scores_of_all(
        self,
        plan: Plan,
        model: nn.Module,
        batch: Any,
        score: Score,
        *,
        learn: bool,
        ids: Sequence[Any] | None = None,
    ) -> dict[str, Tensor]:
        """Every scorer's scores of a batch, where it has any: for comparing them."""
        found: dict[str, Tensor] = {}
        if self.looks:
            scorer = self.scorers[self.looks]
            found[self.looks] = scorer.score(plan, model, batch, score, learn)
            if learn:
                scorer.learn(plan)
        memory = self.memory
        if memory is not None:
            known = ids if ids is not None or plan.call.ids is None else ids_in(plan.call, batch)
            if known is not None:
                try:
                    found[MEMORY] = memory.peek(known)
                except ValueError as error:
                    self._give_up_memory(error)
        return found

    def predicted(
        self,
        plan: Plan,
        model: nn.Module,
        batch: Any,
        scores_B: Tensor,
        ids: Sequence[Any] | None,
        *,
        note: bool = True,
    ) -> Tensor | None:
        """Losses as predicted from everything that is known; None where too little is.

        Args:
            scores_B: of the exit that looks at samples.
            ids: of the samples, where the sifter drew them itself.
            note: whether to keep what they are predicted from until the exact losses are there.
        """
        memory = self.memory
        if ids is None and plan.call.ids is not None:
            ids = ids_in(plan.call, batch)
        if not self._predicts or memory is None or ids is None:
            return None
        ids = plain_indices(ids)
        inputs_BF = self._inputs(plan, model, batch, scores_B, *memory.remembered(ids))
        if note:
            self.predictor.note(ids, inputs_BF)
        return self.predictor(inputs_BF) if self.predictor.ready else None

    def predicted_from(
        self, plan: Plan, model: nn.Module, batch: Any, scores_B: Tensor, losses_B: Tensor
    ) -> Tensor | None:
        """As `predicted`, of samples that are not trained, from their losses as last seen.

        Args:
            scores_B: of the exit that looks at samples.
            losses_B: not a number where none was seen.
        """
        if not self._predicts or not self.predictor.ready:
            return None
        passed_B = torch.zeros_like(losses_B)
        return self.predictor(self._inputs(plan, model, batch, scores_B, losses_B, passed_B))

    def _inputs(
        self,
        plan: Plan,
        model: nn.Module,
        batch: Any,
        scores_B: Tensor,
        losses_B: Tensor,
        passed_B: Tensor,
    ) -> Tensor:
        looks = self.scorers[self.looks]
        exit_B: Tensor | None = None
        if isinstance(looks, InputExit) and not looks.runs:
            exit_B = looks.score_again(plan, model, batch, "loss")
        return features(losses_B, passed_B, scores_B, exit_B)

    def refined(
        self,
        plan: Plan,
        model: nn.Module,
        batch: Any,
        scores_B: Tensor,
        ids: Sequence[Any] | None,
    ) -> Tensor:
        if self.active != PREDICTED:
            return scores_B
        found_B = self.predicted(plan, model, batch, scores_B, ids)
        return scores_B if found_B is None else found_B.to(scores_B.device)

    def new(self, ids: Sequence[Any] | None) -> Tensor | None:
        """Which samples were never trained; None where no memory can tell."""
        memory = self.memory
        return None if memory is None or ids is None else memory.new(ids)

    def _give_up_memory(self, error: ValueError) -> None:
        """IDs that no memory takes (keys of one's own) are no reason not to train."""
        if self._named or self.active == MEMORY:
            raise error
        self._refuse(MEMORY, error)

    def expect(self, samples: int | None) -> None:
        for scorer in self.scorers.values():
            scorer.expect(samples)

    def score_ids(self, ids: Sequence[Any]) -> Tensor:
        memory = self.memory
        assert memory is not None
        return memory.score_ids(ids)

    def learn(self, plan: Plan) -> None:
        for scorer in self.scorers.values():
            scorer.learn(plan)

    def observe(self, trained: TrainedBatch, losses_B: Tensor) -> None:
        if self.predictor.waits and _has_ids(trained):
            ids = trained.ids if trained.ids is not None else ids_in(trained.call, trained.members)
            self.predictor.hear(plain_indices(ids), losses_B)
        for name, scorer in list(self.scorers.items()):
            if scorer.observes and not (name == MEMORY and not _has_ids(trained)):
                try:
                    scorer.observe(trained, losses_B)
                except ValueError as error:
                    if name != MEMORY:
                        raise
                    self._give_up_memory(error)

    def end_step(self) -> None:
        for scorer in self.scorers.values():
            scorer.end_step()

    def rehearse(self) -> None:
        self._rehearses = True  # what takes longest is what is timed
        for scorer in self.scorers.values():
            scorer.rehearse()

    def missed(self) -> None:
        if self.by_id:
            for scorer in self.scorers.values():
                scorer.missed()

    def state_dict(self) -> dict[str, Any]:
        states = {name: scorer.state_dict() for name, scorer in self.scorers.items()}
        found = {"looks": self.looks, "costs": dict(self.costs), "refused": dict(self.refused)}
        known = {"predictor": self.predictor.state_dict()}
        return {"active": self.active, "scorers": states, **found, **known}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        wanted = {"active", "scorers", "looks", "costs", "refused"}
        if set(state) - {"predictor"} != wanted:
            raise ValueError(
                f"the state holds {', '.join(state) or 'nothing'} of an exit, not what an autopilot's exit "
                "has learned: make the sifter with the exit the state was saved with"
            )
        found = Plain(state, "the autopilot's exit")
        refused, costs = found.inside("refused"), found.inside("costs")
        prices = {name: costs.number(name) for name in costs}
        for name, known in (("looks", self.scorers), ("active", (*self.scorers, PREDICTED))):
            if found.get(name) not in ("", *known, *refused):
                found.refuse(name, f"one of {', '.join(known)}, or empty")
        predictor = LossPredictor()
        if "predictor" in state:
            predictor.load_state_dict(found.inside("predictor").content)
        for name, saved in found.inside("scorers").content.items():
            if name in self.scorers:
                self.scorers[name].load_state_dict(saved)
        for name in refused:  # last: a scorer that is refused does not come back
            if name in self.scorers:
                self._refuse(name, str(refused.get(name)))
        if "predictor" in state:
            self.predictor = predictor
        self.active, self.looks = str(state["active"]), str(state["looks"])
        self.costs = prices


def _has_ids(trained: TrainedBatch) -> bool:
    return trained.ids is not None or trained.call.ids is not None
