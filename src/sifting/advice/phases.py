"""What a plain run tells of selection: from the autopilot's records to phases and savings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sifting.advice.result import LEAST, PLAINLY, Advice, Phase, Range, Row, named
from sifting.measure.learning import speedup

SURE = 2.0  # standard errors of an interval
MEMORY = "memory"  # name of a scorer
OUTSIDE = 0.07  # share of the sets of held-out samples that an interval leaves out at either end


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
                named(*option),
                _expected(record, option, rows),
                str(record["why"]),
                tuple((str(scorer), int(ratio)) for scorer, ratio in record.get("others", ())),
            )
        )
        first = last
    return found


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
            # a share above 1, where the others get worse, is no surer for that
            speedup(min(1.0, min(1.0, share) + k * error), ratio=key[1], explore=explore)
            / (1 + cost)
            for k in (-SURE, 0.0, SURE)
        )
        yield replace(row, share=share, error=error, speedup=Range(value, low, high))


def _expected(record: Mapping[str, Any], option: tuple[str, int], rows: Sequence[Row]) -> Range:
    """The speed-up of what the autopilot would do; no interval where no share tells."""
    if option[1] == 1:
        return PLAINLY
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
    overhead: float = 0.0,
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
        notes, metrics, overhead: see `Advice`.
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
    return Advice(
        target,
        updates,
        seen,
        tuple(phases),
        _of_auto(phases, later, overhead),
        settings,
        tuple(record for record in records if record["kind"] == "trial"),
        tuple(notes),
        metrics or {},
        overhead,
    )


def _of_auto(phases: Sequence[Phase], later: Sequence[Phase], overhead: float) -> Range:
    """Saving of the autopilot over a whole run, with every set of held-out samples that it may have had.

    Args:
        phases: of the run.
        later: the one after each, by whose progress it is judged what a choice was worth.
        overhead: what it spends on measuring.
    """
    own = tuple(phase.chosen or (MEMORY, 1) for phase in phases)
    others = list(zip(*(phase.others for phase in phases), strict=True))
    runs = []
    for chosen in others or [own]:
        speedups = []
        for key, phase, after in zip(chosen, phases, later, strict=True):
            told = phase.speedup if key == phase.chosen else PLAINLY
            speedups.append(PLAINLY if key[1] == 1 else after.speedup_of(key) or told)
        runs.append(whole_run(phases, speedups))
    count = len(runs)
    outside = int(OUTSIDE * count)  # on either side of the interval
    value = sum(run.value for run in runs) / count
    low = min(value, sorted(run.low for run in runs)[outside])
    high = max(value, sorted(run.high for run in runs)[count - 1 - outside])
    return Range(value - overhead, low - overhead, high - overhead)
