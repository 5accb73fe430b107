"""Numbers of a verdict as people read them. Nothing here computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sifting.verdict.intervals import Estimate
from sifting.verdict.prose import Prose, name, prose

if TYPE_CHECKING:
    from sifting.verdict import Verdict


def short(value: float, digits: int = 2) -> str:
    """A number without trailing zeros.

    >>> short(78.0), short(77.964), short(-0.001)
    ('78', '77.96', '0')
    """
    shown = f"{value:.{digits}f}"
    shown = shown.rstrip("0").rstrip(".") if "." in shown else shown
    return "0" if shown == "-0" else shown


def shown_metric(verdict: Verdict, value: float) -> Prose:
    """A metric with its unit."""
    if verdict.percent:
        return prose(f"{short(100 * value)} %")
    return name(verdict.metric) + f" {value:.4g}"


def points(verdict: Verdict, value: float) -> str:
    """The size of a difference of the metric: "1.8 points"."""
    if verdict.percent:
        return f"{100 * value:.2g} points" if value < 0.1 else f"{100 * value:.0f} points"
    return f"{value:.2g}"


def spread(verdict: Verdict, value: float) -> str:
    """A standard deviation of the metric."""
    return f"{100 * value:.2f} points" if verdict.percent else f"{value:.3g}"


def gap(verdict: Verdict, estimate: Estimate) -> str:
    """A difference of the metric with its interval."""
    scale, unit = (100.0, " points") if verdict.percent else (1.0, "")
    value, digits = estimate.value * scale, 2 if verdict.percent else 4
    if estimate.low is None or estimate.high is None:
        return f"{_signed(value, digits)}{unit}"
    if estimate.low == estimate.high:  # no spread, and so no interval
        return f"{_signed(value, digits)}{unit} (every seed)"
    low, high = (_signed(end * scale, digits) for end in (estimate.low, estimate.high))
    return f"{_signed(value, digits)}{unit} ({low} to {high})"


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def ratio(estimate: Estimate) -> str:
    """A ratio with its interval; digits enough to see on which side of 1 it lies.

    >>> ratio(Estimate(0.91, 0.86, 0.97, 0.01, 5)), ratio(Estimate(0.99, 0.97, 0.998, 0.01, 5))
    ('0.91 (0.86–0.97)', '0.990 (0.970–0.998)')
    """
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    ends = (estimate.low, estimate.high)
    digits = next((d for d in (2, 3) if all(abs(e - 1) > 0.5 * 10**-d for e in ends)), 4)
    if min(ends) < 1 < max(ends) or ends == (1.0, 1.0):
        digits = 2
    return f"{estimate.value:.{digits}f} ({ends[0]:.{digits}f}–{ends[1]:.{digits}f})"


def percent(share: float) -> str:
    """A share in per cent, whole where that says enough.

    >>> percent(0.083), percent(0.004)
    ('8 %', '0.4 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1g} %"


def duration(seconds: float) -> str:
    """Seconds in the unit people say them in.

    >>> duration(0.5), duration(42.0), duration(7300.0)
    ('0.5 s', '42 s', '2.03 h')
    """
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def p_value(value: float) -> str:
    """A corrected p-value."""
    shown = "p < 0.001" if value < 0.001 else f"p = {value:.2g}"
    return f"{shown} after Holm's correction"


def count(number: int, thing: str) -> str:
    """How many of something.

    >>> count(1, "seed"), count(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{number:,} {thing}{'s' * (number != 1)}"
