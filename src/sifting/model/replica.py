"""A copy of a model's modules over the same parameters: it can run while the model itself trains.

The parameters are the model's own. Modules, their modes, their hooks and their buffers are the copy's:
what training does to those (batch norm's statistics, modes, hooks) is not seen by a forward of the copy
that is under way, and what that does to its own (stand-ins, hooks that stop it) is not seen by training.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from sifting.parallel.detect import unwrap

SMALL = 2**16  # numbers of a buffer that is copied without asking whether it has changed
DEEP = 6  # how far into lists, dicts and functions of a module other modules are looked for

FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_HOOK_FLAGS = (
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
)
_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_APART = {
    *("_parameters", "_buffers", "_modules", "training", "_compiled_call_impl"),
    *(*FORWARD_HOOKS, *_HOOK_FLAGS, *_BACKWARD_HOOKS),
}
_MISSING = object()

Twin = Callable[[nn.Module], nn.Module]


class Replica:
    """A copy of a model's modules, in eval mode, over the same parameters.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> replica = Replica(model)
    >>> replica.model[0].weight is model[0].weight, replica.model.training, model.training
    (True, False, True)
    >>> _ = model(torch.randn(4, 2))    # moves the statistics of the model, not the copy's
    >>> bool(replica.model[1].running_mean.any()), bool(model[1].running_mean.any())
    (False, True)
    >>> replica.refresh()
    >>> torch.equal(replica.model[1].running_mean, model[1].running_mean)
    True

    Forward hooks are left out but for those of torch itself (norms of weights, pruning);
    `changing_hooks` tells whether that makes a difference. What is compiled inside the model is
    copied as it was before.

    Args:
        original: the model, without wrappers.
    """

    def __init__(self, original: nn.Module) -> None:
        self.original = original
        self._build()

    @property
    def model(self) -> nn.Module:
        """The copy."""
        return self.twin(self.original)

    def twin(self, module: nn.Module) -> nn.Module:
        """The copy of one of the model's modules; of any other, itself."""
        return self._twins.get(id(module), module)

    def refresh(self) -> None:
        """Take over what has changed in the model since: buffers, attributes, modules."""
        if any(
            list(module._modules.values()) != children or type(module) is not kind
            for module, kind, children in self._structure
        ):
            self._build()
            return
        for module, seen in self._seen:
            self._fill(module, self._twins[id(module)], seen)

    def _build(self) -> None:
        self._twins: dict[int, nn.Module] = {}
        self._copies: dict[int, tuple[Tensor, Tensor, int, int]] = {}
        self._structure: list[tuple[nn.Module, type, list[nn.Module | None]]] = []
        self._seen: list[tuple[nn.Module, dict[str, Any]]] = []
        wrapped = []
        for path, module in self.original.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                raise ValueError(
                    f"ahead=1: {path or 'the model'} is a {type(module).__name__} of TorchScript, whose modules "
                    "cannot be copied over the same parameters: leave out ahead="
                )
            self._structure.append((module, type(module), list(module._modules.values())))
            if unwrap(module) is not module:
                wrapped.append(module)
                continue
            twin = object.__new__(type(module))
            self._twins[id(module)] = twin
            self._seen.append((module, {}))
        for module in wrapped:  # a compiled graph and DDP's forward are the training step's
            self._twins[id(module)] = self._twins[id(unwrap(module))]
        for module, seen in self._seen:
            self._fill(module, self._twins[id(module)], seen)

    def _fill(self, module: nn.Module, twin: nn.Module, seen: dict[str, Any]) -> None:
        own, theirs = twin.__dict__, module.__dict__
        for name, value in theirs.items():
            if name in _APART:
                continue
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                own[name] = self._copied(value, always=False)
            elif seen.get(name, _MISSING) is not value:
                seen[name], own[name] = value, swapped(value, DEEP, self.twin)
        for name in [name for name in own if name not in theirs]:
            del own[name]
            seen.pop(name, None)
        own["training"], own["_compiled_call_impl"] = False, None
        own["_parameters"] = dict(theirs["_parameters"])
        always = isinstance(module, _NormBase)  # its kernels do not tell that they write
        own["_buffers"] = {
            name: None if buffer is None else self._copied(buffer, always=always)
            for name, buffer in theirs["_buffers"].items()
        }
        own["_modules"] = {
            name: None if child is None else self.twin(child)
            for name, child in theirs["_modules"].items()
        }
        for name in FORWARD_HOOKS:
            kept = {key: hook for key, hook in theirs[name].items() if of_torch(hook)}
            own[name] = OrderedDict(kept)
        for name in _HOOK_FLAGS:
            own[name] = OrderedDict(theirs[name])
        for name in _BACKWARD_HOOKS:
            own[name] = OrderedDict()

    def _copied(self, tensor: Tensor, *, always: bool) -> Tensor:
        """A copy of a tensor, made again where it, or the copy, may have changed."""
        known = self._copies.get(id(tensor))
        if known is not None and known[0] is tensor:
            _, copy, version, own = known
            if copy.shape == tensor.shape and copy.device == tensor.device:
                same = (tensor._version, copy._version) == (version, own)
                if always or not same or tensor.numel() <= SMALL:
                    with torch.no_grad():
                        copy.copy_(tensor.detach())
                    self._copies[id(tensor)] = (tensor, copy, tensor._version, copy._version)
                return copy
        copy = tensor.detach().clone()
        self._copies[id(tensor)] = (tensor, copy, tensor._version, copy._version)
        return copy


def deep_copy(model: nn.Module) -> nn.Module:
    """A deep copy of a model, which runs its own modules where somebody has put a forward around the model's.

    >>> def twice(inner):
    ...     return lambda x: 2 * inner(x)
    >>> model = nn.Linear(2, 2)
    >>> model.forward = twice(model.forward)    # holds the model's own method
    >>> copied = deep_copy(model)
    >>> _ = nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    >>> bool(copied(torch.ones(1, 2)).any()), bool(deepcopy(model)(torch.ones(1, 2)).any())
    (True, False)
    """
    copied = deepcopy(model)
    pairs = list(zip(model.modules(), copied.modules(), strict=True))
    twins = {id(module): twin for module, twin in pairs}
    for module, twin in pairs:
        for name, value in vars(module).items():
            if isinstance(value, FunctionType | MethodType | functools.partial):
                vars(twin)[name] = swapped(value, DEEP, lambda one: twins.get(id(one), one))
    return copied


def swapped(value: Any, depth: int, twin: Twin) -> Any:
    """A value of a module with a model's modules in it replaced by their copies; itself where it holds none.

    Args:
        value: anything that a module may have as an attribute.
        depth: how far into it modules are looked for.
        twin: the copy of one of the model's modules; of any other, itself.
    """
    if isinstance(value, nn.Module):
        return twin(value)
    if isinstance(value, MethodType):
        bound = swapped(value.__self__, 0, twin)
        called = swapped(value.__func__, depth, twin)
        same = bound is value.__self__ and called is value.__func__
        return value if same else MethodType(called, bound)
    if depth == 0:
        return value
    if isinstance(value, FunctionType) and value.__closure__:
        return _reclosed(value, depth, twin)
    if _decorates(value):
        there = vars(value)
        found = {name: swapped(one, depth - 1, twin) for name, one in there.items()}
        if all(there[name] is one for name, one in found.items()):
            return value
        decorator = object.__new__(type(value))
        vars(decorator).update(found)
        return decorator
    if isinstance(value, functools.partial):
        inner = [value.func, value.args, value.keywords]
        new = [swapped(one, depth - 1, twin) for one in inner]
        if all(a is b for a, b in zip(inner, new, strict=True)):
            return value
        return functools.partial(new[0], *new[1], **new[2])
    if type(value) in (list, tuple, set):
        items = [swapped(one, depth - 1, twin) for one in value]
        if all(a is b for a, b in zip(value, items, strict=True)):
            return value  # the very object: what the model adds to it is seen
        return type(value)(items)
    if type(value) in (dict, OrderedDict):
        pairs = {key: swapped(one, depth - 1, twin) for key, one in value.items()}
        if all(value[key] is one for key, one in pairs.items()):
            return value
        return type(value)(pairs)
    return value


def _decorates(value: Any) -> bool:
    """Whether a value is an object that somebody has put around a function (Accelerate does, for autocast)."""
    made_plainly = getattr(type(value), "__new__", None) is object.__new__
    return made_plainly and callable(value) and "__wrapped__" in getattr(value, "__dict__", {})


def _reclosed(function: FunctionType, depth: int, twin: Twin) -> FunctionType:
    """A function whose closure holds the model's modules or their methods (a forward that somebody put
    around the model's own), with their copies there.
    """
    cells = []
    for cell in function.__closure__ or ():
        try:
            inside = cell.cell_contents
        except ValueError:  # nothing is in it yet
            cells.append(cell)
            continue
        new = swapped(inside, depth - 1, twin)
        cells.append(cell if new is inside else CellType(new))
    if all(a is b for a, b in zip(cells, function.__closure__ or (), strict=True)):
        return function
    made = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(cells),
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    return made


def of_torch(hook: Any) -> bool:
    """Whether a hook is one of torch's own.

    >>> of_torch(torch.nn.utils.parametrize.cached), of_torch(lambda module, args: None)
    (True, False)
    """
    while isinstance(hook, functools.partial):
        hook = hook.func
    if isinstance(hook, MethodType):
        hook = type(hook.__self__)
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return str(home).split(".")[0] == "torch"


@contextmanager
def changing_hooks(model: nn.Module) -> Iterator[list[str]]:
    """While open, forwards of a model note which of its hooks, but for torch's own, change something.

    Yields the modules that they are on, as a message names them.
    """
    found: list[str] = []
    replaced: list[tuple[dict[int, Any], int, Any]] = []

    def watched(hook: Any, path: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = hook(*args, **kwargs)
            if result is not None:
                found.append(f"{path or 'the model'!r} ({getattr(hook, '__qualname__', hook)})")
            return result

        return call

    for path, module in model.named_modules():
        for name in FORWARD_HOOKS:
            hooks = module.__dict__[name]
            for key, hook in list(hooks.items()):
                if not of_torch(hook):
                    replaced.append((hooks, key, hook))
                    hooks[key] = watched(hook, path)
    try:
        yield found
    finally:
        for hooks, key, hook in replaced:
            if key in hooks:
                hooks[key] = hook


@contextmanager
def modules_run(model: nn.Module) -> Iterator[list[str]]:
    """While open, the paths of a model's modules are noted when they are called."""
    found: list[str] = []
    handles = [
        module.register_forward_pre_hook(lambda module, args, path=path: found.append(path))
        for path, module in model.named_modules()
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
