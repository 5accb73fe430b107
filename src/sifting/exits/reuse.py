"""Handing what scoring has computed of a frozen prefix to the training forward (`model/prefix.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sifting.measure.audit import warn_user
from sifting.model.cut import BlockCut, ModuleCut, frozen_place
from sifting.model.prefix import Passage, Prefix, PrefixStates

if TYPE_CHECKING:
    from sifting.exits.scoring import Scorer

PATIENCE = 3  # steps: in the first, nobody knows yet under what autocast it is trained


class Reuse:
    """Remembers what passed the exit in the last scoring pass, for the samples that are kept.

    Where that cannot be used, or never is, it says so once, and training is as without it.

    Args:
        scorer: of the sifter.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.prefix: Prefix | None = None
        self._place: tuple[Any, ...] | None = None
        self._places: dict[tuple[bool, ...], tuple[str | None]] = {}  # by what is trained
        self._said = False
        self._last: tuple[Passage, Any] | None = None
        self._decided = False  # whether it was, when they were scored, by what
        self._before: PrefixStates | None = None  # what was handed out last
        self._unused = 0  # steps in a row whose forward did not begin with it

    @contextmanager
    def watching(self, batch: Any) -> Iterator[None]:
        """While open, candidates are scored.

        Args:
            batch: the candidates, on the model's device.
        """
        self._decided = self.scorer.exit.settled
        self._last, prefix = None, self._found(batch)
        if prefix is None:
            yield
            return
        with prefix.watched() as passage:
            yield
        self._last = passage, batch

    def _found(self, batch: Any) -> Prefix | None:
        exit, model = self.scorer.exit, self.scorer.model
        place: tuple[Any, ...] = exit.block or (getattr(exit, "place", None),)
        if exit.exact:  # all of the model is run: what of it is not trained?
            place = self._frozen(batch)
        if place[0] is None or not exit.whole:
            return None  # not found yet, or no module: said once it is scored
        if self.prefix is None or self._place != place:
            cut = BlockCut(model, *place) if len(place) == 2 else ModuleCut(model, *place)
            self.prefix, self._place = Prefix(cut, self.scorer.call), place
        return self.prefix

    def _frozen(self, batch: Any) -> tuple[str | None]:
        trained = tuple(parameter.requires_grad for parameter in self.scorer.model.parameters())
        if trained not in self._places:
            samples, call, model = self.scorer.call.samples, self.scorer.call, self.scorer.model
            some = samples.take(batch, torch.arange(min(2, samples.size(batch))))
            self._places[trained] = (frozen_place(model, lambda: call.run(model, some)),)
        return self._places[trained]

    def candidates(self, batch: Any) -> Any:
        """What the kept are taken from: the very tensors that were scored, where they can be reused.

        They are on the model's device then, and a step that moves its batch there gets them as they are.

        Args:
            batch: the candidates as they were drawn.
        """
        why = self._refused(self._last)
        if why is None:
            assert self._last is not None
            return self._last[1]
        self._last = None
        if self._decided:
            self._say(why)
        return batch

    def handed(self, kept: Any, indices_K: Tensor, size: int) -> PrefixStates | None:
        """What the training forward of the kept can begin with; None where there is nothing.

        Args:
            kept: the batch that is handed out.
            indices_K: which of the candidates those are.
            size: how many candidates there are.
        """
        last, self._last = self._last, None
        before, self._before = self._before, None
        if last is None:
            return None
        assert self.prefix is not None
        found = self.prefix.handed(last[0], last[1], kept, indices_K, size)
        why = found if isinstance(found, str) else None if before is None else before.missed
        self._unused = 0 if why is None or self.prefix.reused else self._unused + 1
        if why is not None and self._unused == PATIENCE:
            self._say(why)
        if isinstance(found, str):
            return None
        self._before = found
        return found

    def give_up(self, why: str) -> None:
        """Take note that what was scored is not handed on, and why."""
        self._last = None
        self._say(why)

    def _say(self, why: str) -> None:
        if not self._said:
            warn_user(f"reuse=True has no effect: {why}. Training is as without it")
        self._said = True

    def _refused(self, last: tuple[Passage, Any] | None) -> str | None:
        if self.prefix is None or last is None:
            exit = self.scorer.exit
            no = "nothing of the model comes before what is trained" if exit.exact else None
            if not exit.whole:
                no = (
                    f"{exit!r} looks at less of candidates than is trained, or in another precision"
                )
            return no or f"{exit!r} is not at one module of the model"
        if compiled(self.scorer.whole):
            return "the model is compiled, and its graph has no place to begin in the middle"
        with self.scorer.busy(), self.scorer.mirrored_autocast():
            return self.prefix.refused(last[1])


def compiled(model: nn.Module) -> bool:
    """Whether a model, or a part of it, is compiled."""
    return any(
        module._compiled_call_impl is not None
        or isinstance(getattr(module, "_orig_mod", None), nn.Module)
        for module in model.modules()
    )
