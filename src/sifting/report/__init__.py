"""Reports of runs: one page that says whether selection paid, and shows why.

A report reads run folders (docs/run-format.md) and nothing else. `sift report` is its command;
`write_html` is what a program calls.

    reading → bands → tables, provenance → figures → view → page (templates), markdown → writing → command
"""

from __future__ import annotations

from sifting.report.page import Extra
from sifting.report.reading import Material, NothingToReport, collect
from sifting.report.writing import write_figures, write_html, write_markdown

__all__ = [
    "Extra",
    "Material",
    "NothingToReport",
    "collect",
    "write_figures",
    "write_html",
    "write_markdown",
]
