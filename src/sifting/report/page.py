"""The report as one HTML page: no script, nothing from elsewhere, everything from runs escaped."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from sifting._version import __version__
from sifting.report import provenance, tables
from sifting.report.figures import Drawing, drawings
from sifting.report.palette import (
    CLOCKS,
    DARK,
    DARK_CLOCKS,
    LIGHT,
    LIGHT_CLOCKS,
    place,
    style,
    variables,
)
from sifting.report.reading import Experiment, Material
from sifting.report.sanitize import escape
from sifting.verdict import Verdict

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
OUTCOMES = {
    "pays": "Selection pays",
    "open": "Not settled",
    "no gain": "No measurable gain",
    "harm": "Selection does harm",
    "cannot judge": "Not judged",
}
SHAPES = {
    "o": '<circle cx="15" cy="6" r="3"/>',
    "x": '<path d="M12 3l6 6M12 9l6-6" stroke="currentColor" stroke-width="1.6"/>',
    "s": '<path d="M12 3h6v6h-6z"/>',
    "^": '<path d="M15 2.5l3.5 6.5h-7z"/>',
    "D": '<path d="M15 2l4 4-4 4-4-4z"/>',
    "v": '<path d="M15 9.5l3.5-6.5h-7z"/>',
    "P": '<path d="M13.5 2.5h3v2h2v3h-2v2h-3v-2h-2v-3h2z"/>',
    "X": '<path d="M12 2l3 2.5 3-2.5 1 1-2.5 3 2.5 3-1 1-3-2.5-3 2.5-1-1 2.5-3-2.5-3z"/>',
}


@dataclass(frozen=True)
class Extra:
    """A picture to show after the runs, with a heading and what it says in words."""

    title: str
    about: str
    svg: bytes


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
        refresh: seconds after which the page loads itself anew, while it is kept current.
        extras: pictures to show after the runs.
    """
    sheet = files("sifting.report").joinpath("style.css").read_text(encoding="utf-8")
    dark = variables(DARK, DARK_CLOCKS)
    colours = (
        f":root {{ {variables(LIGHT, LIGHT_CLOCKS)} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    )
    again = (
        ""
        if refresh is None
        else f'<meta http-equiv="refresh" content="{max(1, round(refresh))}">\n'
    )
    body = "\n".join(_experiment(e, number) for number, e in enumerate(material.experiments))
    body += "".join(_extra(extra, number) for number, extra in enumerate(extras))
    live = "" if refresh is None else f", read anew every {max(1, round(refresh))} s"
    first = material.experiments[0]
    policy = POLICY + ("; img-src data:" if extras else "")
    title = f"{OUTCOMES[first.verdict.outcome]}: {first.title}"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n{again}'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>\n{colours}{sheet}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#main">Skip to the verdict</a>\n'
        f"<header><h1>Does selection pay?</h1></header>\n"
        f'<main id="main">\n{body}\n{_skipped(material)}</main>\n'
        f'<footer><p class="made">Written {escape(written)} by sifting {escape(__version__)} from the run '
        f"folders alone{live}.</p></footer>\n</body>\n</html>\n"
    )


def _experiment(experiment: Experiment, number: int) -> str:
    verdict, at = experiment.verdict, f"e{number}"
    arms = "".join(f"<li>{_prose(arm.sentence)}</li>" for arm in verdict.arms)
    notes = "".join(f"<li>{_prose(note)}</li>" for note in verdict.notes)
    columns, rows = verdict.table()
    drawn = {d.key: d for d in drawings(experiment)}
    parts = [
        f'<section class="experiment" id="{at}" aria-labelledby="{at}-name">',
        f'<h2 id="{at}-name">{escape(experiment.title) or "Runs"}</h2>',
        f'<div class="verdict {verdict.outcome.replace(" ", "-")}">'
        f'<p class="outcome">Verdict</p><p class="overall">{_overall(verdict)}</p></div>',
        _table(
            tables.Table(
                "± is the standard deviation over seeds; ( – ) a 95 % interval", columns, rows
            )
        ),
        f'<ul class="arms">{arms}</ul>',
        f'<ul class="notes">{notes}</ul>',
    ]
    if "time" in drawn:
        parts += ["<h3>Learning curves</h3>", _arm_legend(experiment)]
        parts.append(_grid([drawn["time"], drawn["samples"]], at))
    parts += ["<h3>Cost</h3>", '<div class="grid cost">', _figure(drawn["clocks"], at), "<div>"]
    exits = tables.exit_table(experiment)
    if exits.rows:
        parts.append("<h4>Scoring time by exit</h4>")
        parts.append(
            '<p class="about">One selection scores all candidates; an update passes the kept forward and '
            "backward.</p>"
        )
        parts.append(_table(exits))
    parts += ["</div>", "</div>"]
    if "rho" in drawn:
        parts += ["<h3>Selection quality over training</h3>", _arm_legend(experiment)]
        parts.append(_grid([drawn["rho"], drawn["recall"]], at))
    different, common = provenance.settings(experiment)
    parts.append("<h3>Settings</h3>")
    parts.append(_table(different) if different.rows else "<p>All arms have the same settings.</p>")
    parts.append(_details("Settings that all runs share", _table(common)))
    parts += ["<h3>Machine and runs</h3>", _table(provenance.machines(experiment))]
    parts.append(_details("Every run", _table(provenance.run_table(experiment))))
    return "\n".join([*parts, "</section>"])


def _overall(verdict: Verdict) -> str:
    """The sentence, with what to do in bold."""
    if verdict.outcome == "pays":
        before, colon, claim = verdict.overall.rpartition(": ")
        claim, bracket, after = claim.partition(" (")
        return f"{_prose(before + colon)}<strong>{_prose(claim)}</strong>{_prose(bracket + after)}"
    act = "eave it off."
    claim, stop, after = verdict.overall.partition(act if act in verdict.overall else ". ")
    return f"<strong>{_prose(claim + stop.strip())}</strong> {_prose(after.strip())}".rstrip()


def _prose(text: str) -> str:
    """Running text, in which a number is not parted from its per cent."""
    return escape(text).replace(" %", "&nbsp;%")


def _extra(extra: Extra, number: int) -> str:
    # as an image, a drawing made elsewhere can neither run a script nor meet the page's styles
    data = base64.b64encode(extra.svg).decode("ascii")
    return (
        f'<section class="extra" aria-labelledby="x{number}"><h2 id="x{number}">{escape(extra.title)}</h2>'
        f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{escape(extra.about)}">'
        f'<figcaption><p class="about">{escape(extra.about)}</p></figcaption></figure></section>\n'
    )


def _skipped(material: Material) -> str:
    if not material.skipped:
        return ""
    rows = "".join(
        f"<li><strong>{escape(s.name)}</strong>: {escape(s.reason)}</li>" for s in material.skipped
    )
    return (
        '<section aria-labelledby="skipped"><h3 id="skipped">Left out, in whole or in part</h3>'
        f'<ul class="notes">{rows}</ul></section>\n'
    )


def _grid(drawn: list[Drawing], at: str) -> str:
    return '<div class="grid pair">' + "".join(_figure(d, at) for d in drawn) + "</div>"


def _figure(drawing: Drawing, at: str) -> str:
    key = f"{at}-{drawing.key}"
    legend = _clock_legend() if drawing.legend == "clocks" else ""
    return (
        f'<figure id="{key}"><figcaption><h4>{escape(drawing.title)}</h4>'
        f'<p class="about">{escape(drawing.about)}</p></figcaption>\n'
        f"{legend}{drawing.svg(key)}\n"
        f"{_details('The data', _table(drawing.table))}</figure>\n"
    )


def _details(summary: str, inside: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def _arm_legend(experiment: Experiment) -> str:
    items = []
    for i, arm in enumerate(experiment.arms):
        dash, mark = style(i)
        dashes = "" if dash == "solid" else " ".join(f"{2 * part:g}" for part in dash[1])
        items.append(
            f'<li><svg width="30" height="12" viewBox="0 0 30 12" aria-hidden="true" fill="currentColor" '
            f'style="color: var(--s{place(i)})"><path d="M0 6h30" stroke="currentColor" '
            f'stroke-width="2" stroke-dasharray="{dashes}"/>{SHAPES[mark]}</svg>'
            f"<span>{escape(arm)}</span></li>"
        )
    return f'<ul class="legend" aria-label="Arms">{"".join(items)}</ul>'


def _clock_legend() -> str:
    items = "".join(
        f'<li><svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" rx="2" '
        f'style="fill: var(--k{i})"/></svg><span>{clock}</span></li>'
        for i, clock in enumerate(CLOCKS)
    )
    return f'<ul class="legend" aria-label="What time is spent on">{items}</ul>'


def _table(table: tables.Table) -> str:
    """A table in a box of its own, which scrolls where the page is narrow."""
    numeric = [
        all(re.fullmatch(r"[−+\-\d.,]+( %| ms)?|–", row[i]) for row in table.rows) and i > 0
        for i in range(len(table.columns))
    ]
    head = "".join(
        f'<th scope="col"{_num(n)}>{escape(name)}</th>'
        for name, n in zip(table.columns, numeric, strict=True)
    )
    body = "".join(
        "<tr>"
        + f'<th scope="row">{_dotted(row[0])}</th>'
        + "".join(
            f"<td{_num(n) or _short(cell)}>{escape(cell)}</td>"
            for cell, n in zip(row[1:], numeric[1:], strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.caption)}">'
        f"<table><caption><span>{escape(table.caption)}</span></caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _dotted(name: str) -> str:
    """A name that may be broken after its dots and brackets."""
    return re.sub(r"([.(/])", r"\1<wbr>", escape(name))


def _num(numeric: bool) -> str:
    return ' class="num"' if numeric else ""


def _short(cell: str) -> str:
    return ' class="short"' if len(cell) < 28 else ""
