"""A verdict as a table and as Markdown. Nothing here computes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sifting.verdict.intervals import Estimate
from sifting.verdict.wording import figure, gap, ratio

if TYPE_CHECKING:
    from sifting.verdict import Verdict
    from sifting.verdict.pairing import ArmVerdict


def table(verdict: Verdict) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of strings."""
    unit = " %" if verdict.percent else ""
    target = "target" if verdict.target is None else figure(verdict, verdict.target)
    gaps = "points to baseline" if verdict.percent else "difference to baseline"
    columns = [
        "arm",
        "seeds",
        f"{verdict.metric}{unit}",
        gaps,
        f"time to {target} ÷ baseline",
        "samples ÷ baseline",
        "time in all ÷ baseline",
    ]
    rows = []
    for arm in verdict.arms:
        scale, digits = (100.0, 2) if verdict.percent else (1.0, 4)
        mean = "–" if arm.mean is None else f"{scale * arm.mean:.{digits}f}"
        spread = "" if arm.std is None else f" ± {scale * arm.std:.{digits}f}"
        seeds = str(arm.runs) if arm.finished == arm.runs else f"{arm.finished} of {arm.runs}"
        base = arm.role == "baseline"
        rows.append(
            [
                arm.name,
                seeds,
                mean + spread,
                "–"
                if arm.difference is None
                else gap(verdict, arm.difference).replace(" points", ""),
                _cell(arm, arm.time_ratio, base=base),
                _cell(arm, arm.samples_ratio, base=base),
                "1" if base else "–" if arm.cost is None else ratio(arm.cost),
            ]
        )
    return columns, rows


def _cell(arm: ArmVerdict, estimate: Estimate | None, *, base: bool) -> str:
    if estimate is not None:
        return ratio(estimate)
    if not arm.finished:
        return "–"
    if arm.reached < arm.runs:
        return f"reached by {arm.reached} of {arm.runs}"
    return "1" if base else "–"


def markdown(verdict: Verdict) -> str:
    """The verdict as Markdown; names from runs are escaped."""
    columns, rows = table(verdict)
    lines = [f"**{escape(verdict.overall)}**", ""]
    lines += [f"| {' | '.join(map(escape, columns))} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(map(escape, row))} |" for row in rows]
    lines += ["", *(f"- {escape(arm.sentence)}" for arm in verdict.arms)]
    return (
        "\n".join([*lines, "", *(f"{note}\n" for note in map(escape, verdict.notes))]).rstrip()
        + "\n"
    )


def escape(text: str) -> str:
    """Text that Markdown shows as it is.

    >>> print(escape("a|b <script> _c_d"))
    a\\|b &lt;script&gt; \\_c_d
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for sign in "\\`*[]|":
        text = text.replace(sign, f"\\{sign}")
    return re.sub(
        r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text
    )  # inside a word it is only an underscore
