"""Writing a report: whole or not at all."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from sifting.files import write_bytes, write_text
from sifting.report.figures import drawings
from sifting.report.markdown import markdown
from sifting.report.page import Extra, page
from sifting.report.reading import Material
from sifting.report.sanitize import clip

MOST_DRAWN = 12  # experiments whose figures are written as files


def write_html(
    material: Material,
    path: Path,
    *,
    refresh: float | None = None,
    extras: Sequence[Extra] = (),
) -> Path:
    """Write the report as one HTML page.

    Args:
        material: of `collect`.
        path: the file.
        refresh: seconds after which the page loads itself again, while it is kept current.
        extras: pictures to show after the runs.
    """
    written = time.strftime("%Y-%m-%d %H:%M %Z")
    whole = page(material, written=written, refresh=refresh, extras=extras)
    write_text(path, whole)
    return path


def write_markdown(material: Material, path: Path, *, figures: Path | None = None) -> Path:
    """Write the report as Markdown, and its figures beside it.

    Args:
        material: of `collect`.
        path: the file.
        figures: folder for the figures; by default named after the file.
    """
    folder = figures if figures is not None else path.with_name(f"{path.stem}-figures")
    links = {
        key: Path(os.path.relpath(file, path.parent)).as_posix()
        for key, file in write_figures(material, folder).items()
    }
    write_text(path, markdown(material, links=links))
    return path


def write_figures(material: Material, folder: Path) -> dict[str, Path]:
    """Write every figure as PNG and SVG, and return where the PNGs are.

    Args:
        material: of `collect`.
        folder: where to; it is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for number, experiment in enumerate(material.experiments[:MOST_DRAWN]):
        for drawing in drawings(experiment):
            name = drawing.key if len(material.experiments) == 1 else f"{number}-{drawing.key}"
            try:
                drawn = {kind: drawing.file(kind) for kind in ("svg", "png")}
            except Exception as error:  # one figure never costs the others
                said = clip(f"{name} cannot be drawn: {type(error).__name__} {error}", 300)
                warnings.warn(said, stacklevel=2)
                continue
            for kind, content in drawn.items():
                write_bytes(folder / f"{name}.{kind}", content)
            found[f"{number}-{drawing.key}"] = folder / f"{name}.png"
    return found
