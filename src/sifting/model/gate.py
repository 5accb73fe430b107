"""Stand-ins: what takes a block's place in its container for the length of one forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

# What a stand-in does when it is called: (the block, its arguments, its named ones) -> output
Act = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]


class Gate(nn.Module):
    """Stands in for a block: does as it is told when called.

    Whatever else the model asks of the block (an attention type, say) the block answers.
    """

    def __init__(self, block: nn.Module, act: Act) -> None:
        super().__init__()
        object.__setattr__(self, "_block", block)  # not a submodule: the block is not ours
        object.__setattr__(self, "_act", act)
        self.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_act"](self.__dict__["_block"], args, kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_block"], name)


@contextmanager
def replaced(container: nn.Module, acts: Mapping[str, Act]) -> Iterator[None]:
    """While open, members of a container do something else; afterwards it holds what it held.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> with replaced(model, {"1": lambda block, args, kwargs: args[0]}):
    ...     model(torch.zeros(4, 2)).shape
    torch.Size([4, 3])
    """
    held = {name: container._modules[name] for name in acts}
    try:
        for name, act in acts.items():
            block = held[name]
            assert block is not None
            container._modules[name] = Gate(block, act)
        yield
    finally:
        container._modules.update(held)


@contextmanager
def with_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """While open, a module has another forward."""
    had = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if had is not None:
            module.__dict__["forward"] = had
        else:
            del module.__dict__["forward"]
