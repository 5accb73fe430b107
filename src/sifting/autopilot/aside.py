"""Everything that training a piece changes, kept and put back: to the last bit, in place."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sifting.data.by_index import OwnStreams
from sifting.model.no_trace import buffers_of, put_buffers_back
from sifting.rng import RandomState

PLAIN_VALUES = (bool, int, float, str, type(None))
HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class Aside:
    """Weights, gradients, buffers, modes, an optimizer and the random streams, as they are now.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> before = model[0].weight.clone()
    >>> aside = Aside(model, optimizer)
    >>> model(torch.randn(4, 2)).sum().backward(); optimizer.step()
    >>> aside.restore()
    >>> bool((model[0].weight == before).all()), len(optimizer.state), model[0].weight.grad
    (True, 0, None)

    The tensors stay the same objects: whoever holds one sees its old values again.

    Args:
        model: that is trained.
        optimizer: that trains it.
        data: a data set that is read, whose own generators are put back too.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, data: Any = None) -> None:
        self.model, self.optimizer = model, optimizer
        self._modes = [(module, module.training) for module in model.modules()]
        self._buffers = [(module, buffers_of(module)) for module in model.modules()]
        self._own_values = [(module, _own_values(module)) for module in model.modules()]
        groups = optimizer.param_groups
        found = [*model.parameters(), *(p for group in groups for p in group["params"])]
        self.weights = [(p, p.detach().clone()) for p in dict.fromkeys(found)]
        self._gradients = [
            (p, p.grad, None if p.grad is None else p.grad.detach().clone())
            for p, _ in self.weights
        ]
        self._groups = [
            {k: v if k == "lr" else copy.deepcopy(v) for k, v in group.items() if k != "params"}
            for group in groups
        ]
        self._state = [(key, own, _copied(own)) for key, own in optimizer.state.items()]
        self._counts = {k: v for k, v in vars(optimizer).items() if isinstance(v, PLAIN_VALUES)}
        self._streams = RandomState.now()
        self._own = [OwnStreams(holder) for holder in (data, *(vars(m) for m in model.modules()))]
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    @property
    def rates(self) -> list[float]:
        """Learning rates of the groups."""
        return [float(group["lr"]) for group in self._groups]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back."""
        for module, mode in self._modes:
            module.training = mode
        for module, copies in self._buffers:
            put_buffers_back(module, copies, always=True)
        for module, own in self._own_values:
            _put_values_back(module, own)
        for parameter, weights in self.weights:
            parameter.copy_(weights)
        for parameter, gradient, values in self._gradients:
            parameter.grad = gradient
            if gradient is not None and values is not None:
                gradient.copy_(values)  # a bucket's, under DDP, has been written to
        for group, kept in zip(self.optimizer.param_groups, self._groups, strict=True):
            for name in group.keys() - kept.keys() - {"params"}:
                del group[name]
            group.update({k: v if k == "lr" else copy.deepcopy(v) for k, v in kept.items()})
        self.optimizer.state.clear()
        for key, own, values in self._state:
            _put_back(own, values)
            self.optimizer.state[key] = own
        vars(self.optimizer).update(self._counts)
        self._streams.restore()
        for streams in self._own:
            streams.restore()
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)

    @contextmanager
    def used(self) -> Iterator[None]:
        """While open, the optimizer's hooks are mute; afterwards everything is put back."""
        hooks = {name: vars(self.optimizer)[name] for name in HOOKS if name in vars(self.optimizer)}
        vars(self.optimizer).update({name: OrderedDict() for name in hooks})
        try:
            yield
        finally:
            vars(self.optimizer).update(hooks)
            self.restore()


def _own_values(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """What a module keeps beside its buffers, with copies: a count of its forwards, a tensor of its own."""
    return {
        name: (value, value.detach().clone() if isinstance(value, Tensor) else value)
        for name, value in vars(module).items()
        if isinstance(value, (*PLAIN_VALUES, Tensor))
    }


def _put_values_back(module: nn.Module, values: dict[str, tuple[Any, Any]]) -> None:
    own = vars(module)
    for name in own.keys() - values.keys():
        if isinstance(own[name], (*PLAIN_VALUES, Tensor)):
            del own[name]  # of a forward in between
    for name, (value, kept) in values.items():
        if isinstance(value, Tensor) and not torch.equal(value, kept):
            value.copy_(kept)  # not for nothing: it may belong to a graph
        own[name] = value


def _copied(own: dict[Any, Any]) -> dict[Any, tuple[Any, Any]]:
    """Each entry with a copy."""
    return {
        name: (value, value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value))
        for name, value in own.items()
    }


def _put_back(own: dict[Any, Any], values: dict[Any, tuple[Any, Any]]) -> None:
    own.clear()
    for name, (value, kept) in values.items():
        if isinstance(value, Tensor):
            value.copy_(kept)
            own[name] = value
        else:
            own[name] = copy.deepcopy(kept)
