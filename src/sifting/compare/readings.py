"""From times that were measured round by round to a table of costs, and to its doubt. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sifting.compare.budget import ArmWork
from sifting.measure.clocks import OPERATIONS, UPDATE, of_update

SPAN = 200  # updates whose time is compared to see how much noise is left


@dataclass(frozen=True)
class Reading:
    """Times of an arm's operations, one for each round."""

    times: Mapping[str, Sequence[float]]
    work: ArmWork
    batch: int
    same: str
    samples: int  # of an update
    checkpoint_bytes: int = 0
    constant_lr: bool = False
    diverged: bool = False


def tables_of(readings: Mapping[str, Reading]) -> dict[str, dict[str, float]]:
    """A median for each operation, over the arms for which it is the same work."""
    shared: dict[tuple[str, object], list[float]] = {}
    for reading in readings.values():
        for name, key in _pools(reading):
            shared.setdefault((name, key), []).extend(reading.times[name])
    tables = {}
    for arm, reading in readings.items():
        times = {name: list(reading.times.get(name, ())) for name in OPERATIONS}
        times.update({name: shared[name, key] for name, key in _pools(reading)})
        tables[arm] = {
            name: statistics.median(found) if found else 0.0 for name, found in times.items()
        }
        table = tables[arm]
        # no more than a sample's part of a training forward
        table["looking"] = table["forward"] / reading.samples
        table["trials"] = of_update(table) + table["data"] * reading.samples
    return tables


def doubt_of(readings: Mapping[str, Reading]) -> dict[str, float]:
    """How far two tables, each from every other round, differ in an arm's time over the first's."""
    ratios: list[dict[str, float]] = []
    for half in (0, 1):
        part = {
            arm: replace(reading, times={k: v[half::2] for k, v in reading.times.items()})
            for arm, reading in readings.items()
        }
        spent = {
            arm: readings[arm].work.seconds(table, SPAN) for arm, table in tables_of(part).items()
        }
        ratios.append({arm: value / next(iter(spent.values())) for arm, value in spent.items()})
    one, other = ratios
    return {
        arm: 0.0 if reading.diverged else abs(one[arm] - other[arm]) / (one[arm] + other[arm])
        for arm, reading in readings.items()
    }


def _pools(reading: Reading) -> list[tuple[str, object]]:
    """The operations that arms share, and what they have to have in common for it."""
    return [*((name, reading.same) for name in UPDATE), ("data", reading.work.candidates)]
