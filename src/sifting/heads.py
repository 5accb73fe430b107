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


@dataclass(frozen=True, eq=False)
class Head:
    """A module that turns each position's features into logits, independently of the others.

    Attributes:
        module: the module, e.g. BERT's transform and decoder together.
        width: number of logits a position.
    """

    module: nn.Module
    width: int

    @contextmanager
    def intercepted(self, intercept: Intercept) -> Iterator[None]:
        """While open, the head's inputs go to `intercept` and its logits are never made.

        The model gets a stand-in of the right shape that takes no memory. The interception
        happens inside the model's forward, where sharded parameters are gathered.
        """
        module = self.module
        original = module.forward
        had_own = "forward" in module.__dict__

        def forward(inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            intercept(inputs, original)
            return inputs.new_zeros(()).expand(*inputs.shape[:-1], self.width)

        module.__dict__["forward"] = forward
        try:
            yield
        finally:
            if had_own:
                module.__dict__["forward"] = original
            else:
                del module.__dict__["forward"]


def find_head(
    model: nn.Module,
    run: Callable[[], dict[str, Tensor]],
    name: str,
    *,
    shape: torch.Size | None = None,
) -> Head | None:
    """The outermost module whose output is the model's logits and which works by position.

    Both are checked on the batch that `run` puts through the model. None where the logits are
    worked on after the last module, or that module mixes positions: the head then runs whole.

    Args:
        model: the model, in eval mode, without gradients.
        run: runs it and returns its logits by name.
        name: the logits meant.
        shape: that of the logits, where it is known: all other outputs are then let go at once.
    """
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if (
            isinstance(output, Tensor)
            and output.ndim == 3
            and (shape is None or output.shape == shape)
            and len(args) == 1
            and isinstance(args[0], Tensor)
            and args[0].is_floating_point()
            and args[0].shape[:2] == output.shape[:2]
        ):
            seen.append((module, args[0], output))

    handles = [
        module.register_forward_hook(note) for module in model.modules() if module is not model
    ]
    try:
        logits = run()[name]
    finally:
        for handle in handles:
            handle.remove()
    # the outermost module returns last
    for module, inputs, output in reversed(seen):
        same = output is logits or (
            output.data_ptr() == logits.data_ptr() and output.shape == logits.shape
        )
        if same and _by_position(module, inputs, output):
            return Head(module, int(output.shape[-1]))
    return None


def _by_position(module: nn.Module, inputs_BTH: Tensor, output_BTC: Tensor) -> bool:
    step = max(2, inputs_BTH.shape[0] * inputs_BTH.shape[1] // CHECKED_ROWS)
    flat_NH, expected_NC = inputs_BTH.flatten(0, 1)[1::step], output_BTC.flatten(0, 1)[1::step]
    try:
        got_NC = module.forward(flat_NH)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    if not isinstance(got_NC, Tensor) or got_NC.shape != expected_NC.shape:
        return False
    low = output_BTC.dtype in (torch.float16, torch.bfloat16)
    return torch.allclose(
        got_NC, expected_NC, rtol=1e-2 if low else 1e-4, atol=1e-2 if low else 1e-4
    )
