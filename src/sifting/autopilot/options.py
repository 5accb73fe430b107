"""What the autopilot can choose among, and what it decides. Plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

LADDER = (2, 4, 8)  # candidates for each sample that is trained


@dataclass(frozen=True)
class Option:
    """One way of choosing: by a scorer, one in so many.

    >>> str(Option("input", 2)), str(PLAIN)
    ('1 in 2 by input', 'everything')
    """

    scorer: str
    ratio: int

    def __str__(self) -> str:
        return "everything" if self.ratio == 1 else f"1 in {self.ratio} by {self.scorer}"


PLAIN = Option("", 1)


@dataclass(frozen=True)
class Judged:
    """What is known of an option.

    Attributes:
        option: which.
        cost: what its scoring adds to a step, as a share of a plain one.
        kept_loss: μ, the share of the loss that the kept carry; None before it is known.
        agreement: of the kept samples' gradient with the mean; None where it is not known.
        share: of the progress on held-out or new samples that is made on what would be kept.
        error: standard error of that share.
        speedup: progress of a step over that of a plain one, by the share, its cost taken off; 0, as the
            share is, where no progress is told from noise.
        sure: the same, its cost not taken off, by the share less its error.
        forgets: whether what is dropped gets worse.
        learnable: of a memory, whether progress is made where losses are high; None where no
            held-out samples tell.
        vetoed: whether a trial has found harm.
    """

    option: Option
    cost: float = 0.0
    kept_loss: float | None = None
    agreement: float | None = None
    share: float | None = None
    error: float | None = None
    speedup: float | None = None
    sure: float | None = None
    forgets: bool = False
    learnable: bool | None = None
    vetoed: bool = False

    def to_plain(self) -> dict[str, Any]:
        """For the log: numbers and names, what is unknown left out."""
        found = {**asdict(self), "scorer": self.option.scorer, "ratio": self.option.ratio}
        unknown = ("share", "error", "speedup", "sure") if self.speedup == 0 else ()
        for name in ("option", *unknown):  # without progress beyond noise there is no share of it
            del found[name]
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class PilotDecision:
    """What is selected by from a step on, and why.

    Attributes:
        step: from which on.
        option: what is done.
        why: in words.
        speedup: expected of it; 1 where everything is trained.
        worth: plain steps that a step is sure to be worth; 1 where no progress was measured.
        judged: what was known of every option.
    """

    step: int
    option: Option
    why: str
    speedup: float = 1.0
    worth: float = 1.0
    judged: tuple[Judged, ...] = field(default=())

    def to_plain(self) -> dict[str, Any]:
        """For the log and for states."""
        return {
            "step": self.step,
            "scorer": self.option.scorer,
            "ratio": self.option.ratio,
            "why": self.why,
            "speedup": self.speedup,
            "worth": self.worth,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> PilotDecision:
        """Back from what `to_plain` gave."""
        option = Option(str(plain["scorer"]), int(plain["ratio"]))
        if option.ratio not in (1, *LADDER):
            raise ValueError(
                f"the state is damaged: a decision to keep 1 in {option.ratio} is not one of the autopilot"
            )
        speedup, worth = float(plain["speedup"]), float(plain["worth"])
        return cls(int(plain["step"]), option, str(plain["why"]), speedup, worth)
