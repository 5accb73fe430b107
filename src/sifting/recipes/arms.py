"""The arms of a comparison: what each one keeps, and how it scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from sifting.exits import Exit
from sifting.sifter import Sifter

MakeExit = Callable[[nn.Module], int | str | Exit]


@dataclass(frozen=True)
class Arm:
    """One way of choosing samples.

    Attributes:
        about: one line for --help and reports.
        sifter: arguments of its `Sifter`; keep=1.0 is the plain loop.
        exit: "early" (the recipe's own early exit) or any value of `exit=`.
    """

    about: str
    sifter: dict[str, Any]
    exit: int | str = "early"

    @property
    def keep(self) -> float:
        """Share of the candidates that is trained."""
        return float(self.sifter.get("keep", 0.5))

    def make(self, model: nn.Module, early: MakeExit, **options: Any) -> Sifter:
        """The arm's sifter for a model whose early exit `early` makes."""
        if self.keep == 1.0:
            return Sifter(model, keep=1.0, seed=options.get("seed", 0))
        exit = early(model) if self.exit == "early" else self.exit
        return Sifter(model, exit=exit, **{"keep": 0.5, "explore": 0.0, **self.sifter, **options})


ARMS: dict[str, Arm] = {
    "baseline": Arm("every sample, no selection", {"keep": 1.0}),
    "random": Arm("a random half: the control", {"policy": "random"}, exit="last"),
    "sift": Arm("the paper's early exit, by loss", {"score": "loss"}),
    "sift-entropy": Arm("the paper's early exit, by entropy", {"score": "entropy"}),
    "sift-last": Arm("the whole model, by exact loss", {"score": "loss"}, exit="last"),
    "sift-mixed": Arm(
        "the paper's early exit, by loss, half of the kept at random",
        {"score": "loss", "explore": 0.5},
    ),
    "tuned": Arm("a tuned exit, by loss", {"score": "loss"}, exit="tuned"),
    "tuned-entropy": Arm("a tuned exit, by entropy", {"score": "entropy"}, exit="tuned"),
    "default": Arm(
        "the library's default: a tuned exit, by entropy, a quarter at random",
        {"score": "entropy", "explore": 0.25},
        exit="tuned",
    ),
}
