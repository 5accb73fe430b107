"""The arms of a comparison: what each one keeps, and how it scores."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from sifting.exits.base import Exit
from sifting.exits.memory import MemoryExit
from sifting.sifter import Sifter
from sifting.training.rivals import BelowMean


@dataclass(frozen=True)
class Arm:
    """One way of choosing samples.

    Attributes:
        about: one line for --help and reports.
        sifter: arguments of its `Sifter`; keep=1.0 is the plain loop.
        exit: "early" (the problem's own early exit), "memory" (a `MemoryExit` of the problem's
            samples) or any value of `exit=`.
        factory: a user's own `factory(model, **options) -> Sifter` in place of all that.
        memory: arguments of its `MemoryExit`, where that is its exit.
        until: share of the updates after which everything is trained.
        share: of the budget that it may spend; other than 1 for a baseline that ends sooner or later.
        weighted: whether what it keeps is to be weighted in the loss.
        held_out: whether its reference learns from held-out samples.
        sooner: whether an autopilot spends what it gains on ending the run sooner.
    """

    about: str
    sifter: Mapping[str, Any] = field(default_factory=dict)
    exit: int | str | Exit = "early"
    factory: Callable[..., Sifter] | None = None
    memory: Mapping[str, Any] = field(default_factory=dict)
    until: float = 1.0
    share: float = 1.0
    weighted: bool = False
    held_out: bool = False
    sooner: bool = False

    @property
    def keep(self) -> Any:
        """Share of the candidates that is trained, or a function of the step."""
        return self.sifter.get("keep", 0.5)

    def make(
        self,
        model: nn.Module,
        *,
        early: int | str | Exit,
        samples: int | None = None,
        **options: Any,
    ) -> Sifter:
        """The arm's sifter for a model whose early exit is `early`, and so many training samples."""
        if self.factory is not None:
            return _checked(self.factory(model, **options), self.about)
        if self.keep == 1.0:
            plain = {name: options[name] for name in ("seed", "draws") if name in options}
            return Sifter(model, keep=1.0, **plain)
        exit = early if self.exit == "early" else self.exit
        if self.keep == "auto":
            rest = {name: value for name, value in options.items() if name != "warmup_steps"}
            return Sifter(model, exit=exit, **rest, **self.sifter)
        if exit == "memory":
            if samples is None and options.get("draws") == "batch":
                raise ValueError(
                    f"an arm with memory ({self.about}) needs samples that have ids, and this problem's have "
                    "none: give the Problem samples= and sifter={'ids': …}, or batches without a size"
                )
            exit = MemoryExit(samples, **self.memory)
        return Sifter(model, exit=exit, **{"keep": 0.5, "explore": 0.0, **options, **self.sifter})


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
    "reducible": Arm(
        "the exact loss less that of a light predictor trained on held-out samples",
        {"score": "reducible"},
        exit="last",
        held_out=True,
    ),
    "tuned": Arm("a tuned exit, by loss", {"score": "loss"}, exit="tuned"),
    "tuned-entropy": Arm("a tuned exit, by entropy", {"score": "entropy"}, exit="tuned"),
    "auto": Arm(
        "the autopilot: selection where it saves time, which ends the run sooner",
        {"keep": "auto"},
        exit="auto",
        sooner=True,
    ),
    "auto-full": Arm(
        "the autopilot with as many updates as the baseline", {"keep": "auto"}, exit="auto"
    ),
    "input-entropy": Arm(
        "a tuned exit on what the model is given, by entropy, a quarter at random",
        {"score": "entropy", "explore": 0.25},
        exit="input",
    ),
    "default": Arm(
        "the default of a fixed ratio: a tuned exit, by entropy (by loss without classes), a quarter at random",
        {"explore": 0.25},
        exit="tuned",
    ),
    "memory": Arm("the exact loss of each sample as last trained", {"score": "loss"}, "memory"),
    "memory-mixed": Arm(
        "the exact loss of each sample as last trained, a quarter of the kept at random",
        {"score": "loss", "explore": 0.25},
        exit="memory",
    ),
    "percentile": Arm(
        "the exact loss of each sample as last trained, drawn with a chance that grows with its rank",
        {"score": "loss", "policy": "percentile"},
        exit="memory",
    ),
    "infobatch": Arm(
        "InfoBatch's rule: a part of what was below the mean loss is dropped, the rest weighted",
        {"score": "loss", "policy": BelowMean(), "keep": 0.7},
        exit="memory",
        memory={"revisit": 0.0},
        until=0.875,
        weighted=True,
    ),
    **{
        f"baseline-{percent}": Arm(
            f"every sample, {percent} % of the budget", {"keep": 1.0}, share=percent / 100
        )
        for percent in (60, 75, 90, 133)
    },
}


def find_arm(name: str) -> Arm:
    """The arm of a name: one of `ARMS`, one of them at another exit, or a user's own.

    >>> find_arm("sift@3").exit
    3
    >>> find_arm("sift-entropy@last").exit
    'last'

    Args:
        name: "sift", "sift@3" (the third block), or "module:attribute", where the attribute is an
            `Arm`, a mapping of arguments for `Sifter`, or a function `(model, **options) -> Sifter`
            that keeps half.
    """
    if name in ARMS:
        return ARMS[name]
    if ":" in name:
        return _imported(name)
    base, at, where = name.partition("@")
    if not at or base not in ARMS:
        raise ValueError(
            f"arm={name!r} is unknown: choose one of {', '.join(ARMS)}, one of them at another exit "
            "(sift@3), or a path to your own (module:attribute)"
        )
    arm = ARMS[base]
    if arm.exit != "early":
        early = ", ".join(key for key, value in ARMS.items() if value.exit == "early")
        raise ValueError(f"arm={name!r}: {base!r} has no early exit to move; these have: {early}")
    exit: int | str = int(where) if where.isdigit() else where
    if where in ("", "0"):
        raise ValueError(f"arm={name!r}: give a block number from 1, 'last' or a path after the @")
    return replace(arm, about=f"{arm.about}, at {where}", exit=exit)


def _imported(name: str) -> Arm:
    try:
        found: Any = pkgutil.resolve_name(name)
    except Exception as error:  # whatever a user's module raises, or a name that is none
        raise ValueError(
            f"arm={name!r} cannot be imported: {type(error).__name__}: {error}. Give module:attribute, and run "
            "where the module lies or put its folder on PYTHONPATH"
        ) from error
    if isinstance(found, Arm):
        return found
    if isinstance(found, Mapping):
        options = dict(found)
        return Arm(name, {k: v for k, v in options.items() if k != "exit"}, options.get("exit", 1))
    if callable(found):
        return Arm(name, factory=found)
    raise ValueError(
        f"arm={name!r} is a {type(found).__name__}: it must be an Arm, a mapping of arguments for "
        "Sifter, or a function (model, **options) -> Sifter"
    )


def _checked(sifter: object, name: str) -> Sifter:
    if not isinstance(sifter, Sifter):
        raise TypeError(f"{name} returned a {type(sifter).__name__}, and must return a Sifter")
    return sifter
