"""The report as Markdown, with links to its figures."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from sifting.report import provenance, tables
from sifting.report.figures import drawings
from sifting.report.reading import Material
from sifting.report.sanitize import clean
from sifting.verdict.layout import escape


def markdown(material: Material, *, links: Mapping[str, str]) -> str:
    """The report.

    Args:
        material: of `collect`.
        links: where each figure is, by "0-time": number of the experiment and key of the figure.
    """
    lines = ["# Does selection pay?", ""]
    for number, experiment in enumerate(material.experiments):
        lines += [f"## {escape(experiment.title) or 'Runs'}", "", experiment.verdict.markdown()]
        for drawing in drawings(experiment):
            link = quote(links[f"{number}-{drawing.key}"])
            lines += [f"### {escape(drawing.title)}", "", f"![{escape(drawing.title)}]({link})", ""]
            lines += [escape(drawing.about), ""]
        different, _ = provenance.settings(experiment)
        for table in (
            tables.clock_table(experiment),
            tables.exit_table(experiment),
            different,
            provenance.machines(experiment),
            provenance.run_table(experiment),
        ):
            if table.rows:
                lines += [f"### {escape(table.caption)}", "", *_rows(table), ""]
    if material.skipped:
        lines += ["## Left out, in whole or in part", ""]
        lines += [f"- {escape(s.name)}: {escape(s.reason)}" for s in material.skipped]
    return clean("\n".join(lines)).rstrip() + "\n"


def _rows(table: tables.Table) -> list[str]:
    head = [f"| {' | '.join(map(escape, table.columns))} |", "|" + "---|" * len(table.columns)]
    return head + [f"| {' | '.join(map(escape, row))} |" for row in table.rows]
