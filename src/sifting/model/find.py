"""Finding a model's stack of blocks, by its shape or by its path.

Nothing is known here about any architecture. A stack is a run of modules of one class, with
parameters of the same shapes, one after the other in a container.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from sifting.model.stack import Stack, StackError

# A run of blocks with less than this share of the parameters from there on (embeddings and
# vocabulary heads aside) is a part of the model, not its trunk: cutting it short saves little.
LEAST_SHARE = 0.4
LONGEST_PATTERN = 4  # modules that make one block in a flat nn.Sequential, e.g. Linear, ReLU


def find_stack(model: nn.Module, path: str | None = None) -> Stack:
    """The model's stack of blocks, found by its shape or named by a dotted path.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    >>> find_stack(model).path, len(find_stack(model))
    ('1', 2)

    Raises:
        StackError: where there is none, or several of about the same size; it lists them.
    """
    if path is not None:
        return _named_stack(model, path)
    rivals = find_stacks(model)
    if not rivals:
        raise StackError(
            f"no stack of repeated blocks found in {type(model).__name__}. Name one with "
            "stack='path.to.blocks'; or choose an exit that needs none: exit='last', "
            "TunedExit('path.to.module') or AdditiveExit(model, 'path.to.module')"
        )
    best = rivals[0]
    if len(rivals) > 1:
        raise StackError(
            f"{type(model).__name__} has {len(rivals)} stacks that could be meant: "
            + "; ".join(map(str, rivals))
            + ". Name one with stack='…'"
        )
    size = _parameter_count(best)
    share = size / max(1, size + _parameters_after(best, model))
    if share < LEAST_SHARE:
        raise StackError(
            f"no stack of repeated blocks makes up {type(model).__name__}: the largest, "
            f"{best}, holds {share:.0%} of the parameters "
            "from there on. "
            "Name it with stack='…' if it is meant; or use TunedExit('path.to.module') or "
            "AdditiveExit(model, 'path.to.module')"
        )
    return best


def find_stacks(model: nn.Module) -> list[Stack]:
    """All stacks of about the size of the largest, the largest first.

    >>> model = nn.ModuleDict({name: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for name in "ab"})
    >>> [stack.path for stack in find_stacks(model)]
    ['a', 'b']
    """
    found = _outermost(list(_candidates(model)))
    sizes = {stack.path: _parameter_count(stack) for stack in found}
    found.sort(key=lambda stack: -sizes[stack.path])
    return [s for s in found if sizes[s.path] > 0.1 * max(1, sizes[found[0].path])] or found[:1]


def exit_in_stack(model: nn.Module, path: str, argument: str = "exit") -> tuple[Stack, int]:
    """The stack that holds the module at a dotted path, and that module's place in it.

    >>> model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), nn.Linear(8, 2))
    >>> exit_in_stack(model, "0.1")[1]
    2
    """
    if isinstance(get_module(model, path, argument), nn.ModuleList):
        raise StackError(
            f"{argument}={path!r} is the stack, not a block of it: pass stack={path!r} and exit=1, 2, …"
        )
    parent, _, name = path.rpartition(".")
    if isinstance(get_module(model, parent, argument), nn.ModuleList | nn.Sequential):
        for stack in _stacks_in(parent, get_module(model, parent, argument), model):
            for place, names in enumerate(stack.blocks, start=1):
                if name in names:
                    return stack, place
    raise StackError(
        f"{argument}={path!r} is not a block of a stack, so the model's own head does not fit its output. "
        f"Use exit=TunedExit({path!r}) or exit=AdditiveExit(model, {path!r})"
    )


OTHERWISE = "Else give a block's number, 'last', 'tuned', 'input', 'auto' or MemoryExit()"


def get_module(model: nn.Module, path: str, argument: str) -> nn.Module:
    """`model.get_submodule` with an error that says what is there instead."""
    try:
        return model.get_submodule(path)
    except AttributeError:
        known = [name for name, _ in model.named_modules() if name]
        head = path.split(".")[0]
        near = [n for n in known if n.split(".")[-1] == path.split(".")[-1] or n.startswith(head)]
        raise ValueError(
            f"{argument}={path!r} names no module of {type(model).__name__}; "
            f"it has {', '.join(map(repr, (near or known)[:6]))}, …"
            + (f". {OTHERWISE}" if argument == "exit" else "")
        ) from None


def _named_stack(model: nn.Module, path: str) -> Stack:
    container = get_module(model, path, "stack")
    stacks = list(_stacks_in(path, container, model))
    if stacks:
        return max(stacks, key=len)
    children = [name for name, child in container._modules.items() if child is not None]
    if not isinstance(container, nn.ModuleList | nn.Sequential) or not children:
        raise StackError(
            f"stack={path!r} is a {type(container).__name__}: name an nn.ModuleList or nn.Sequential"
        )
    return Stack(path, container, tuple((name,) for name in children), model)


def _candidates(model: nn.Module) -> Iterator[Stack]:
    found = [
        stack
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
        for stack in _stacks_in(path, module, model)
    ]
    kinds = [type(stack.module(stack.blocks[0][0])) for stack in found]
    for stack, kind in zip(found, kinds, strict=True):
        # one block among others of its class is a stage's, not the one layer of a model
        if len(stack.blocks) > 1 or kinds.count(kind) == 1:
            yield stack


def _stacks_in(path: str, container: nn.Module, model: nn.Module) -> Iterator[Stack]:
    """The longest run of alike blocks in a container, if it has one."""
    names = [name for name, child in container._modules.items() if child is not None]
    children = [container._modules[name] for name in names]
    kinds = [_kind(child) for child in children if child is not None]
    best: tuple[int, int, int] | None = None  # blocks, start, pattern length
    widths = range(1, LONGEST_PATTERN + 1) if isinstance(container, nn.Sequential) else (1,)
    for width in widths:
        for start in range(len(kinds)):
            pattern = kinds[start : start + width]
            if len(pattern) < width or not pattern[0][1]:  # a block starts with parameters
                continue
            blocks = 1
            while _alike(pattern, kinds[start + blocks * width : start + (blocks + 1) * width]):
                blocks += 1
            if blocks >= 2 and (best is None or blocks * width > best[0] * best[2]):
                best = (blocks, start, width)
    if best is None and isinstance(container, nn.ModuleList) and len(names) == 1:
        best = (1, 0, 1)  # one block, for a model of one layer or one that shares it
    if best is None:
        return
    blocks, start, width = best
    config = _config(model, path)
    depth = getattr(config, "num_hidden_layers", None)
    if blocks == 1 and not isinstance(depth, int):
        return
    # layers that share their blocks (ALBERT): one block for all, or as many as there are groups
    shared = isinstance(depth, int) and blocks in (1, getattr(config, "num_hidden_groups", None))
    yield Stack(
        path,
        container,
        tuple(tuple(names[start + b * width : start + (b + 1) * width]) for b in range(blocks)),
        model,
        repeats=depth // blocks if shared and isinstance(depth, int) and depth % blocks == 0 else 1,
    )


def _config(model: nn.Module, path: str) -> Any:
    """The config of the nearest module above a path that has one."""
    while path:
        path = path.rpartition(".")[0]
        config = getattr(model.get_submodule(path), "config", None)
        if config is not None:
            return config
    return None


def _kind(module: nn.Module) -> tuple[type[nn.Module], dict[str, tuple[int, ...]]]:
    return type(module), {name: tuple(p.shape) for name, p in module.named_parameters()}


def _alike(pattern: list[Any], other: list[Any]) -> bool:
    """Same classes, and the same shape wherever both have a parameter of that name."""
    if len(pattern) != len(other):
        return False
    for (kind, shapes), (other_kind, other_shapes) in zip(pattern, other, strict=True):
        common = shapes.keys() & other_shapes.keys()
        if kind is not other_kind or any(shapes[n] != other_shapes[n] for n in common):
            return False
        if max(len(shapes), len(other_shapes)) > 2 * max(1, len(common)):
            return False
    return True


def _outermost(stacks: list[Stack]) -> list[Stack]:
    """Drop stacks inside another's blocks: attention heads, experts, the layers of a group."""
    return [
        stack
        for stack in stacks
        if not any(
            stack is not other
            and (
                stack.path == other.path
                or stack.path.startswith(f"{other.path}." if other.path else "")
            )
            and any(
                stack.container is inner
                for names in other.blocks
                for name in names
                for inner in other.module(name).modules()
            )
            for other in stacks
        )
    ]


def _parameter_count(stack: Stack) -> int:
    return sum(
        p.numel()
        for names in stack.blocks
        for name in names
        for p in stack.module(name).parameters()
    )


def _parameters_after(stack: Stack, model: nn.Module) -> int:
    """Parameters registered after the stack's, embeddings and vocabulary heads aside."""
    aside = {
        id(p)
        for m in model.modules()
        if isinstance(m, nn.Embedding)
        or (isinstance(m, nn.Linear) and m.out_features > 8 * m.in_features)
        for p in m.parameters(recurse=False)
    }
    own = {id(p) for names in stack.blocks for n in names for p in stack.module(n).parameters()}
    parameters = list(model.parameters())
    last = max((i for i, p in enumerate(parameters) if id(p) in own), default=-1)
    return sum(p.numel() for p in parameters[last + 1 :] if id(p) not in aside)
