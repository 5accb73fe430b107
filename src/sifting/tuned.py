"""The tuned exit: a light predictor of the labels on early features, trained as it scores.

An exit that shares weights with the model decays: what it calls hard is trained until the deep
layers know it by heart, and the exit, which sees none of that, keeps choosing it; in an additive
exit the deep branch even learns to cancel the exit's error. A predictor trained on every
candidate it scores, on features it sends no gradient into, stays a predictor of the label.

Shapes: B samples, T positions, H features, C classes, N labelled positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.exits import Consume, Exit, Plan, custom_scores
from sifting.objective import IGNORE, Part, Rows, Score, part_losses, rows_of
from sifting.stack import Stack, StackError, exit_in_stack, find_stack, get_module
from sifting.stages import find_stage, stopped_at

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
            stack's depth, or the second stage of a network of stages.
        lr: learning rate of its own Adam.
        rows: labelled positions, at most, that one update of a translator uses.
    """

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
        self.predictors: dict[str, _Predictor] = {}

    def bind(self, model: nn.Module, stack: str | None) -> None:
        if isinstance(self.at, str):
            get_module(model, self.at, "at")
            try:
                self.stack, self.k = exit_in_stack(model, self.at)
            except StackError:
                self.path = self.at
        elif self.at is not None:
            self.stack, self.k = find_stack(model, stack), self.at
        else:
            try:
                self.stack = find_stack(model, stack)
                self.k = max(1, len(self.stack) // 12)
            except StackError:
                stage = find_stage(model)
                if stage is None:
                    raise
                self.path = stage
        if self.stack is not None:
            self.stack.check_exit(self.k)

    def prepare(self, plan: Plan) -> None:
        if not plan.parts or any(part.labels is None for part in plan.parts):
            raise ValueError(
                "a tuned exit learns from logits and labels, and this model or batch gives no "
                f"{'logits' if not plan.parts else 'labels'}: pass forward= and labels=, or choose exit=k"
            )
        for part in plan.parts:
            if part.logits in plan.heads and self.path:
                raise StackError(
                    f"a tuned exit at {self.path!r} cannot reach the model's own head, which predicts at "
                    "every position: choose a block of its stack"
                )

    def _run(self, plan: Plan, model: nn.Module, batch: Any, consume: Consume) -> Tensor:
        """Run up to the exit, handing over parts that have a head; gives the exit's features."""
        if self.stack is None:
            module = get_module(model, self.path, "at")
            return stopped_at(module, lambda: plan.call.run(model, batch))
        with self.stack.truncated(self.k) as way:
            plan.each_part(model, batch, consume)
        return way.hidden

    def score(self, plan: Plan, model: nn.Module, batch: Any, score: Score, learn: bool) -> Tensor:
        labels = plan.call.labels_of(batch)
        values: list[Tensor] = []
        outputs: dict[str, Tensor] = {}

        def on_part(part: Part, found: Rows | Tensor, wanted: Tensor | None) -> None:
            if part.logits not in plan.heads:
                return  # predicted from features below, not by the model's head
            assert isinstance(found, Rows)
            values.append(self._translated(plan, part, found, score, learn))

        pooled_BF = pool(self._run(plan, model, batch, on_part), batch)
        for part in plan.parts:
            if part.logits in plan.heads:
                continue
            predicted = self._predicted(plan, part, pooled_BF, labels[str(part.labels)], learn)
            outputs[part.logits] = predicted
            if not callable(score):
                wanted = labels[str(part.labels)]
                found = rows_of(part, predicted, wanted) if part.has_classes else predicted
                values.append(plan.score(part, found, wanted, score))
        if callable(score):
            if plan.heads:
                raise ValueError(
                    "a callable score= on a tuned exit needs one prediction a sample; this model "
                    "predicts at every position: use score='loss' or 'entropy', or exit=k"
                )
            return custom_scores(plan, score, outputs, batch)
        return torch.stack(values).sum(dim=0)

    def _predicted(
        self, plan: Plan, part: Part, pooled_BF: Tensor, labels: Tensor, learn: bool
    ) -> Tensor:
        """A part's logits by the exit's own head, which then learns from their labels."""
        shape = plan.shapes[part.logits]
        predictor = self._predictor(part, lambda: _Linear(pooled_BF, shape))

        def predict() -> Tensor:
            return predictor(pooled_BF).reshape(len(pooled_BF), *shape)

        predicted = predict()
        if learn:
            predictor.step(lambda: _objective(plan, part, predict(), labels))
        return predicted

    def _translated(self, plan: Plan, part: Part, rows: Rows, score: Score, learn: bool) -> Tensor:
        if callable(score):
            return torch.zeros(len(rows.mask_BT), device=rows.mask_BT.device)
        head = rows.head
        assert head is not None
        assert rows.labels_BT is not None
        translator = self._predictor(part, lambda: _Translator(rows.inputs_BTH))
        scored = replace(rows, head=lambda inputs: head(translator(inputs)))
        values = plan.score(part, scored, None, score)
        if learn:
            chosen = rows.mask_BT.nonzero()
            # evenly spaced rather than drawn: no random stream is touched
            stride = -(-len(chosen) // self.rows) or 1
            b, t = chosen[::stride].unbind(dim=1)
            inputs_NH, labels_N = rows.inputs_BTH[b, t], rows.labels_BT[b, t]
            if len(labels_N):
                translator.step(
                    lambda: F.cross_entropy(head(translator(inputs_NH)).float(), labels_N)
                )
        return values

    def _predictor(self, part: Part, build: Callable[[], _Predictor]) -> _Predictor:
        predictor = self.predictors.get(part.logits)
        if predictor is None:
            predictor = self.predictors[part.logits] = build()
        if not predictor.ready:
            predictor.start(self.lr)
        return predictor

    def state_dict(self) -> dict[str, Any]:
        return {name: predictor.state_dict() for name, predictor in self.predictors.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.predictors = {name: _Predictor.load(saved) for name, saved in state.items()}


class _Predictor:
    """A linear map with its own Adam, all zeros at first. Its arithmetic is single precision."""

    kind = 0

    def __init__(self, weight: Tensor, bias: Tensor, shape: tuple[int, ...]) -> None:
        self.weight = weight.requires_grad_()
        self.bias = bias.requires_grad_()
        self.shape = shape
        self.optimizer: torch.optim.Adam | None = None
        self.saved: dict[str, Any] | None = None

    @property
    def ready(self) -> bool:
        return self.optimizer is not None

    def start(self, lr: float) -> None:
        self.optimizer = torch.optim.Adam([self.weight, self.bias], lr=lr, betas=(0.9, 0.99))
        if self.saved is not None:
            state = self.optimizer.state_dict()
            state["state"] = self.saved
            self.optimizer.load_state_dict(state)
            self.saved = None

    def _linear(self, features: Tensor) -> Tensor:
        device = features.device
        if self.weight.device != device:  # loaded before the model was moved
            self.weight.data, self.bias.data = (
                self.weight.data.to(device),
                self.bias.data.to(device),
            )
        with torch.autocast(device.type, enabled=False):
            normal = F.layer_norm(features.float(), features.shape[-1:])
            return F.linear(normal, self.weight, self.bias)

    def __call__(self, features: Tensor) -> Tensor:
        return self._linear(features)

    def step(self, objective: Callable[[], Tensor]) -> None:
        """One update of these weights and nothing else: no `.grad` of the model is touched."""
        assert self.optimizer is not None
        with torch.enable_grad():
            grads = torch.autograd.grad(objective(), [self.weight, self.bias])
        if not all(bool(torch.isfinite(grad).all()) for grad in grads):
            return  # a broken batch must not break the exit for good
        self.weight.grad, self.bias.grad = grads
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "kind": self.kind,
            "weight": self.weight.detach().clone(),
            "bias": self.bias.detach().clone(),
            "shape": list(self.shape),
        }
        if self.optimizer is not None:
            moments = self.optimizer.state_dict()["state"]
            state["moments"] = {
                index: {name: value.clone() for name, value in slots.items()}
                for index, slots in moments.items()
            }
        return state

    @staticmethod
    def load(state: Mapping[str, Any]) -> _Predictor:
        kind = _Translator if state["kind"] == _Translator.kind else _Linear
        predictor = kind.__new__(kind)
        shape = tuple(int(n) for n in state["shape"])
        _Predictor.__init__(predictor, state["weight"].clone(), state["bias"].clone(), shape)
        predictor.saved = dict(state.get("moments") or {}) or None
        return predictor


class _Linear(_Predictor):
    """Pooled features to one sample's outputs."""

    kind = 1

    def __init__(self, features_BF: Tensor, shape: tuple[int, ...]) -> None:
        outputs = 1
        for size in shape:
            outputs *= size
        zeros = torch.zeros(outputs, features_BF.shape[1], device=features_BF.device)
        super().__init__(zeros, torch.zeros(outputs, device=features_BF.device), shape)


class _Translator(_Predictor):
    """A residual map on the inputs of the model's own head: nothing at first."""

    kind = 2

    def __init__(self, inputs_BTH: Tensor) -> None:
        width, device = inputs_BTH.shape[-1], inputs_BTH.device
        zeros = torch.zeros(width, width, device=device)
        super().__init__(zeros, torch.zeros(width, device=device), (width,))

    def __call__(self, features: Tensor) -> Tensor:
        return features + self._linear(features).to(features.dtype)


def _objective(plan: Plan, part: Part, predicted: Tensor, labels: Tensor) -> Tensor:
    """What a head of its own is trained on: the part's loss, averaged."""
    if part.kind == "custom":
        assert plan.loss_fn is not None
        return plan.loss_fn(predicted, labels).mean()
    if not part.has_classes:
        return part_losses(part, predicted, labels).mean()
    if part.kind == "classes":
        predicted = predicted.reshape(-1, predicted.shape[-1])
        labels = labels.reshape(-1)
    return F.cross_entropy(predicted, labels, ignore_index=IGNORE)


def pool(hidden: Tensor, batch: Any) -> Tensor:
    """Features of each sample from a layer's output: a grid for maps, a mean for sequences.

    >>> pool(torch.zeros(2, 16, 8, 8), None).shape, pool(torch.zeros(2, 5, 7), None).shape
    (torch.Size([2, 256]), torch.Size([2, 7]))
    """
    hidden = hidden.detach().float()
    if hidden.ndim == 4:
        side = max(1, min(4, int((WIDEST / hidden.shape[1]) ** 0.5)))
        return F.adaptive_avg_pool2d(hidden, side).flatten(1)
    if hidden.ndim == 3:
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        if isinstance(mask, Tensor) and mask.shape == hidden.shape[:2]:
            weights_BT = mask.to(hidden.dtype)
            total_B = weights_BT.sum(dim=1, keepdim=True).clamp_min(1)
            return torch.einsum("bth,bt->bh", hidden, weights_BT) / total_B
        return hidden.mean(dim=1)
    return hidden.flatten(1)
