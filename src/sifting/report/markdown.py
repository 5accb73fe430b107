"""The report as Markdown, with links to its figures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from sifting.markdown import code, escape, table
from sifting.report import provenance, tables
from sifting.report.figures import drawings
from sifting.report.reading import Experiment, Material
from sifting.report.tables import Table
from sifting.report.view import warnings_of
from sifting.terminal import printable


def markdown(material: Material, *, links: Mapping[str, str]) -> str:
    """The report.

    Args:
        material: of `collect`.
        links: where each figure is, by "0-time": number of the experiment and key of the figure.
    """
    lines = ["# Does selection pay?", ""]
    for number, experiment in enumerate(material.experiments):
        lines += _experiment(experiment, number, links)
    if material.skipped:
        lines += ["## Left out, in whole or in part", ""]
        lines += [f"- {code(printable(s.name))}: {escape(s.reason)}" for s in material.skipped]
    return printable("\n".join(lines)).rstrip() + "\n"


def _experiment(experiment: Experiment, number: int, links: Mapping[str, str]) -> list[str]:
    title = (
        " · ".join(code(part) for part in experiment.title.split(" · "))
        if experiment.title
        else "Runs"
    )
    lines = [f"## {title}", "", experiment.verdict.markdown()]
    warned = warnings_of(experiment)
    if warned:
        lines += ["### Warnings during training", ""]
        lines += [f"- {escape(w.message)} ({w.runs.markdown()})" for w in warned] + [""]
    for drawing in drawings(experiment):
        link = links.get(f"{number}-{drawing.key}")
        if link is not None:
            lines += [f"### {escape(drawing.title)}", ""]
            lines += [f"![{escape(drawing.title)}]({quote(link)})", "", escape(drawing.about), ""]
    different, _ = provenance.settings_tables(experiment)
    for found in (
        tables.clock_table(experiment),
        tables.token_table(experiment),
        tables.exit_table(experiment),
        different,
        provenance.machines(experiment),
        provenance.run_table(experiment),
    ):
        if found.rows:
            lines += [f"### {escape(found.caption)}", "", _table(found), ""]
    return lines


def _table(found: Table) -> str:
    fitted = found.fitted()
    return table(map_fields(fitted.columns), [map_fields(row) for row in fitted.rows])


def map_fields(cells: Sequence[str]) -> list[str]:
    """Fields as they are where they can be nothing but text, and as code where Markdown might differ.

    >>> map_fields(["sift", "0.82 (0.68–0.98)", "mine:tent:"])
    ['sift', '0.82 (0.68–0.98)', '`mine:tent:`']
    """
    return [cell if _PLAIN.fullmatch(cell) else code(cell) for cell in cells]


_PLAIN = re.compile(r"(?!.*www\.)[\w .,;%()+÷±–−-]*", flags=re.IGNORECASE)
