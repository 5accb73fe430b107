"""Features on the way through a model: stopping it at a module, and averages over positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from sifting.data.member import own_size
from sifting.data.tree import is_graph, leaves
from sifting.model.stack import Stack
from sifting.model.values import first_tensor, tensors_in

LARGEST_CELL = 4  # a side: larger ones are averaged as fast by torch
WIDEST = 2048  # features that a head of its own gets of a sample at most
COARSE = 16  # cells a side to which an image is averaged, where it is looked at before the model


class Stopped(Exception):
    """Carries a module's output out of a forward that need not go on."""

    def __init__(self, output: Any) -> None:
        super().__init__("stopped at an exit")
        self.output = output


def stopped_at(module: nn.Module, run: Callable[[], Any], *, path: str = "") -> Tensor:
    """Run a model only until one of its modules has put out its result, and return that.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(9, 9))
    >>> stopped_at(model[0], lambda: model(torch.zeros(4, 2))).shape
    torch.Size([4, 3])

    Args:
        module: the one to stop at.
        run: runs the model.
        path: of the module, for messages.
    """

    def stop(module: nn.Module, args: Any, output: Any) -> None:
        raise Stopped(output)

    return _caught(module, module.register_forward_hook(stop), run, path=path)


def _caught(
    module: nn.Module,
    handle: RemovableHandle,
    run: Callable[[], Any],
    *,
    path: str = "",
    otherwise: str = "",
) -> Tensor:
    """What a hook that stops the forward has caught; `otherwise` says why it may have caught nothing."""
    named = (
        f"module {path!r}, a {type(module).__name__},"
        if path
        else f"module, a {type(module).__name__},"
    )
    try:
        with handle:
            run()
    except Stopped as stopped:
        found = first_tensor(stopped.output)
        if found is None:
            raise ValueError(f"the exit's {named} returned no tensor") from None
        return found
    raise ValueError(
        otherwise
        or f"the exit's {named} did not run in the model's forward: name one that "
        "does with exit=TunedExit('path.to.module'), or choose exit='last'"
    )


def model_input(model: nn.Module, run: Callable[[], Any]) -> Tensor:
    """What a model is given, as numbers: its first input of real values, or its embedded tokens.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 9))
    >>> model_input(model, lambda: model(torch.zeros(4, 2))).shape
    torch.Size([4, 2])

    Images of bytes count as numbers. Nothing of the model is run, or its embedding at most.
    """

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        for value in tensors_in((args, kwargs)):
            if value.is_floating_point() or (value.ndim >= 4 and value.dtype == torch.uint8):
                raise Stopped(value)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        raise Stopped(output)

    with ExitStack() as handles:
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                handles.enter_context(module.register_forward_hook(leave))
        handle = model.register_forward_pre_hook(enter, with_kwargs=True)
        return _caught(
            model,
            handle,
            run,
            otherwise=f"{type(model).__name__} is given no tensor of real values, and embeds no tokens, so that "
            "there is nothing to look at before it runs: choose exit='tuned', exit='last' or exit=MemoryExit()",
        )


def coarser(maps_BCXY: Tensor, size: Sequence[int]) -> Tensor:
    """Averages over a grid of cells, as `adaptive_avg_pool2d` has them.

    >>> coarser(torch.arange(8.0).view(1, 1, 2, 4), (1, 2))
    tensor([[[[2.5000, 4.5000]]]])

    Args:
        maps_BCXY: images, or a layer's maps.
        size: cells along each side.
    """
    cells = [old // new for old, new in zip(maps_BCXY.shape[2:], size, strict=True)]
    even = all(n * c == old for n, c, old in zip(size, cells, maps_BCXY.shape[2:], strict=True))
    if maps_BCXY.device.type != "cpu" or not even or max(cells) > LARGEST_CELL:
        return F.adaptive_avg_pool2d(maps_BCXY, (size[0], size[1]))
    # small cells of one size: adding slices up takes a CPU a third of the time
    rows = sum_of([maps_BCXY[:, :, i :: cells[0]] for i in range(cells[0])])
    whole = sum_of([rows[..., i :: cells[1]] for i in range(cells[1])])
    return whole / (cells[0] * cells[1])


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    """Their sum, from the first to the last."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def pooled_input(hidden: Tensor, *, widest: int, mask: Tensor | None = None) -> Tensor:
    """Features of each sample from what a model is given: coarse images, averages, or all of it.

    >>> pooled_input(torch.zeros(2, 3, 32, 32), widest=2048).shape
    torch.Size([2, 768])
    >>> pooled_input(torch.zeros(2, 28, 28, 1), widest=2048).shape
    torch.Size([2, 196])
    >>> pooled_input(torch.zeros(2, 16000), widest=2048).shape
    torch.Size([2, 2048])

    Args:
        hidden: images (B, C, height, width) or (B, height, width, C), sequences (B, T, H), or
            features (B, F).
        widest: how many features a sample has at most.
        mask: the positions of a sequence that count.
    """
    if hidden.ndim == 4:
        last = hidden.shape[3] <= 4 < hidden.shape[1]
        hidden = hidden.permute(0, 3, 1, 2) if last else hidden
        side = max(1, min(COARSE, math.isqrt(max(1, widest // hidden.shape[1])), *hidden.shape[2:]))
        cell = [-(-length // side) for length in hidden.shape[2:]]
        even = all(length % size == 0 for length, size in zip(hidden.shape[2:], cell, strict=True))
        # cells of one size are averaged several times as fast
        hidden = F.avg_pool2d(hidden, cell) if even else F.adaptive_avg_pool2d(hidden, side)
        hidden = hidden.flatten(1)
    elif hidden.ndim > 2 or hidden.is_nested:
        hidden = pool(
            hidden, channels=hidden.shape[-1] if not hidden.is_nested else None, mask=mask
        )
    hidden = hidden.flatten(1) if hidden.ndim > 1 else hidden[:, None]
    if hidden.shape[1] > widest:
        hidden = F.adaptive_avg_pool1d(hidden[:, None], widest)[:, 0]
    return hidden


def stopped_in(stack: Stack, k: int, run: Callable[[], Any]) -> Tensor:
    """Run a model only until the k-th block of a stack, and return the hidden state after it.

    >>> from sifting.model.find import find_stack
    >>> model = nn.Sequential(nn.Linear(2, 3), *[nn.Linear(3, 3) for _ in range(4)], nn.Linear(3, 9))
    >>> stopped_in(find_stack(model), 2, lambda: model(torch.zeros(4, 2))).shape
    torch.Size([4, 3])

    Nothing is asked of what follows, so the stack need not be a chain. Where `check_chain` has found
    that the model adds up what the blocks put out, it is the sum that the next block is given.
    """
    stack.check_exit(k)
    summed = stack.wiring.hand_on in ("zeros", "input") and stack.wiring.slot is not None
    if summed and k < len(stack):

        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            raise Stopped(stack.wiring.state(args, kwargs))

        module = stack.module(stack.blocks[k][0])
        return _caught(module, module.register_forward_pre_hook(enter, with_kwargs=True), run)
    calls = 0

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == (k if stack.repeats > 1 else 1):
            raise Stopped(output)

    if stack.repeats == 1:
        module = stack.module(stack.blocks[k - 1][-1])
        return _caught(module, module.register_forward_hook(leave), run)
    with ExitStack() as handles:  # blocks that serve several layers: count the calls of them all
        for names in stack.blocks[1:]:
            handles.enter_context(stack.module(names[-1]).register_forward_hook(leave))
        module = stack.module(stack.blocks[0][-1])
        return _caught(module, module.register_forward_hook(leave), run)


def find_stage(model: nn.Module) -> str | None:
    """Path of the second of a network's stages; None where it has none.

    >>> stages = nn.ModuleList([nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3), nn.Conv2d(16, 32, 3)])
    >>> find_stage(nn.ModuleDict({"stages": stages}))
    'stages.1'

    Stages are three or more modules of one class and differing sizes in a list, or `layer1`,
    `layer2`, `layer3`.
    """
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        if all(f"layer{i}" in module._modules for i in (1, 2, 3)):
            return f"{prefix}layer2"
        for name, child in module._modules.items():
            if isinstance(child, nn.ModuleList | nn.Sequential) and len(child) > 2:
                sizes = {sum(p.numel() for p in stage.parameters()) for stage in child}
                if len({type(stage) for stage in child}) == 1 and len(sizes) > 1 and 0 not in sizes:
                    return f"{prefix}{name}.1"
    return None


def channels_of(module: nn.Module) -> int | None:
    """Output channels of a module: those of the last layer in it that says so.

    >>> channels_of(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()))
    8
    """
    for layer in reversed(list(module.modules())):
        for name in ("num_features", "out_channels", "out_features"):
            width = getattr(layer, name, None)
            if isinstance(width, int):
                return width
        if isinstance(layer, nn.LayerNorm):
            return int(layer.normalized_shape[-1])
    return None


def pool(
    hidden: Tensor, *, channels: int | None, mask: Tensor | None = None, side: int = 1
) -> Tensor:
    """Features of each sample from a layer's output: averages over positions.

    >>> import torch
    >>> pool(torch.zeros(2, 16, 8, 8), channels=16, side=4).shape
    torch.Size([2, 256])
    >>> pool(torch.zeros(2, 5, 7), channels=7).shape, pool(torch.zeros(2, 5, 7), channels=5).shape
    (torch.Size([2, 7]), torch.Size([2, 5]))

    Args:
        hidden: maps (B, C, height, width) or (B, height, width, C), volumes (B, C, depth, height,
            width), sequences (B, T, C) or (B, C, T), or features (B, C).
        channels: the width of the layer, which tells those of two kinds apart.
        mask: the positions of a sequence that count.
        side: a map is averaged over a grid of this many cells a side.
    """
    if hidden.is_nested:
        return torch.stack([sample.mean(dim=0) for sample in hidden.unbind()])
    if hidden.ndim == 5:
        return F.adaptive_avg_pool3d(hidden, 1).flatten(1)
    if hidden.ndim == 4 and channels == hidden.shape[3] != hidden.shape[1]:
        hidden = hidden.permute(0, 3, 1, 2)
    if hidden.ndim == 4:
        return coarser(hidden, (side, side)).flatten(1)
    if hidden.ndim != 3:
        return hidden.flatten(1)
    if channels == hidden.shape[1] and channels != hidden.shape[2]:
        return hidden.mean(dim=2)
    if mask is None or mask.shape != hidden.shape[:2]:
        return hidden.mean(dim=1)
    weights_BT = mask.to(hidden.dtype)
    total_B1 = weights_BT.sum(dim=1, keepdim=True).clamp_min(1)
    return torch.einsum("bth,bt->bh", hidden, weights_BT) / total_B1


def by_graph(hidden: Tensor, batch: Any) -> Tensor:
    """A layer's output by sample: of a batch of graphs with a row a node, the mean of each graph.

    Args:
        hidden: what the layer puts out.
        batch: what the model was given. A batch of graphs has in its own `batch` the graph of each node.
    """
    for graphs in filter(is_graph, leaves(batch)):
        graph_of_node, count = getattr(graphs, "batch", None), own_size(graphs)
        if count is None or not isinstance(graph_of_node, Tensor) or hidden.ndim != 2:
            continue
        if graph_of_node.shape == hidden.shape[:1]:
            sums = hidden.new_zeros(count, hidden.shape[1]).index_add(0, graph_of_node, hidden)
            nodes = torch.bincount(graph_of_node, minlength=count).clamp_min(1)
            return sums / nodes[:, None].to(sums)
    return hidden


def pooled_features(
    hidden: Tensor, *, channels: int | None, mask: Tensor | None = None, widest: int = WIDEST
) -> Tensor:
    """As `pool`, a map over as many cells as leave so many features at most.

    >>> pooled_features(torch.zeros(2, 256, 8, 8), channels=256).shape
    torch.Size([2, 1024])

    Args:
        hidden, channels, mask: see `pool`.
        widest: features that a map is averaged to at most, unless it has more channels.
    """
    side = max(1, min(4, int(math.sqrt(widest / hidden.shape[1])))) if hidden.ndim == 4 else 1
    return pool(hidden, channels=channels, mask=mask, side=side)


def by_position(hidden: Tensor, places: tuple[int, ...], *, channels_first: bool) -> Tensor | None:
    """A layer's output as features of each position that is labelled; None where it has none such.

    >>> by_position(torch.zeros(2, 5, 7), (5,), channels_first=False).shape
    torch.Size([2, 5, 7])
    >>> by_position(torch.zeros(2, 7, 4, 6), (4, 6), channels_first=True).shape
    torch.Size([2, 24, 7])

    Args:
        hidden: (B, T, C), (B, C, T), (B, C, height, width) or (B, height, width, C).
        places: a sample's positions: (T,), or (height, width).
        channels_first: which reading comes first where both fit.
    """
    if hidden.is_nested or hidden.ndim != 2 + len(places):
        return None
    readings = {
        True: hidden.flatten(2).transpose(1, 2) if hidden.shape[2:] == places else None,
        False: hidden.flatten(1, -2) if hidden.shape[1:-1] == places else None,
    }
    first = readings[channels_first]
    return readings[not channels_first] if first is None else first
