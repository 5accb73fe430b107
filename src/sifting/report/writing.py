"""Writing a report: whole or not at all."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from sifting.report.figures import drawings
from sifting.report.markdown import markdown
from sifting.report.page import Extra, page
from sifting.report.reading import Material


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
        refresh: seconds after which the page loads itself anew, while it is kept current.
        extras: pictures to show after the runs.
    """
    written = time.strftime("%Y-%m-%d %H:%M %Z")
    whole = page(material, written=written, refresh=refresh, extras=extras)
    return _write(path, whole.encode("utf-8"))


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
    return _write(path, markdown(material, links=links).encode("utf-8"))


def write_figures(material: Material, folder: Path) -> dict[str, Path]:
    """Write every figure as PNG and SVG, and return where the PNGs are.

    Args:
        material: of `collect`.
        folder: where to; it is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for number, experiment in enumerate(material.experiments):
        for drawing in drawings(experiment):
            name = drawing.key if len(material.experiments) == 1 else f"{number}-{drawing.key}"
            _write(folder / f"{name}.svg", drawing.file("svg"))
            found[f"{number}-{drawing.key}"] = _write(folder / f"{name}.png", drawing.file("png"))
    return found


def _write(path: Path, content: bytes) -> Path:
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path
