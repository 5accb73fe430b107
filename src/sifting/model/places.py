"""A place to leave any network early: by its structure, else by running it and counting its work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sifting.model.features import find_stage
from sifting.model.find import find_stack, find_stacks
from sifting.model.stack import Stack, StackError
from sifting.model.values import first_tensor, tensors_in, with_first_tensor
from sifting.model.work import RunModel, Work

TARGET = 0.1  # share of a forward's work that an exit may take, where there is a choice
DEAR = 0.5  # of the work before its exit, and a stack comes too late to be left early


@dataclass(frozen=True)
class Place:
    """Somewhere to leave a model: a module's output, at best that of a block of its stack.

    >>> str(Place("layer1", share=0.08))
    "'layer1', after 8% of a forward's work"

    Attributes:
        path: dotted path of the module whose output is taken.
        share: of a forward's work done by then; None where nothing was run.
        stack: the stack that it is a block of, where it is one.
        k: which block, from 1.
    """

    path: str
    share: float | None = None
    stack: Stack | None = None
    k: int = 0

    def __str__(self) -> str:
        where = repr(self.path) if self.stack is None else f"block {self.k} of {self.stack.path!r}"
        done = "" if self.share is None else f", after {self.share:.0%} of a forward's work"
        return f"{where}{done}"


def structural_place(model: nn.Module, stack: str | None = None) -> Place | None:
    """Where to leave a model, by its structure alone; None where it has to be run to tell.

    >>> trunk = nn.Sequential(*[nn.Linear(8, 8) for _ in range(24)])
    >>> str(structural_place(nn.Sequential(nn.Linear(4, 8), trunk, nn.Linear(8, 2))))
    "block 2 of '1'"

    A twelfth of the stack's depth, or the second stage of a network of stages.

    Args:
        model: any model.
        stack: path of its stack, where it is known.
    """
    try:
        return _in_stack(find_stack(model, stack))
    except StackError:
        if stack is not None:
            raise
    stage = find_stage(model)
    blocks = {found.path for found in find_stacks(model)}
    if stage is None or stage.rpartition(".")[0] in blocks:  # blocks of differing sizes, no stages
        return None
    return Place(stage)


def work_share(model: nn.Module, run: RunModel, path: str) -> float:
    """Share of a forward's work that is done when a module has put out its result."""
    found = Work.of(model, run).share(path)
    return 1.0 if found is None else found


def find_place(
    model: nn.Module,
    run: RunModel,
    *,
    size: int | None = None,
    stack: str | None = None,
    head: bool = False,
) -> Place:
    """Where to leave a model early: what its structure suggests, else a tenth of its work in.

    >>> cnn = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 64, 3), nn.ReLU(),
    ...                     nn.Flatten(), nn.Linear(64 * 16, 10))
    >>> x = torch.zeros(2, 3, 8, 8)
    >>> str(find_place(cnn, lambda: cnn(x), size=2))
    "'1', after 8% of a forward's work"

    Args:
        model: the model, in eval mode, without gradients.
        run: puts some samples through the whole model.
        size: how many samples.
        stack: path of its stack, where it is known.
        head: whether the model's own head has to be reached from there, as it has where there is
            a prediction at every position. Of several stacks it is then the one that the others
            feed (a decoder), which takes all of their work before it.

    Raises:
        StackError: where there is no such place.
    """
    if stack is not None:
        place = _in_stack(find_stack(model, stack))
        return replace(place, share=Work.of(model, run).share(place.path))
    work = Work.of(model, run)
    suggested = structural_place(model)
    if suggested is not None and not _runs(suggested, work, run):
        suggested = None
    if head:
        if suggested is None or suggested.stack is None:
            suggested = _decisive([s for s in find_stacks(model) if _usable(s, run)], work, run)
        if suggested is None:
            raise StackError(
                f"{type(model).__name__} predicts at every position, and has no stack of blocks that its own "
                "head can be reached from early: use exit='last', or name the stack with stack='…'"
            )
        return replace(suggested, share=work.share(suggested.path))
    if suggested is not None:
        suggested = replace(suggested, share=work.share(suggested.path))
        if suggested.stack is None or (suggested.share or 0) <= DEAR:
            return suggested
    cheap = _cheap(work, size)
    if suggested is not None and (cheap is None or (cheap.share or 0) > TARGET):
        return suggested
    if cheap is None:
        raise StackError(
            f"no module of {type(model).__name__} runs once in a forward and outputs a row for each sample "
            "after layers that are trained, so there is nowhere to leave it early: use exit='last', or "
            "exit=MemoryExit()"
        )
    return cheap


def own_place(
    model: nn.Module, run: RunModel, *, size: int, stack: str | None, head: bool, guess: str | None
) -> Place | None:
    """Where an exit with a head of its own leaves a model; None where its guess holds.

    A guess by structure alone holds if that module is run at all: lists of lists are not.

    Args:
        model, run, size, stack: as for `find_place`.
        head: whether the model's own head should be reached from there; where there is no such
            place, any other will do.
        guess: path of the module that the structure suggests.
    """
    if guess is not None and _is_run(model, run, guess):
        return None
    try:
        return find_place(model, run, size=size, stack=stack, head=head)
    except StackError:
        if not head:
            raise
        found = find_place(model, run, size=size, stack=stack)
        return replace(found, stack=None, k=0)


def candidate_places(model: nn.Module, run: RunModel, *, size: int | None = None) -> list[Place]:
    """Everywhere that a model could be left, in the order in which it gets there.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
    >>> for place in candidate_places(model, lambda: model(torch.zeros(3, 4)), size=3):
    ...     print(place)
    '0', after 29% of a forward's work
    '1', after 29% of a forward's work
    '2', after 86% of a forward's work

    Modules that run once, after something that is trained, and put out a row for each sample; those
    with a small share of the work are not looked into.

    Args:
        model: the model, in eval mode, without gradients.
        run: puts some samples through the whole model.
        size: how many samples.
    """
    work = Work.of(model, run)
    return [Place(path, work.share(path)) for path in work.exits(size)]


def _in_stack(stack: Stack) -> Place:
    k = max(1, len(stack) // 12)
    return Place(stack.path_of(k), stack=stack, k=k)


def _runs(place: Place, work: Work, run: RunModel) -> bool:
    """Whether a place that the structure suggests is one that the model passes, and in order."""
    return _usable(place.stack, run) if place.stack is not None else place.path in work.ended


def _is_run(model: nn.Module, run: RunModel, path: str) -> bool:
    """Whether a module takes part in a forward, as lists of modules do not."""
    heard: list[bool] = []
    handle = model.get_submodule(path).register_forward_hook(lambda *_: heard.append(True))
    try:
        run()
    finally:
        handle.remove()
    return bool(heard)


def _usable(stack: Stack, run: RunModel) -> bool:
    try:
        stack.check_chain(run)
    except StackError:
        return False
    return True


def _cheap(work: Work, size: int | None) -> Place | None:
    """The deepest place within the target; the cheapest, and of those the last, where none is.

    Side branches that put out few numbers (a router, a gate) are passed over.
    """
    places = [Place(path, work.share(path)) for path in work.exits(size)]
    least = min((place.share or 0 for place in places), default=0.0)
    within = [place for place in places if (place.share or 0) <= max(TARGET, least)]
    widest = max((work.width(place.path) for place in within), default=0)
    return next((p for p in reversed(within) if 2 * work.width(p.path) >= widest), None)


def _decisive(stacks: list[Stack], work: Work, run: RunModel) -> Place | None:
    """Block k of the stack that all others feed; None where there is none such."""
    places = sorted(map(_in_stack, stacks), key=lambda place: work.share(place.path) or 0.0)
    if not places or places[-1].stack is None:
        return None
    last = places[-1].stack
    fed = all(_feeds(stack, last, run) for stack in stacks if stack is not last)
    return places[-1] if fed else None


def _feeds(stack: Stack, other: Stack, run: RunModel) -> bool:
    """Whether what a stack puts out reaches the first block of another."""
    taken: list[list[Tensor]] = []

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        taken.append([v.clone() for v in tensors_in((args, kwargs))])

    def change(module: nn.Module, args: Any, output: Any) -> Any:
        first = first_tensor(output)
        return output if first is None else with_first_tensor(output, first + 1 + first.abs())

    first, last = other.module(other.blocks[0][0]), stack.module(stack.blocks[-1][-1])
    with first.register_forward_pre_hook(enter, with_kwargs=True):
        run()
        with last.register_forward_hook(change):
            run()
    half = len(taken) // 2
    return any(
        not torch.equal(a, b)
        for before, after in zip(taken[:half], taken[half:], strict=True)
        for a, b in zip(before, after, strict=True)
    )
