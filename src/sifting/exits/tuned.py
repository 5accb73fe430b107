"""The tuned exit: a light predictor of the labels on early features, trained as it scores.

An exit that shares weights with the model decays: what it calls hard is trained until the deep
layers know it by heart, and the exit, which sees none of that, keeps choosing it; in an additive
exit the deep branch even learns to cancel the exit's error. A predictor trained on every
candidate it scores, on features it sends no gradient into, stays a predictor of the label.

Shapes: B samples, T positions, H features, F pooled features, N labelled positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.exits.base import Exit
from sifting.exits.predictors import Average, Linear, Predictor, Translator
from sifting.model.call import mask_of
from sifting.model.features import channels_of, pool, stopped_at, stopped_in
from sifting.model.find import exit_in_stack, find_stack, get_module
from sifting.model.objective import Part, Rows, Score, part_losses, rows_of
from sifting.model.places import Place, find_place, structural_place
from sifting.model.plan import Consume, Plan, custom_losses, custom_scores
from sifting.model.stack import Stack, StackError
from sifting.parallel.detect import sharded
from sifting.parallel.ranks import Ranks
from sifting.plain import Plain

EXACT_EVERY = 8  # with losses=, every so many candidates the exact loss is computed to learn from
WIDEST = 2048  # pooled features that a head of its own gets at most


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
    the model's own head. Neither sends gradients into the model. Before its first update the
    exit ranks all samples alike.

    Args:
        at: block number from 1, or the dotted path of any module. By default a twelfth of the
            stack's depth, the second stage of a network of stages, or a module about a tenth of the
            way through any other network.
        lr: learning rate of its own Adam.
        rows: labelled positions, at most, that one update of a translator uses.
    """

    learns = True
    remedy = "a later exit (TunedExit(at)), a larger explore= (0.5), exit=MemoryExit()"
    cheaper = "an earlier exit (TunedExit(at)), or exit=MemoryExit()"
    default_explore = 0.25  # an insurance: even a tuned exit decays on data seen many times

    def __init__(self, at: int | str | None = None, *, lr: float = 1e-2, rows: int = 512) -> None:
        if at is not None and (isinstance(at, bool) or not isinstance(at, int | str)):
            raise TypeError(f"at={at!r}: give a block number from 1, or a module's path")
        if not lr > 0:
            raise ValueError(f"lr={lr!r} must be above 0")
        if rows < 1:
            raise ValueError(f"rows={rows!r} must be at least 1")
        self.at, self.lr, self.rows = at, lr, rows
        self.stack: Stack | None = None
        self.k = 0
        self.path = ""
        self._named_stack: str | None = None
        self._bound = False
        self.predictors: dict[str, Predictor] = {}
        self._average: Average | None = None  # over ranks, where they train one model

    @property
    def shardable(self) -> bool:  # type: ignore[override]
        """At a block of a stack; elsewhere the model's forward is left in the middle."""
        return self.stack is not None

    @property
    def place(self) -> str | None:
        """Path of the module whose output it looks at; None where that is not a module's."""
        if self.stack is not None:
            return f"{self.stack.path}.{self.stack.blocks[self.k - 1][-1]}"
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

    def prepare(self, plan: Plan, model: nn.Module, probe: Any) -> None:
        def run() -> Any:
            return plan.call.run(model, probe)

        if self.stack is None and not self.path:
            size = plan.call.samples.size(probe)
            found = find_place(
                model, run, size=size, stack=self._named_stack, head=bool(plan.heads)
            )
            self._take(found)
        self.check_labels(plan, probe)
        if self.stack is not None and (plan.shapes or plan.kind != "losses"):
            # a head of its own needs no way to the model's end; where there is one, it tells what
            # the next block is given
            with nullcontext() if plan.heads else suppress(StackError):
                self.stack.check_chain(run)

    def check_labels(self, plan: Plan, probe: Any) -> None:
        """Raise where there is nothing that this exit could learn to predict."""
        if plan.kind == "losses" and not plan.shapes:
            return  # the loss itself is what is predicted
        if not plan.call.labels_of(probe) or not plan.shapes:
            raise ValueError(
                "a tuned exit learns from logits and labels, and this model or batch gives no "
                f"{'logits' if not plan.shapes else 'labels'}: pass forward= and labels=, or choose exit=k"
            )
        if not plan.parts and plan.loss_fn is None:
            raise ValueError(
                "a tuned exit cannot learn what this model's labels mean, since they fit none of its "
                f"outputs {plan.shapes}: pass forward= and loss_fn=, or choose exit=k"
            )
        if plan.loss_fn is not None and any(len(shape) > 1 for shape in plan.shapes.values()):
            raise ValueError(
                f"a tuned exit predicts one value or vector a sample, not {plan.shapes}: choose exit=k"
            )
        for part in plan.parts:
            if part.labels in ("start_positions", "end_positions"):
                raise ValueError(
                    f"a tuned exit cannot predict {part.labels}, whose number of classes is the length of "
                    "each batch: choose exit=k"
                )
            if part.logits in plan.heads and self.path:
                raise StackError(
                    f"a tuned exit at {self.path!r} cannot reach the model's own head, which predicts at "
                    "every position: choose a block of its stack"
                )
            many = part.has_classes and len(plan.shapes[part.logits]) > 1
            if many and part.logits not in plan.heads:
                raise ValueError(
                    f"a tuned exit cannot predict {part.logits} at every position, since the model's head "
                    "cannot be run on its own (its logits are worked on afterwards): choose exit=k"
                )

    def score(self, plan: Plan, model: nn.Module, batch: Any, score: Score, learn: bool) -> Tensor:
        values: list[Tensor] = []
        outputs: dict[str, Tensor] = {}

        def on_part(part: Part, found: Rows | Tensor, labels: Tensor | None) -> None:
            if part.logits in plan.heads:  # the others are predicted from features below
                assert isinstance(found, Rows)
                values.append(self._translated(plan, part, found, score, learn))

        pooled_BF = self._features(plan, model, batch, on_part)
        if plan.kind == "losses" and score == "loss":
            return self._predicted_losses(plan, model, batch, pooled_BF, learn)
        by_user = plan.loss_fn is not None and score == "loss"
        for name, shape in plan.shapes.items():
            if name in plan.heads:
                continue
            labels = self._labels(plan, name, batch)
            if labels is None:
                continue  # an output that is not trained
            build = partial(Linear, pooled_BF, shape)
            predictor = self._predictor(name, pooled_BF.device, build)
            outputs[name] = predictor(pooled_BF).reshape(len(pooled_BF), *shape)
            if learn:
                predictor.study(partial(_objective, plan, name, predictor, pooled_BF, labels))
        if callable(score) and not plan.by_rows:
            if plan.heads:
                raise ValueError(
                    "a callable score= on a tuned exit needs one prediction a sample; this model "
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

    def _features(self, plan: Plan, model: nn.Module, batch: Any, consume: Consume) -> Tensor:
        """Run up to the exit, handing over parts that have a head; gives pooled features."""
        if self.stack is None:
            plan.check_batch(batch)
            module = get_module(model, self.path, "at")
            hidden = stopped_at(module, lambda: plan.call.run(model, batch))
            channels = channels_of(module)
        else:
            if plan.heads or sharded(model):
                with self.stack.truncated(self.k) as way:
                    plan.each_part(model, batch, consume)
                hidden = way.hidden
            else:
                plan.check_batch(batch)
                hidden = stopped_in(self.stack, self.k, lambda: plan.call.run(model, batch))
            channels = hidden.shape[-1] if not hidden.is_nested and hidden.ndim == 3 else None
        side = 1
        if hidden.ndim == 4:
            side = max(1, min(4, int(math.sqrt(WIDEST / hidden.shape[1]))))
        return pool(hidden.detach().float(), channels=channels, mask=mask_of(batch), side=side)

    def _predicted_losses(
        self, plan: Plan, model: nn.Module, batch: Any, pooled_BF: Tensor, learn: bool
    ) -> Tensor:
        """How high each loss is among its batch's, learned from the exact losses of some samples."""
        build = partial(Linear, pooled_BF, (1,))
        predictor = self._predictor("losses", pooled_BF.device, build)
        if learn:
            size = len(pooled_BF)
            rows = torch.arange(0, size, EXACT_EVERY if size > EXACT_EVERY else 1)
            exact_N = plan.exact_losses(model, plan.call.samples.take(batch, rows, size=size))
            assert exact_N is not None
            spread = exact_N.std().clamp_min(1e-12) if len(exact_N) > 1 else exact_N.new_ones(())
            wanted_N = ((exact_N - exact_N.mean()) / spread).to(pooled_BF.device)
            inputs_NF = pooled_BF[rows.to(pooled_BF.device)]

            def objective() -> tuple[Tensor, Tensor | float]:
                return F.huber_loss(predictor(inputs_NF).squeeze(1), wanted_N), len(rows)

            predictor.study(objective)
        return predictor(pooled_BF).squeeze(1).detach()

    def _labels(self, plan: Plan, name: str, batch: Any) -> Tensor | None:
        if plan.loss_fn is not None:
            return next(iter(plan.call.labels_of(batch).values()))
        for part in plan.parts:
            if part.logits == name:
                return plan.labels_for(part, batch)
        return None

    def _translated(self, plan: Plan, part: Part, rows: Rows, score: Score, learn: bool) -> Tensor:
        if callable(score) and not plan.by_rows:
            return torch.zeros(len(rows.mask_BT), device=rows.mask_BT.device)
        head = rows.head
        assert head is not None
        assert rows.labels_BT is not None
        inputs_BTH = rows.inputs_BTH
        translator = self._predictor(part.logits, inputs_BTH.device, lambda: Translator(inputs_BTH))
        if learn:
            chosen = rows.mask_BT.nonzero()
            # evenly spaced rather than drawn: no random stream is touched
            stride = -(-len(chosen) // self.rows) or 1
            b, t = chosen[::stride].unbind(dim=1)
            inputs_NH, labels_N = inputs_BTH[b, t], rows.labels_BT[b, t]

            def objective() -> tuple[Tensor, Tensor | float]:
                # a sum over no rows is 0, and so is its gradient
                losses = F.cross_entropy(
                    head(translator(inputs_NH)).float(), labels_N, reduction="sum"
                )
                return losses / max(1, len(labels_N)), len(labels_N)

            translator.study(objective)
        return plan.score(
            part, replace(rows, head=lambda inputs: head(translator(inputs))), None, score
        )

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

    def state_dict(self) -> dict[str, Any]:
        return {name: predictor.state_dict() for name, predictor in self.predictors.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        found = Plain(state, "the exit")
        self.predictors = {name: found.made(name, Predictor.load) for name in found}


def _objective(
    plan: Plan, name: str, predictor: Predictor, inputs: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor | float]:
    """What a head of its own is trained on: the loss of the model's own, averaged, and over what."""
    predicted = predictor(inputs).reshape(len(inputs), *plan.shapes[name])
    labels = labels.to(predicted.device)
    if plan.loss_fn is not None:
        return plan.loss_fn(predicted, labels).mean(), len(labels)
    part = next(part for part in plan.parts if part.logits == name)
    if not part.has_classes:
        return part_losses(part, predicted, labels).mean(), len(labels)
    if part.kind == "soft":
        return F.cross_entropy(predicted, labels), len(labels)
    rows = rows_of(part, predicted, labels)
    assert rows.labels_BT is not None
    kept_BT = rows.mask_BT
    safe_BT = rows.labels_BT.clamp_min(0)
    losses_BT = F.cross_entropy(rows.inputs_BTH.flatten(0, 1), safe_BT.flatten(), reduction="none")
    count = kept_BT.sum()
    return (losses_BT * kept_BT.flatten()).sum() / count.clamp_min(1), count
