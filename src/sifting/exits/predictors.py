"""The learned part of a tuned exit: small linear maps with an Adam of their own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from sifting.plain import Plain, damaged

WIDTH = "width"  # in place of a learning rate: by the number of features
Rate = float | Literal["width"]
# Adam moves each weight by its rate, and features are of size 1: so far an update moves an output, about.
# With 64 to 1024 features on four tasks, heads ranked best at 0.15 to 2; slower ones begin behind.
REACH = 0.5
FASTEST = 0.01  # also of few features
# A mean loss, and the number of samples or positions that it is the mean of.
MeanLoss = Callable[[], tuple[Tensor, Tensor | float]]
# The mean of all ranks' gradients by their weights; zeros where all weights are 0.
Average = Callable[[list[Tensor], Tensor | float], list[Tensor]]


class Predictor:
    """A linear map with its own Adam, all zeros at first. Its arithmetic is single precision."""

    kind = 0

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight = weight
        self.bias = bias
        self.moments: dict[Any, Any] = {}  # of the optimizer, until it is made
        self.optimizer: torch.optim.Adam | None = None
        self.checked = False  # against the model it is used with
        self.lessons: list[tuple[list[Tensor], Tensor | float]] = []  # gradients, samples

    def rate(self, lr: Rate) -> float:
        """The learning rate that `lr` stands for with these weights."""
        return FASTEST if isinstance(lr, str) else lr

    def ready(self, device: torch.device, lr: Rate) -> None:
        """Be on a device, with an optimizer for the weights that are there."""
        if self.optimizer is not None and self.weight.device == device:
            return
        if self.optimizer is not None:
            self.moments = self.optimizer.state_dict()["state"]
        self.weight = self.weight.detach().to(device).requires_grad_()
        self.bias = self.bias.detach().to(device).requires_grad_()
        self.optimizer = torch.optim.Adam(
            [self.weight, self.bias], lr=self.rate(lr), betas=(0.9, 0.99)
        )
        if self.moments:
            state = self.optimizer.state_dict()
            self.optimizer.load_state_dict({**state, "state": self.moments})
            self.moments = {}

    def linear(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            normal = F.layer_norm(features.float(), features.shape[-1:])
            return F.linear(normal, self.weight, self.bias)

    def __call__(self, features: Tensor) -> Tensor:
        return self.linear(features)

    def study(self, objective: MeanLoss) -> None:
        """Take the gradients of these weights and nothing else: no `.grad` of the model is touched.

        It happens in the model's forward, where the head's parameters are gathered if they are
        sharded. The weights change in `step`.
        """
        with torch.enable_grad():
            mean, weight = objective()
            self.lessons.append((list(torch.autograd.grad(mean, [self.weight, self.bias])), weight))

    def aside(self) -> Predictor:
        """The same weights, for lessons that are kept apart from these."""
        made = copy.copy(self)
        made.lessons = []
        return made

    def take_in(self, lessons: Sequence[Any]) -> None:
        """Add lessons that were kept apart, or saved."""
        for grads, weight in lessons:
            there = [grad.to(self.weight.device) for grad in grads]
            self.lessons.append((there, weight))

    def step(self, average: Average | None = None) -> None:
        """One update on all lessons since the last, of all ranks where `average` is given."""
        assert self.optimizer is not None
        lessons, self.lessons = self.lessons, []
        if not lessons:
            return
        grads, weight = lessons[0]
        if len(lessons) > 1:
            weight = sum(w for _, w in lessons)
            total = max(1, weight) if not isinstance(weight, Tensor) else weight.clamp_min(1)
            grads = [
                torch.stack([w * g for (_, w), g in zip(lessons, column, strict=True)]).sum(0)
                / total
                for column in zip(*(found for found, _ in lessons), strict=True)
            ]
        if average is not None:
            grads = average(grads, weight)
        elif not isinstance(weight, Tensor) and weight == 0:
            return  # nothing was labelled
        # a broken batch must not break the exit for good; zeros instead of a branch spare a sync
        sound = torch.stack([grad.isfinite().all() for grad in grads]).all()
        self.weight.grad, self.bias.grad = (torch.where(sound, grad, 0.0) for grad in grads)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        moments = self.optimizer.state_dict()["state"] if self.optimizer else self.moments
        return {
            "kind": self.kind,
            "weight": self.weight.detach().clone(),
            "bias": self.bias.detach().clone(),
            "moments": {
                index: {name: value.clone() for name, value in slots.items()}
                for index, slots in moments.items()
            },
        }

    @staticmethod
    def load(state: Mapping[str, Any]) -> Predictor:
        """The predictor that a state was taken of.

        Raises:
            ValueError: where there can be none such.
        """
        found = Plain(state, "a predictor of the exit")
        kinds = {each.kind: each for each in (Linear, Translator)}
        if found.get("kind") not in tuple(kinds):
            found.refuse("kind", f"one of {', '.join(map(str, kinds))}")
        kind = kinds[found.get("kind")]
        weight = _sound(found, "weight", found.tensor("weight", dims=2))
        bias = _sound(found, "bias", found.tensor("bias", shape=weight.shape[:1]))
        predictor = kind.__new__(kind)
        Predictor.__init__(predictor, weight.clone(), bias.clone())
        predictor.moments = _moments(found.get("moments"), [weight, bias])
        return predictor


def _sound(found: Plain, name: str, value: Tensor) -> Tensor:
    if not value.is_floating_point() or not bool(value.isfinite().all()):
        found.refuse(name, "a tensor of finite numbers")
    return value.detach()


def _moments(plain: Any, weights: list[Tensor]) -> dict[int, dict[str, Tensor]]:
    """What Adam remembers of each of the weights: nothing before its first step."""
    if plain == {}:
        return {}
    moments = {}
    everyones = Plain(
        {str(i): slots for i, slots in dict(Plain(plain, "its moments").content).items()},
        "its moments",
    )
    for index, weight in enumerate(weights):
        slots = everyones.inside(str(index))
        moments[index] = {
            name: _sound(
                slots, name, slots.tensor(name, shape=() if name == "step" else weight.shape)
            ).clone()
            for name in ("step", "exp_avg", "exp_avg_sq")
        }
    return moments


class Linear(Predictor):
    """Pooled features to one sample's outputs.

    >>> head = Linear(torch.zeros(2, 512), (10,))
    >>> head.rate(0.003), head.rate("width")
    (0.003, 0.0009765625)
    """

    kind = 1

    def rate(self, lr: Rate) -> float:
        return min(FASTEST, REACH / self.weight.shape[1]) if isinstance(lr, str) else lr

    def __init__(self, features_BF: Tensor, shape: tuple[int, ...]) -> None:
        outputs, device = math.prod(shape), features_BF.device
        super().__init__(
            torch.zeros(outputs, features_BF.shape[1], device=device),
            torch.zeros(outputs, device=device),
        )


class Translator(Predictor):
    """A residual map on the inputs of the model's own head: nothing at first."""

    kind = 2

    def __init__(self, inputs_BTH: Tensor) -> None:
        width, device = inputs_BTH.shape[-1], inputs_BTH.device
        super().__init__(
            torch.zeros(width, width, device=device), torch.zeros(width, device=device)
        )

    def __call__(self, features: Tensor) -> Tensor:
        return features + self.linear(features).to(features.dtype)


def checked_rate(lr: Rate) -> Rate:
    """A learning rate, if it is one."""
    if lr != WIDTH and (isinstance(lr, bool | str) or not lr > 0):
        raise ValueError(f"lr={lr!r} must be above 0, or {WIDTH!r}: by the number of features")
    return lr


def checked_lessons(found: Plain, learned: Mapping[str, Any]) -> dict[str, Any]:
    """What an exit set aside to be learned, as a state has it, for predictors that it has.

    Args:
        found: lessons by predictor, or a count.
        learned: the exit's own state.
    """
    for name in found:
        if name not in learned:
            raise damaged(f"{found.called} is of {name!r}, which the exit has not learned")
        if not isinstance(found.get(name), list | tuple):
            found.whole(name)
            continue
        own = Plain(learned[name], f"{name!r} of the exit")
        shapes = [own.tensor("weight").shape, own.tensor("bias").shape]
        for lesson in found.items(name):
            if not _is_lesson(lesson, shapes):
                found.refuse(name, "gradients of its weights, each list of them with a number")
    return dict(found.content)


def _is_lesson(lesson: Any, shapes: Sequence[torch.Size]) -> bool:
    """Whether it is gradients of these shapes, and their weight."""
    if not isinstance(lesson, list | tuple) or len(lesson) != 2:
        return False
    grads, weight = lesson
    if not isinstance(grads, list | tuple) or not all(isinstance(grad, Tensor) for grad in grads):
        return False
    known = isinstance(weight, int | float) or getattr(weight, "ndim", None) == 0
    return known and [grad.shape for grad in grads] == list(shapes)
