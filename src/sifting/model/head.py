"""The model's head on single positions: finding it, and running it only where labels are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CHECKED_ROWS = 32  # positions, about, that show whether a head works by position

# What is done in place of a head: (its inputs, the head itself) -> None
Intercept = Callable[[Tensor, Callable[[Tensor], Tensor]], None]
Finish = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Head:
    """A module that turns each position's features into logits, independently of the others.

    Attributes:
        path: where it is in the model.
        module: the module, e.g. BERT's transform and decoder together.
        width: number of logits per position.
        finish: what the model does to the module's output: nothing, a cast, a scale, a cap.
        bare: whether that is nothing.
    """

    path: str
    module: nn.Module
    width: int
    finish: Finish
    bare: bool = True

    @contextmanager
    def intercepted(self, intercept: Intercept) -> Iterator[None]:
        """While open, the head's inputs go to `intercept` and its logits are never made.

        The model gets a stand-in that takes no memory: of the right shape, or, where it goes on to
        work on its logits, of one logit per position. The interception happens inside the model's
        forward, where sharded parameters are gathered.
        """
        module = self.module
        original = module.forward
        had_own = "forward" in module.__dict__

        def head(inputs: Tensor) -> Tensor:
            return self.finish(original(inputs))

        # what the model does to its logits (a cap, a cast) would write a stand-in of full width out
        width = self.width if self.bare else 1

        def forward(inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            intercept(inputs, head)
            return inputs.new_zeros(()).expand(*inputs.shape[:-1], width)

        module.__dict__["forward"] = forward
        try:
            yield
        finally:
            if had_own:
                module.__dict__["forward"] = original
            else:
                del module.__dict__["forward"]


def find_head(
    model: nn.Module, run: Callable[[], dict[str, Tensor]], name: str, shape: torch.Size
) -> Head | None:
    """The outermost module that gives the model's logits and works position by position.

    Both are checked on the batch that `run` puts through the model, inside its forward, where
    sharded parameters are gathered. None where the module mixes positions, or where what follows
    it is more than a cast, a scale or a cap: the head then runs whole.

    Args:
        model: the model, in eval mode, without gradients.
        run: runs it and returns its logits by name.
        name: the logits meant.
        shape: their shape; outputs of other shapes are let go at once.
    """
    # with the storage itself, whose address would else be used again by what comes after
    seen: list[tuple[str, nn.Module, Tensor, torch.UntypedStorage]] = []

    def noting(path: str) -> Callable[..., None]:
        def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if (
                isinstance(output, Tensor)
                and output.shape == shape
                and len(args) == 1
                and isinstance(args[0], Tensor)
                and args[0].is_floating_point()
                and args[0].shape[:2] == output.shape[:2]
            ):
                output_NC = _some(output).clone()
                if _by_position(module, _some(args[0]), output_NC):
                    seen.append((path, module, output_NC, output.untyped_storage()))

        return note

    handles = [
        # before any other hook: one of those frees the parameters of a sharded module
        module.register_forward_hook(noting(path), prepend=True)
        for path, module in model.named_modules()
        if path
    ]
    try:
        logits = run()[name]
    finally:
        for handle in handles:
            handle.remove()
    cap = getattr(getattr(model, "config", None), "final_logit_softcapping", None)
    wanted_NC = _some(logits)
    # the outermost module returns last
    place = logits.untyped_storage().data_ptr()
    for path, module, output_NC, storage in reversed(seen):
        finish = _finish(output_NC, wanted_NC, cap)
        if finish is not None:
            return Head(path, module, shape[-1], finish, bare=storage.data_ptr() == place)
    return None


def _some(values_BTX: Tensor) -> Tensor:
    """Some positions, from all over."""
    step = max(2, values_BTX.shape[0] * values_BTX.shape[1] // CHECKED_ROWS)
    return values_BTX.flatten(0, 1)[1::step]


def _finish(output: Tensor, logits: Tensor, cap: float | None) -> Finish | None:
    """What turns the module's output into the logits, if it is one of the usual things."""
    dtype = logits.dtype
    ways: list[Finish] = []
    if cap:  # first: the small logits of an untrained model look the same without it
        ways.append(lambda z: (torch.tanh(z / cap) * cap).to(dtype))
    ways.append(lambda z: z.to(dtype))
    most = output.abs().argmax()
    if float(output.flatten()[most]) != 0:
        scale = float(logits.flatten()[most]) / float(output.flatten()[most])
        ways.append(lambda z: (z * scale).to(dtype))
    return next((way for way in ways if _close(way(output), logits)), None)


def _by_position(module: nn.Module, inputs_NH: Tensor, expected_NC: Tensor) -> bool:
    try:
        got_NC = module.forward(inputs_NH)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    if not isinstance(got_NC, Tensor) or got_NC.shape != expected_NC.shape:
        return False
    return _close(got_NC, expected_NC)


def _close(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding, by the scale of the whole: an untrained head's logits are all small."""
    low = {a.dtype, b.dtype} & {torch.float16, torch.bfloat16}
    error = float((a.float() - b.float()).abs().max())
    return error <= (2e-2 if low else 1e-4) * float(b.float().abs().max())
