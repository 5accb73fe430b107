"""The report as one HTML page: no script, nothing from elsewhere, everything from runs escaped.

`view` has what is shown of an experiment; the templates say how. Autoescape is on, and every value is
rid of control characters on its way.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from sifting._version import __version__
from sifting.report.marks import sign
from sifting.report.palette import (
    DARK,
    DARK_CLOCKS,
    LIGHT,
    LIGHT_CLOCKS,
    THEMED,
    variables,
)
from sifting.report.reading import Material, Skipped
from sifting.report.sanitize import clip
from sifting.report.tables import Table
from sifting.report.view import OUTCOMES, view
from sifting.terminal import printable

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
FULL = 2  # experiments with all their figures; of further ones, the verdict and its table
MOST_EXPERIMENTS, MOST_SKIPPED = 400, 200


@dataclass(frozen=True)
class Extra:
    """A picture to show after the runs, with a heading and what it says in words."""

    title: str
    about: str
    svg: bytes

    @property
    def data(self) -> str:
        """As an image: a drawing made elsewhere can neither run a script nor meet the page's styles."""
        return base64.b64encode(self.svg).decode("ascii")


def page(
    material: Material,
    *,
    written: str,
    refresh: float | None = None,
    extras: Sequence[Extra] = (),
) -> str:
    """The page.

    Args:
        material: of `collect`.
        written: when, in words.
        refresh: seconds after which the page loads itself again, while it is kept current.
        extras: pictures to show after the runs.
    """
    sheet = files("sifting.report").joinpath("style.css").read_text(encoding="utf-8")
    dark = variables(DARK, DARK_CLOCKS)
    colours = (
        f":root {{ {variables(LIGHT, LIGHT_CLOCKS)} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    )
    shown, first = material.experiments[:MOST_EXPERIMENTS], material.experiments[0]
    return (
        _environment()
        .get_template("page.html")
        .render(
            policy=Markup(POLICY + ("; img-src data:" if extras else "")),
            refresh=None if refresh is None else max(1, round(refresh)),
            title=f"{OUTCOMES[first.verdict.outcome]}: {first.title}",
            style=Markup(colours + sheet),
            few=_few(len(material.experiments)),
            experiments=[view(e, number, full=number < FULL) for number, e in enumerate(shown)],
            extras=extras,
            skipped=_skipped(material),
            written=written,
            version=__version__,
        )
    )


def _few(experiments: int) -> str:
    if experiments <= FULL:
        return ""
    left = f" The last {experiments - MOST_EXPERIMENTS:,} are left out." * (
        experiments > MOST_EXPERIMENTS
    )
    return (
        f"Here are {experiments:,} experiments. Figures, settings and runs are shown of the first {FULL}, of "
        f"the others the verdict and its table: give the folder of one to see all of it.{left}"
    )


def _skipped(material: Material) -> list[Skipped]:
    shown = [Skipped(clip(s.name, 200), clip(s.reason, 400)) for s in material.skipped]
    more = len(shown) - MOST_SKIPPED
    return shown[:MOST_SKIPPED] + ([Skipped(f"{more:,} more", "not shown")] if more > 0 else [])


@cache
def _environment() -> Environment:
    env = Environment(
        loader=PackageLoader("sifting.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_cleaned,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters.update(
        whole=_whole,
        dotted=_dotted,
        parted=_parted,
        numeric=_numeric,
        sign=lambda mark: Markup(sign(mark.kind, mark.index, THEMED)),
    )
    return env


def _cleaned(value: Any) -> Any:
    """Every value that a template shows; escaping comes after it."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _whole(text: str) -> Markup:
    """Running text, in which a number is not parted from its per cent, nor an interval in two."""
    shown = str(escape(printable(text))).replace(" %", "\N{NO-BREAK SPACE}%")
    return Markup(_INTERVAL.sub(r'<span class="nb">\g<0></span>', shown))


_INTERVAL = re.compile(r"\([−+]?[\d.]+(–| to )[−+]?[\d.]+\)")


def _dotted(name: str) -> Markup:
    """A name that may be broken after its dots, colons and brackets."""
    return Markup(re.sub(r"([.:(/])", r"\1<wbr>", str(escape(printable(name)))))


def _parted(cell: str) -> Markup | str:
    """A number with its interval, which may be broken between the two and nowhere else."""
    number, bracket, interval = cell.partition(" (")
    if not bracket or not re.fullmatch(r"[−+\-\d.]+", number) or len(interval) > 24:
        return cell
    return Markup("<span>{}</span> <span>({}</span>").format(number, interval)


def _numeric(table: Table) -> list[bool]:
    """Which columns hold numbers alone."""
    return [
        i > 0 and all(re.fullmatch(r"[−+\-\d.,]+( %| ms)?|–|", row[i]) for row in table.rows)
        for i in range(len(table.columns))
    ]
