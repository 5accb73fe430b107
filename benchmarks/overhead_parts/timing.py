"""Times of cases that take turns, round by round, and what they come to."""

from __future__ import annotations

import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from sifting import __version__

RESULTS = Path(__file__).parent.parent / "results"

Rounds = list[dict[str, list[tuple[float, float]]]]  # of each case: seconds of wall and of CPU


def timed_in_turns(
    cases: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    skip: Callable[[int, str], bool] = lambda round, name: False,
    updates: int = 2,
) -> Rounds:
    """Time every case in every round, in a newly drawn order, the update twice by default.

    Args:
        cases: by name; one is called "update".
        rounds: how many.
        skip: `skip(round, name)`, whether a case is left out of a round.
        updates: how many there are in each round.
    """
    found_rounds: Rounds = []
    order = random.Random(0)
    for round in range(rounds):
        names = ["update"] * (updates - 1) + [name for name in cases if not skip(round, name)]
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for name in order.sample(names, len(names)):
            start, start_cpu = time.perf_counter(), time.process_time()
            cases[name]()
            found[name].append((time.perf_counter() - start, time.process_time() - start_cpu))
        found_rounds.append(found)
        print(f"round {round + 1} of {rounds}", file=sys.stderr, flush=True)
    return found_rounds


def seconds_of(rounds: Rounds, name: str) -> list[float]:
    return [wall for found in rounds for wall, _ in found.get(name, [])]


def ratios(rounds: Rounds, name: str, clock: int) -> list[float]:
    """A case's time over the mean of its round's updates; clock 0 is the wall's, 1 the CPU's."""
    return [
        one[clock] / statistics.fmean(update[clock] for update in found["update"])
        for found in rounds
        for one in found.get(name, [])
    ]


def processor() -> str:
    """The processor's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def circumstances(threads: int, load: tuple[float, ...]) -> dict[str, Any]:
    """When, where and with what something was measured."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "threads": threads,
            "system": platform.platform(),
            "load_before": load,
            "load_after": os.getloadavg(),
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "sifting": __version__,
        },
    }
