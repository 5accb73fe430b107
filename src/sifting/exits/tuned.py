"""The tuned exit: a light predictor of the labels on early features, trained as it scores.

An exit that shares weights with the model decays: what it calls hard is trained until the deep
layers know it by heart, and the exit, which sees none of that, keeps choosing it; in an additive
exit the deep branch even learns to cancel the exit's error. A predictor trained on every
candidate it scores, on features it sends no gradient into, stays a predictor of the label.

Shapes: B samples, T positions, H features, F pooled features, N labelled positions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sifting.exits.base import Exit
from sifting.exits.checks import by_sample
from sifting.exits.lessons import (
    at_positions,
    check_learnable,
    check_positions,
    classes_of,
    labels_of_output,
    objective_of,
    score_rows,
    study_losses,
)
from sifting.exits.predictors import Average, Linear, Predictor, Rate, Translator, checked_rate
from sifting.model.call import mask_of
from sifting.model.failed_call import FAILURES, failed_calls
from sifting.model.features import by_graph, channels_of, pooled_features, stopped_at, stopped_in
from sifting.model.find import exit_in_stack, find_stack, get_module
from sifting.model.narrow import Narrow, find_narrow, narrowed
from sifting.model.parts import Part, Rows, Score, rows_of
from sifting.model.places import Place, own_place, structural_place, work_share
from sifting.model.plan import Consume, Plan
from sifting.model.replica import Twin
from sifting.model.score_functions import custom_losses, custom_scores
from sifting.model.stack import Stack, StackError
from sifting.parallel.detect import sharded
from sifting.parallel.ranks import Ranks
from sifting.plain import Plain


class TunedExit(Exit):
    """A light head on early features, trained online on all the candidates it scores.

    >>> from sifting import Sifter
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)),
    ...                       nn.Linear(8, 3))
    >>> sifter = Sifter(model, exit=TunedExit(1), score="entropy")
    >>> sifter.score((torch.zeros(4, 4), torch.tensor([0, 1, 2, 0]))).shape
    torch.Size([4])

    Samples with one prediction each get a linear head on pooled features; samples with a
    prediction at every position (language models) get a translator, a residual linear map before
    the model's own head; where there is no stack to reach that head from (recurrent and convolutional
    taggers), a linear head at every position. None of them sends gradients into the model. Before its
    first update a head of its own ranks all samples alike.

    Args:
        at: block number from 1, or the dotted path of any module. By default a twelfth of the
            stack's depth, the second stage of a network of stages, or a module about a tenth of the
            way through any other network.
        lr: learning rate of its own Adam; or "width", for heads of its own ½ over the number of
            features, 0.01 at most: with hundreds of features the default is too fast.
        rows: labelled positions, at most, that one update of a translator uses.
    """

    learns = True
    pipelined = True
    remedy = "a later exit (TunedExit(at)), exit=MemoryExit()"
    cheaper = "an earlier exit (TunedExit(at)), exit='input', or exit=MemoryExit()"
    default_explore = 0.25  # an insurance: even a tuned exit decays on data seen many times

    def __init__(self, at: int | str | None = None, *, lr: Rate = 1e-2, rows: int = 512) -> None:
        if at == "" or isinstance(at, bool) or not isinstance(at, int | str | None):
            raise TypeError(f"at={at!r}: give a block number from 1, or a module's path")
        if rows < 1:
            raise ValueError(f"rows={rows!r} must be at least 1")
        self.at, self.lr, self.rows = at, checked_rate(lr), rows
        self.stack: Stack | None = None
        self.k = 0
        self.path = ""
        self._named_stack: str | None = None
        self._bound = self._settled = False  # settled: the place, by a run of the model
        self._through_losses = False  # the model is run as the user's `losses=` run it
        self._by_position: set[str] = set()  # logits that get a head of their own at every position
        self.predictors: dict[str, Predictor] = {}
        self._narrow: dict[tuple[Part, ...], Narrow | None] = {}  # by the terms of an objective
        self._average: Average | None = None  # over ranks, where they train one model

    @property
    def shardable(self) -> bool:  # type: ignore[override]
        """At a block of a stack; elsewhere the model's forward is left in the middle."""
        return self.stack is not None

    @property
    def block(self) -> tuple[Stack, int] | None:  # type: ignore[override]
        return None if self.stack is None or not self.k else (self.stack, self.k)

    @property
    def place(self) -> str | None:
        """Path of the module whose output it looks at; None where that is not a module's."""
        if self.stack is not None:
            return self.stack.path_of(self.k)
        return self.path or None

    def join(self, ranks: Ranks) -> None:
        self._average = ranks.average

    def __repr__(self) -> str:
        where = self.path or (f"block {self.k} of {self.stack.path}" if self.stack else self.at)
        return f"TunedExit({where})"

    def bind(self, model: nn.Module, stack: str | None) -> None:
        if self._bound:
            raise ValueError("this TunedExit is in use by another sifter: make one for each")
        self._bound = True
        if isinstance(self.at, str):
            try:
                self.stack, self.k = exit_in_stack(model, self.at, "at")
            except StackError:
                if isinstance(get_module(model, self.at, "at"), nn.ModuleList):
                    raise
                self.path = self.at
        elif self.at is not None:
            self.stack, self.k = find_stack(model, stack), self.at
        else:
            place = structural_place(model, stack)
            if place is not None:  # else the model has to be run to tell
                self._take(place)
        self._named_stack = stack
        if self.stack is not None:
            self.stack.check_exit(self.k)

    def _take(self, place: Place) -> None:
        self.stack, self.k = place.stack, place.k
        self.path = place.path if place.stack is None else ""

    @failed_calls()
    def prepare(self, plan: Plan, model: nn.Module, probe: Any) -> None:
        def run() -> Any:
            return self._forward(plan, model, probe)

        if plan.kind == "losses" and not plan.shapes and plan.call.forward is None:
            try:
                plan.call.run(model, probe)
            except FAILURES:  # called otherwise: the user's losses= know how
                self._through_losses = True
        if self.at is None and not self._settled:
            size, named = plan.call.samples.size(probe), self._named_stack
            # an encoder's positions are not those of what its decoder predicts
            head = bool(plan.heads) or any(len(plan.shapes[part.logits]) > 1 for part in plan.parts)
            guess = self.place
            found = own_place(model, run, size=size, stack=named, head=head, guess=guess)
            if found is not None:
                self._take(found)
            self._settled = True
        self.check_labels(plan, probe)
        for part in plan.parts:
            many = part.has_classes and len(plan.shapes[part.logits]) > 1
            if many and (self.path or part.logits not in plan.heads):
                hidden = self._hidden(plan, model, probe)
                check_positions(plan, part, hidden, plan.labels_for(part, probe), where=repr(self))
                self._by_position.add(part.logits)
        if self.stack is not None and (plan.shapes or plan.kind != "losses"):
            # a head of its own needs no way to the model's end; where there is one, it tells what
            # the next block is given
            with nullcontext() if plan.heads else suppress(StackError):
                self.stack.check_chain(run)
            # features that are pooled need every position
            pooled = any(part.logits not in plan.heads for part in plan.parts)
            if plan.rows is not None and not pooled and not sharded(model):
                self._narrow[plan.parts] = find_narrow(self.stack, self.k, plan, model, probe)
        if plan.kind == "losses" or any(name not in plan.heads for name in plan.shapes):
            by_sample(
                plan.call.samples,
                probe,
                lambda batch: self._reached(plan, model, batch, lambda *_: None),
                who=repr(self),
                instead="name another module with exit=TunedExit('path.to.module'), or use exit='last' or "
                "exit=MemoryExit()",
            )

    def work(self, plan: Plan, model: nn.Module, probe: Any) -> float:
        path = self.place
        return work_share(model, lambda: self._forward(plan, model, probe), path) if path else 1.0

    def check_labels(self, plan: Plan, probe: Any) -> None:
        """Raise where there is nothing that this exit could learn to predict."""
        if plan.kind != "losses" or plan.shapes:  # else the loss itself is what is predicted
            check_learnable(plan, probe)

    def score(self, plan: Plan, model: nn.Module, batch: Any, score: Score, learn: bool) -> Tensor:
        values: list[Tensor] = []
        outputs: dict[str, Tensor] = {}

        def on_part(part: Part, found: Rows | Tensor, labels: Tensor | None) -> None:
            if part.logits in plan.heads:  # the others are predicted from features below
                assert isinstance(found, Rows)
                values.append(self._translated(plan, part, found, score, learn))

        hidden = self._reached(plan, model, batch, on_part)
        for part in (part for part in plan.parts if part.logits in self._by_position):
            values.append(self._at_positions(plan, part, hidden, batch, score, learn))
        pooled_BF = self._pooled(model, hidden, batch)
        if plan.kind == "losses" and score == "loss":
            predictor = self._predictor(
                "losses", pooled_BF.device, partial(Linear, pooled_BF, (1,))
            )
            if learn:
                study_losses(plan, model, batch, predictor, pooled_BF)
            return predictor(pooled_BF).squeeze(1).detach()
        by_user = plan.loss_fn is not None and score == "loss"
        for name, shape in plan.shapes.items():
            if name in plan.heads or name in self._by_position:
                continue
            labels = labels_of_output(plan, name, batch)
            if labels is None:
                continue  # an output that is not trained
            build = partial(Linear, pooled_BF, shape)
            predictor = self._predictor(name, pooled_BF.device, build)
            outputs[name] = predictor(pooled_BF).reshape(len(pooled_BF), *shape)
            if learn:
                predictor.study(partial(objective_of, plan, name, predictor, pooled_BF, labels))
        if callable(score) and not plan.by_rows:
            if plan.heads or self._by_position:
                raise ValueError(
                    "a callable score= on a tuned exit needs one prediction per sample; this model "
                    "predicts at every position: use score='loss' or 'entropy', or exit=k"
                )
            return custom_scores(plan, score, outputs, batch)
        if by_user:
            return custom_losses(plan, outputs, batch)
        for part in plan.parts:
            if part.logits in outputs:
                labels = plan.labels_for(part, batch)
                found = plan.laid_out(part, outputs[part.logits], labels, batch)
                values.append(plan.score(part, found, labels, score))
        return torch.stack(values).sum(dim=0)

    def _reached(self, plan: Plan, model: nn.Module, batch: Any, consume: Consume) -> Tensor:
        """Run up to the exit, handing over parts that have a head; gives what is there."""
        if self.stack is not None and (plan.heads or sharded(model)):
            narrow = narrowed(self._narrow.get(plan.parts), plan)
            with self.stack.truncated(self.k) as way, narrow:
                plan.each_part(model, batch, consume)
            return way.hidden
        plan.check_batch(batch)
        return self._hidden(plan, model, batch)

    def _hidden(self, plan: Plan, model: nn.Module, batch: Any) -> Tensor:
        def run() -> Any:
            return self._forward(plan, model, batch)

        if self.stack is not None:
            found = stopped_in(self.stack, self.k, run)
        else:
            found = stopped_at(get_module(model, self.path, "at"), run, path=self.path)
        return by_graph(found, batch)

    def _forward(self, plan: Plan, model: nn.Module, batch: Any) -> Any:
        if self._through_losses:
            assert plan.losses_fn is not None
            return plan.losses_fn(model, batch)
        return plan.call.run(model, batch)

    def _pooled(self, model: nn.Module, hidden: Tensor, batch: Any) -> Tensor:
        """Features of each sample."""
        if self.stack is None:
            channels = channels_of(get_module(model, self.path, "at"))
        else:
            channels = hidden.shape[-1] if not hidden.is_nested and hidden.ndim == 3 else None
        return pooled_features(hidden.detach().float(), channels=channels, mask=mask_of(batch))

    def _translated(self, plan: Plan, part: Part, rows: Rows, score: Score, learn: bool) -> Tensor:
        head, inputs_BTH = rows.head, rows.inputs_BTH
        assert head is not None
        translator = self._predictor(part.logits, inputs_BTH.device, lambda: Translator(inputs_BTH))
        rows = replace(rows, head=lambda inputs: head(translator(inputs)))
        return score_rows(plan, part, rows, score, translator, study=self.rows if learn else 0)

    def _at_positions(
        self, plan: Plan, part: Part, hidden: Tensor, batch: Any, score: Score, learn: bool
    ) -> Tensor:
        """Scores by a head of its own at every position."""
        labels = plan.labels_for(part, batch)
        assert labels is not None
        inputs_BTH = at_positions(part, hidden.detach().float(), labels, where=repr(self))
        shape = (classes_of(part, plan.shapes[part.logits]),)
        predictor = self._predictor(
            part.logits, hidden.device, lambda: Linear(inputs_BTH[:, 0], shape)
        )
        rows = rows_of(replace(part, kind="classes"), inputs_BTH, labels)
        rows = replace(plan.of_samples(part, rows, batch), head=predictor)
        return score_rows(plan, part, rows, score, predictor, study=self.rows if learn else 0)

    def learn(self, plan: Plan) -> None:
        """One update of each predictor, on all that was scored since the last."""
        for predictor in self.predictors.values():
            predictor.step(self._average)

    def _predictor(
        self, name: str, device: torch.device, build: Callable[[], Predictor]
    ) -> Predictor:
        predictor = self.predictors.get(name)
        if predictor is None:
            predictor = self.predictors[name] = build()
        wanted = build().weight.shape if not predictor.checked else predictor.weight.shape
        if predictor.weight.shape != wanted:
            raise ValueError(
                f"the exit's weights for {name!r} are of shape {tuple(predictor.weight.shape)}, and this "
                f"model needs {tuple(wanted)}: its state was saved with another model or exit"
            )
        predictor.checked = True
        predictor.ready(device, self.lr)
        return predictor

    def beside(self, twin: Twin) -> Exit:
        made = copy.copy(self)
        made.stack = None if self.stack is None else self.stack.beside(twin)
        made.predictors = {name: one.aside() for name, one in self.predictors.items()}
        return made

    def unlearned(self) -> dict[str, Any]:
        return {
            name: [[grads, weight] for grads, weight in predictor.lessons]
            for name, predictor in self.predictors.items()
        }

    def take_in(self, lessons: Mapping[str, Any]) -> None:
        for name, found in lessons.items():
            self.predictors[name].take_in(found)

    def state_dict(self) -> dict[str, Any]:
        return {name: predictor.state_dict() for name, predictor in self.predictors.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        found = Plain(state, "the exit")
        self.predictors = {name: found.made(name, Predictor.load) for name in found}
