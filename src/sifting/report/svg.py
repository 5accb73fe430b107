"""Matplotlib's figures as files, and as elements of a page in its own colours."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from matplotlib import style
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from sifting.report.palette import VARIABLES
from sifting.report.sanitize import escape


@contextmanager
def drawing_style() -> Iterator[None]:
    """Settings of our own: the same figure gives the same bytes, text stays text."""
    mine: dict[str, Any] = {
        "svg.hashsalt": "sifting",
        "svg.fonttype": "none",
        "font.size": 12,
        "text.parse_math": False,  # names from runs are text, not formulas
        "axes.spines.top": False,
        "axes.spines.right": False,
        "hatch.linewidth": 0.6,
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in any script
        with style.context(["default", mine]):  # whatever the user has set for plots of their own
            yield


def saved(figure: Figure, kind: str) -> bytes:
    """A figure as the content of a file."""
    buffer = io.BytesIO()
    if kind == "svg":
        # drawn once; `savefig` draws twice, the first time to see how large it will be
        canvas: Any = FigureCanvasSVG(figure)  # whose methods have no types
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": None})
    else:
        figure.savefig(buffer, format=kind, dpi=200)
    return buffer.getvalue()


def inline(source: str, *, prefix: str, title: str, about: str) -> str:
    """An SVG file as an element of a page: named, in the page's colours and font, without a fixed size.

    Args:
        source: the file, from Matplotlib.
        prefix: goes before every id, which must not occur twice in a page.
        title: its name.
        about: its description.
    """
    body = source[source.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    # inside tags alone: what stands between them is text, names of users among it
    body = re.sub(r"<[^>]*>", lambda tag: _adapted(tag.group(), prefix), body)
    body = re.sub(r">\s+<", "><", body)
    box = re.search(r'viewBox="[^"]*"', body)
    assert box is not None
    names = f'aria-labelledby="{prefix}-title {prefix}-desc"'
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{box.group()} role="img" {names}>'
        f'<title id="{prefix}-title">{escape(title)}</title>'
        f'<desc id="{prefix}-desc">{escape(about)}</desc>'
    )
    return re.sub(r"<svg[^>]*>", lambda _: opening, body, count=1)


def _adapted(tag: str, prefix: str) -> str:
    """A tag with ids of its own, in the page's colours and font, and no finer than a screen."""
    tag = re.sub(r'\bid="', f'id="{prefix}-', tag)
    tag = tag.replace("url(#", f"url(#{prefix}-").replace('href="#', f'href="#{prefix}-')
    tag = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px; font-family: inherit", tag)
    for colour, variable in VARIABLES.items():
        tag = tag.replace(colour, variable)
    return re.sub(r"(\d\.\d\d)\d+", r"\1", tag)
