"""Candidates that are drawn and scored before their turn, and what must hold for that."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sifting.exits.predictors import checked_lessons
from sifting.exits.turns import ThreadTurn
from sifting.plain import Plain
from sifting.rng import RandomState


@dataclass
class DrawnAhead:
    """The candidates that were drawn before the step before them was trained.

    Attributes:
        batch: the candidates; None where a state names them that are not drawn again yet.
        streams: the global random streams before they were drawn.
        scores: of each, on the CPU, once they are known.
        lessons: what the exit wants to learn from them, then.
        future: the scoring under way, which gives both.
        turn: what orders it and the step.
        versions: of the model's parameters when it began.
        settled: whether training has its way again.
        undo: the sifter's generator, and its state before positions were drawn.
    """

    batch: Any
    streams: RandomState
    scores: Tensor | None = None
    lessons: Mapping[str, Any] = field(default_factory=dict)
    future: Future[tuple[Tensor, Mapping[str, Any]]] | None = None
    turn: ThreadTurn | None = None
    versions: list[int] = field(default_factory=list)
    settled: bool = False
    undo: tuple[torch.Generator, Tensor] | None = None

    def to_plain(self) -> dict[str, Any]:
        """What was drawn and scored, once it is; whoever resumes draws the candidates again."""
        scores, lessons = self.scores, self.lessons
        if self.future is not None:
            wait([self.future])
            if self.future.exception() is None:  # else it is said when they are asked for
                scores, lessons = self.future.result()
        return {"streams": self.streams.to_plain(), "scores": scores, "lessons": dict(lessons)}

    @classmethod
    def from_plain(cls, plain: Any, learned: Mapping[str, Any]) -> DrawnAhead | None:
        """Back from what `to_plain` gave, or from nothing.

        Args:
            plain: what it gave.
            learned: the state of the exit, which lessons have to suit.
        """
        if plain is None:
            return None
        found = Plain(plain, "what was scored ahead")
        scores = None if found.get("scores") is None else found.tensor("scores", dims=1)
        lessons = checked_lessons(found.inside("lessons"), learned)
        return cls(None, found.made("streams", RandomState.from_plain), scores, lessons)


def versions_of(model: nn.Module) -> list[int]:
    """How often each parameter was written, as torch counts it."""
    return [parameter._version for parameter in model.parameters()]


def check_unwritten(model: nn.Module, versions: list[int]) -> None:
    """Raise where a parameter was written since its version was taken.

    Args:
        model: whose parameters were read meanwhile.
        versions: of `versions_of`, from before.
    """
    if versions == versions_of(model):
        return
    names = [name for name, _ in model.named_parameters()]
    now = zip(names, versions_of(model), versions, strict=False)
    name = next((name for name, a, b in now if a != b), "one")
    raise RuntimeError(
        f"ahead=1: parameter {name!r} was written while the next candidates were scored, and not by the "
        "step of a torch optimizer, which would have waited: call sifter.wait() before you write "
        "parameters yourself, or leave out ahead="
    )


def check_repeatable(random: bool, hooks: list[str]) -> None:
    """Raise where scoring in a thread, beside the training step, could not be repeated.

    Args:
        random: whether a random number was drawn for the scores.
        hooks: of the user's, that changed what passed through the model.
    """
    if random:
        raise ValueError(
            "ahead=1: scoring draws random numbers, from the streams that your training step draws from at "
            "the same time, so that neither could be repeated: leave out ahead=, or draw from a generator "
            "of the model's own"
        )
    if hooks:
        raise ValueError(
            f"ahead=1: a forward hook on {hooks[0]} changes what passes through the model, and would run in "
            "another thread beside your step: put it into the module's forward, or leave out ahead="
        )


def check_originals(originals: list[str]) -> None:
    """Raise where a copy of a model runs modules of the model itself.

    Args:
        originals: modules of the model itself that ran when the copy did.
    """
    if originals:
        raise ValueError(
            f"ahead=1: a copy of the model still runs {originals[0] or 'the model'!r} of the model itself, "
            "which your step trains at the same time: forward= and losses= must call the model that they are "
            "given, and modules must keep others as submodules; or leave out ahead="
        )


def check_copy(originals: list[str], found_B: Tensor, wanted_B: Tensor, *, exact: bool) -> None:
    """Raise where a copy of a model cannot take the model's place.

    Args:
        originals: modules of the model itself that ran when the copy did.
        found_B: scores by the copy.
        wanted_B: by the model.
        exact: whether they have to be the same to the last bit.
    """
    check_originals(originals)
    same = torch.equal(found_B.nan_to_num(), wanted_B.nan_to_num())
    if not same and (exact or not torch.allclose(found_B, wanted_B, 1e-3, 1e-4, equal_nan=True)):
        row = int((found_B - wanted_B).abs().nan_to_num().argmax())
        raise ValueError(
            f"ahead=1: a copy of the model scores row {row} {float(found_B[row]):.6g}, and the model itself "
            f"{float(wanted_B[row]):.6g}: its forward depends on more than parameters, buffers and attributes "
            "of its modules (a hook that writes in place, a state elsewhere): leave out ahead="
        )
