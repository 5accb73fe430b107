"""Handing what scoring has computed of a frozen prefix to the training forward (`model/prefix.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from sifting.measure.audit import warn_user
from sifting.model.prefix import Passage, Prefix, PrefixStates

if TYPE_CHECKING:
    from sifting.exits.scoring import Scorer


class Reuse:
    """Remembers what passed the exit in the last scoring pass, for the samples that are kept.

    Where that cannot be used, it says so once and training is as without it.

    Args:
        scorer: of the sifter.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.prefix: Prefix | None = None
        self._said = False
        self._last: tuple[Passage, Any] | None = None

    @contextmanager
    def watching(self, batch: Any) -> Iterator[None]:
        """While open, candidates are scored.

        Args:
            batch: the candidates, on the model's device.
        """
        self._last, prefix = None, self._found()
        if prefix is None:
            yield
            return
        with prefix.watched() as passage:
            yield
        self._last = passage, batch

    def _found(self) -> Prefix | None:
        place = self.scorer.exit.block
        if place is None:
            return None  # not found yet, or no block: said once it is scored
        if self.prefix is None or (self.prefix.stack, self.prefix.k) != place:
            self.prefix = Prefix(self.scorer.model, *place, self.scorer.call)
        return self.prefix

    def handed(self, kept: Any, indices_K: Tensor, size: int) -> PrefixStates | None:
        """What the training forward of the kept can begin with; None where there is nothing.

        Args:
            kept: the batch that is handed out.
            indices_K: which of the candidates those are.
            size: how many candidates there are.
        """
        last, self._last = self._last, None
        why = self._refused(last)
        if why is not None:
            if not self._said:
                warn_user(f"reuse=True has no effect: {why}. Training is as without it")
            self._said = True
            return None
        assert self.prefix is not None
        assert last is not None
        return self.prefix.handed(last[0], last[1], kept, indices_K, size)

    def _refused(self, last: tuple[Passage, Any] | None) -> str | None:
        if self.prefix is None or last is None:
            return f"{self.scorer.exit!r} is not a block of a stack"
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
