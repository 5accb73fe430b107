"""What advice is: settings by phase of a plain run, and what each is predicted to save. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

LEAST = 0.25  # speed-up below which a prediction is cut off
# settings that are an arm of comparisons, by scorer and ratio
ARMS = {
    ("input", 2): "input-entropy",
    ("tuned", 2): "default",
}


@dataclass(frozen=True)
class Range:
    """A number with an interval.

    >>> str(Range(0.21, 0.15, 0.26))
    '21 % (15 to 26)'
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.0f} % ({100 * self.low:.0f} to {100 * self.high:.0f})"


PLAINLY = Range(1.0, 1.0, 1.0)  # the speed-up of training everything


@dataclass(frozen=True)
class Row:
    """What is known of one setting in one phase.

    Attributes:
        scorer, ratio: the setting: one in `ratio` by the scorer.
        cost: what its scoring adds to a step, as a share of a plain one.
        kept_loss: μ, the share of the loss that the kept carry.
        agreement: of the kept samples' gradient with the mean.
        share: learning share: of the progress on held-out samples, the part made on what is kept.
        error: standard error of that share.
        speedup: progress of a step over a plain one's, in time, by that share.
    """

    scorer: str
    ratio: int
    cost: float
    kept_loss: float | None = None
    agreement: float | None = None
    share: float | None = None
    error: float | None = None
    speedup: Range | None = None

    @property
    def saving(self) -> Range | None:
        """Share of the phase's time that it is predicted to save."""
        if self.speedup is None:
            return None
        low, value, high = (
            saved(s) for s in (self.speedup.low, self.speedup.value, self.speedup.high)
        )
        return Range(value, low, high)


@dataclass(frozen=True)
class Phase:
    """A part of a plain run, between two looks.

    Attributes:
        first, last: share of the planned run at which it begins and ends.
        batch: after which it was looked at, at its end.
        rows: of every setting.
        option: what the autopilot would do from then on, in words.
        speedup: that is expected of it.
        why: it would.
        others: scorer and ratio that other held-out samples, of as many, would have it go by; a ratio
            of 1 is everything.
    """

    first: float
    last: float
    batch: int
    rows: tuple[Row, ...]
    option: str
    speedup: Range
    why: str
    others: tuple[tuple[str, int], ...] = ()

    @property
    def chosen(self) -> tuple[str, int] | None:
        """Scorer and ratio of what the autopilot would do; None where it would train everything."""
        return next(
            (
                (row.scorer, row.ratio)
                for row in self.rows
                if self.option == named(row.scorer, row.ratio)
            ),
            None,
        )

    def speedup_of(self, setting: tuple[str, int]) -> Range | None:
        """The speed-up of a scorer and ratio, by the progress until the look; None where it is not known."""
        return next((row.speedup for row in self.rows if (row.scorer, row.ratio) == setting), None)


@dataclass(frozen=True)
class Advice:
    """What was found along a plain run.

    Attributes:
        target: what was trained.
        updates: of the plain run that was planned.
        seen: of them that were made.
        phases: in order.
        auto: predicted saving of the autopilot over the whole run, what it spends on measuring taken off;
            a mean over what other held-out samples of as many would have it do, where that is known.
        settings: predicted saving of each setting, used from where it is known on, by scorer and ratio.
        trials: what they found, as recorded.
        notes: what a reader should know.
        metrics: of the plain run at its end, where it was trained to it.
        overhead: what the autopilot spends on measuring, as a share of the plain run.
    """

    target: str
    updates: int
    seen: int
    phases: tuple[Phase, ...]
    auto: Range
    settings: Mapping[tuple[str, int], Range] = field(default_factory=dict)
    trials: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    overhead: float = 0.0

    @property
    def chance(self) -> float | None:
        """Share of other held-out samples, of as many, that would have it select; None where unknown."""
        sets = list(zip(*(phase.others for phase in self.phases), strict=True))
        if not sets:
            return None
        return sum(any(ratio > 1 for _, ratio in one) for one in sets) / len(sets)

    @property
    def pays(self) -> bool:
        """Whether a saving is to be expected beyond doubt."""
        return self.auto.low > 0

    @property
    def planned(self) -> int:
        """Updates to plan with the autopilot for the result of the plain run."""
        return round(self.updates * (1 - self.auto.value)) if self.pays else self.updates

    @property
    def sentence(self) -> str:
        """What to do, and what to expect of it."""
        if not self.phases:
            return "Nothing can be said: the run was too short, or no scorer fits the model."
        if not self.pays:
            why = self.phases[-1].why
            if self.auto.value > 0:
                why = f"what might be saved, {self.auto}, is within its error"
            return f"Leave it off: {why}. Plan {self.updates} updates.{self._hangs}"
        low, high = (round(self.updates * (1 - x)) for x in (self.auto.high, self.auto.low))
        return (
            f"Train with Sifter(model, trial=Trial(held_out=…, updates={self.updates}, schedule=…)): expect it to "
            f"end with the result of {self.updates} plain updates in the time of about {self.planned} ({low} to "
            f"{high}), a saving of {self.auto}{self._begun}.{self._hangs}"
        )

    def __str__(self) -> str:
        return "\n".join([*self.notes, self.sentence])

    @property
    def _begun(self) -> str:
        """What it would keep, from when on, and why."""
        for phase in self.phases:
            if phase.speedup.value > 1:
                return f"; it would keep {phase.option} from {phase.last:.0%} of the run on, since {phase.why}"
        return ""

    @property
    def _hangs(self) -> str:
        """How much hangs on the held-out samples that it can afford to look at."""
        if self.chance is None or self.chance in (0.0, 1.0):
            return ""
        count = max(len(phase.others) for phase in self.phases)
        return (
            f" Much hangs on which held-out samples it looks at: with {round(self.chance * count)} of {count} "
            "sets of as many as it can afford it would select."
        )

    def arms(self) -> dict[str, dict[str, float]]:
        """Predicted savings by the names that arms of comparisons have."""
        named = {ARMS[key]: found for key, found in self.settings.items() if key in ARMS}
        return {name: _plain(found) for name, found in {"auto": self.auto, **named}.items()}

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "version": 1,
            "target": self.target,
            "updates": self.updates,
            "seen": self.seen,
            "pays": self.pays,
            "planned": self.planned,
            "auto": _plain(self.auto),
            "chance": self.chance,
            "overhead": self.overhead,
            "arms": self.arms(),
            "settings": [
                {"scorer": scorer, "ratio": ratio, **_plain(found)}
                for (scorer, ratio), found in self.settings.items()
            ],
            "phases": [asdict(phase) for phase in self.phases],
            "trials": [dict(trial) for trial in self.trials],
            "notes": list(self.notes),
            "metrics": dict(self.metrics),
        }


def _plain(found: Range) -> dict[str, float]:
    return {"saving": found.value, "low": found.low, "high": found.high}


def saved(speedup: float) -> float:
    """Share of the time that a speed-up saves.

    >>> saved(1.25), saved(0.5)
    (0.2, -1.0)
    """
    return round(1 - 1 / max(LEAST, speedup), 9)


def named(scorer: str, ratio: int) -> str:
    """A setting in words.

    >>> named("input", 2), named("", 1)
    ('1 in 2 by input', 'everything')
    """
    return "everything" if ratio == 1 else f"1 in {ratio} by {scorer}"
