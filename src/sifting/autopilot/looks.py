"""When to look at held-out samples, and at how many: so that all looks stay within a share of the
run. Pure."""

from __future__ import annotations

from dataclasses import dataclass

BUDGET = 0.02  # share of the run's updates that looks and trials may take together
LOOKING = 0.6  # of it, that looks may
FRACTIONS = (0.05, 0.10, 0.16, 0.25, 0.40, 0.60)  # of the planned steps
FEWEST = 100  # held-out samples, below which a look says nothing
FORWARD = 1 / 3  # of an update's work
SMALL = 4  # times smaller than the batches that are trained: too small to look at quickly
UNPLANNED = 100  # steps between looks at first, where the end is not known


@dataclass(frozen=True)
class LookPlan:
    """Which steps have a look, and how many samples are looked at.

    >>> plan_looks(1000, batch=32, held_out=5000)
    LookPlan(steps=(50, 100, 160, 250, 400, 600), samples=192)

    Attributes:
        steps: after which a look is made; empty where looks cannot be afforded.
        samples: looked at each time.
    """

    steps: tuple[int, ...]
    samples: int

    def due(self, before: float, after: float) -> bool:
        """Whether a look is made when a run goes from a place to another, in plain steps."""
        return any(before < step <= after for step in self.steps)


def plan_looks(steps: int | None, *, batch: int, held_out: int, budget: float = BUDGET) -> LookPlan:
    """Looks that cost at most a fixed share of the run.

    Args:
        steps: planned; None where the end is not known, and looks come ever more seldom.
        batch: samples of a step.
        held_out: samples there are.
        budget: share of it that looks may take, and trials beside them.
    """
    budget *= LOOKING
    if steps is None:
        times = tuple(UNPLANNED * 2**k for k in range(24))
        affordable = int(budget * UNPLANNED * batch / FORWARD)
    else:
        times = tuple(sorted({max(1, round(f * steps)) for f in FRACTIONS}))
        affordable = int(budget * steps * batch / FORWARD / len(times))
    samples = min(held_out, affordable)
    return LookPlan(times if samples >= FEWEST else (), samples)


def why_none(there: int, updates: int | None) -> str:
    """Why there are no looks, in words.

    >>> why_none(20, 1000)
    'it has 20 samples, and 100 or more tell something'

    Args:
        there: held-out samples.
        updates: planned; None where the end is not known.
    """
    if there < FEWEST:
        return f"it has {there} samples, and {FEWEST} or more tell something"
    run = "so small a batch" if updates is None else f"a run of {updates} such batches"
    return f"looks at {FEWEST} samples, the fewest that tell something, cost too much of {run}"


def why_slow(batches: int, *, there: int, size: int) -> str:
    """Why looks take longer than planned, in words; nothing where they do not.

    >>> why_slow(1000, there=1000, size=32).partition(":")[0]
    'comes in batches of 1, and 32 samples are trained at once'
    >>> why_slow(10, there=1000, size=32)
    ''

    Args:
        batches: of held-out samples.
        there: samples in them.
        size: samples of a step.
    """
    if there * SMALL >= batches * size:
        return ""
    mean = f"{there / batches:.3g}"
    return (
        f"comes in batches of {mean}, and {size} samples are trained at once: looks take longer than planned. "
        "Give larger batches"
    )
