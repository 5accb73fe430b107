"""What a plain run tells of selection: from the autopilot's records to phases and savings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sifting.measure.learning import speedup

SURE = 2.0  # standard errors of an interval
MEMORY = "memory"  # name of a scorer
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
            _saved(s) for s in (self.speedup.low, self.speedup.value, self.speedup.high)
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
    """

    first: float
    last: float
    batch: int
    rows: tuple[Row, ...]
    option: str
    speedup: Range
    why: str

    @property
    def chosen(self) -> tuple[str, int] | None:
        """Scorer and ratio of what the autopilot would do; None where it would train everything."""
        return next(
            (
                (row.scorer, row.ratio)
                for row in self.rows
                if self.option == _named(row.scorer, row.ratio)
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
        auto: predicted saving of the autopilot over the whole run.
        settings: predicted saving of each setting, used from where it is known on, by scorer and ratio.
        trials: what they found, as recorded.
        notes: what a reader should know.
        metrics: of the plain run at its end, where it was trained to it.
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

    @property
    def pays(self) -> bool:
        """Whether a saving is to be expected beyond doubt."""
        return self.auto.low > 0

    @property
    def planned(self) -> int:
        """Updates to plan with the autopilot for the result of the plain run."""
        return round(self.updates * (1 - self.auto.value)) if self.pays else self.updates

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


def _saved(speedup: float) -> float:
    """Share of the time that a speed-up saves.

    >>> _saved(1.25), _saved(0.5)
    (0.2, -1.0)
    """
    return round(1 - 1 / max(LEAST, speedup), 9)


def read_phases(
    records: Iterable[Mapping[str, Any]], *, batches: int, explore: float
) -> list[Phase]:
    """The phases of a plain run, from the autopilot's records of its decisions.

    Args:
        records: of the log; only decisions count.
        batches: of the planned run.
        explore: share of the kept that is drawn at random.
    """
    found: list[Phase] = []
    first = 0.0
    for record in records:
        if record["kind"] != "decision":
            continue
        last = record["batch"] / batches
        rows = tuple(_rows(record, explore))
        option = (str(record["scorer"]), int(record["ratio"]))
        found.append(
            Phase(
                first,
                last,
                int(record["batch"]),
                rows,
                _named(*option),
                _expected(record, option, rows),
                str(record["why"]),
            )
        )
        first = last
    return found


def _named(scorer: str, ratio: int) -> str:
    return "everything" if ratio == 1 else f"1 in {ratio} by {scorer}"


def _rows(record: Mapping[str, Any], explore: float) -> Iterable[Row]:
    shares = {(one["scorer"], one["ratio"]): one for one in record.get("shares", ())}
    for judged in record["judged"]:
        key = judged["scorer"], judged["ratio"]
        known, cost = shares.get(key), judged["cost"]
        row = Row(
            *key,
            cost,
            kept_loss=judged.get("kept_loss"),
            agreement=judged.get("agreement"),
        )
        if known is None:
            yield row
            continue
        share, error = known["share"], known["error"]
        if key[0] == MEMORY:  # that of exact losses at an earlier look: a memory knows less
            yield replace(row, share=share, error=error)
            continue
        low, value, high = (
            speedup(min(1.0, share + k * error), ratio=key[1], explore=explore) / (1 + cost)
            for k in (-SURE, 0.0, SURE)
        )
        yield replace(row, share=share, error=error, speedup=Range(value, low, high))


def _expected(record: Mapping[str, Any], option: tuple[str, int], rows: Sequence[Row]) -> Range:
    """The speed-up of what the autopilot would do; no interval where no share tells."""
    if option[1] == 1:
        return Range(1.0, 1.0, 1.0)
    value = float(record["speedup"])
    known = next((row for row in rows if (row.scorer, row.ratio) == option), None)
    if known is None or known.speedup is None:
        return Range(value, 1.0, value)
    spread = known.speedup.high - known.speedup.value, known.speedup.value - known.speedup.low
    return Range(value, value - spread[1], value + spread[0])


def whole_run(phases: Sequence[Phase], speedups: Sequence[Range | None]) -> Range:
    """Saving over a whole run, from what is expected after each look until the next.

    The last look stands for the rest of the run, and where nothing is known everything is trained.

    Args:
        phases: of the run.
        speedups: after the look at the end of each phase; None where nothing is known.
    """
    if not phases:
        return Range(0.0, 0.0, 0.0)
    ends = [phase.last for phase in phases[1:]] + [1.0]
    lengths = [end - phase.last for phase, end in zip(phases, ends, strict=True)]
    before = phases[0].last

    def saved(pick: str) -> float:
        spent = before
        for length, found in zip(lengths, speedups, strict=True):
            rate = 1.0 if found is None else max(LEAST, getattr(found, pick))
            spent += length / rate
        return 1 - spent

    return Range(saved("value"), saved("low"), saved("high"))


def make_advice(
    records: Sequence[Mapping[str, Any]],
    *,
    target: str,
    updates: int,
    seen: int,
    batches: int,
    explore: float,
    notes: Sequence[str] = (),
    metrics: Mapping[str, float] | None = None,
) -> Advice:
    """The advice that a plain run's records give.

    A setting is taken up by what is known at a look; what it is worth from there to the next one is by
    the progress that was made until then, which a run at work does not know.

    Args:
        records: of the autopilot, decisions and trials.
        target: what was trained.
        updates, seen: planned, and made.
        batches: of the planned run.
        explore: share of the kept that is drawn at random.
        notes, metrics: see `Advice`.
    """
    phases = read_phases(records, batches=batches, explore=explore)
    later = [*phases[1:], *phases[-1:]]  # nothing is seen after the last look
    keys = dict.fromkeys((row.scorer, row.ratio) for phase in phases for row in phase.rows)
    settings = {}
    for key in keys:
        known = [phase.speedup_of(key) for phase in phases]
        if any(one is not None for one in known):
            after = [
                None if one is None else phase.speedup_of(key)
                for one, phase in zip(known, later, strict=True)
            ]
            settings[key] = whole_run(phases, after)
    of_auto = [
        phase.speedup
        if phase.chosen is None
        else next_one.speedup_of(phase.chosen) or phase.speedup
        for phase, next_one in zip(phases, later, strict=True)
    ]
    return Advice(
        target,
        updates,
        seen,
        tuple(phases),
        whole_run(phases, of_auto),
        settings,
        tuple(record for record in records if record["kind"] == "trial"),
        tuple(notes),
        metrics or {},
    )
