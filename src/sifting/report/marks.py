"""Marks and dashes of lines as SVG has them, for figures and for legends."""

from __future__ import annotations

from sifting.report.palette import Palette, style

# outlines of marks, in a square of side 1 around their middle; a circle and crossed lines are no outlines
OUTLINES: dict[str, tuple[tuple[float, float], ...]] = {
    "s": ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)),
    "^": ((0.0, -0.55), (0.58, 0.5), (-0.58, 0.5)),
    "v": ((0.0, 0.55), (0.58, -0.5), (-0.58, -0.5)),
    "D": ((0.0, -0.68), (0.68, 0.0), (0.0, 0.68), (-0.68, 0.0)),
    "P": (
        *((-0.2, -0.6), (0.2, -0.6), (0.2, -0.2), (0.6, -0.2), (0.6, 0.2), (0.2, 0.2)),
        *((0.2, 0.6), (-0.2, 0.6), (-0.2, 0.2), (-0.6, 0.2), (-0.6, -0.2), (-0.2, -0.2)),
    ),
    "X": (
        *((-0.3, -0.6), (0.0, -0.28), (0.3, -0.6), (0.6, -0.3), (0.28, 0.0), (0.6, 0.3)),
        *((0.3, 0.6), (0.0, 0.28), (-0.3, 0.6), (-0.6, 0.3), (-0.28, 0.0), (-0.6, -0.3)),
    ),
}


def mark_path(mark: str, x: float, y: float, size: float) -> str:
    """A mark as a path of SVG.

    >>> mark_path("s", 10, 10, 4)
    'M8 8L12 8L12 12L8 12Z'

    Args:
        mark: one of `MARKS`.
        x, y: its middle.
        size: of the square that it fills.
    """
    half = size / 2
    if mark == "o":
        arc = f"a{half:g} {half:g} 0 1 0"
        return f"M{length(x - half)} {length(y)}{arc} {size:g} 0{arc} {-size:g} 0Z"
    if mark == "x":
        return (
            f"M{length(x - half)} {length(y - half)}l{size:g} {size:g}M{length(x - half)} {length(y + half)}"
            f"l{size:g} {-size:g}"
        )
    corners = (f"{length(x + size * a)} {length(y + size * b)}" for a, b in OUTLINES[mark])
    return f"M{'L'.join(corners)}Z"


def length(value: float) -> str:
    """A length in a drawing, no finer than a screen shows.

    >>> length(12.0), length(0.126)
    ('12', '0.13')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


def dash_of(arm: int, width: float) -> str:
    """An arm's dash as SVG has it, for a line of a width; empty for a solid one.

    >>> dash_of(0, 2.0), dash_of(3, 2.0)
    ('', '10 3.2')
    """
    dash = style(arm)[0]
    return "" if dash == "solid" else " ".join(f"{width * part:g}" for part in dash[1])


def sign(kind: str, index: int, palette: Palette) -> str:
    """What stands before a name in a legend: 30 wide and 12 high.

    Args:
        kind: "arm", "point" for its mark alone, "clock", or "line" for a dashed one.
        index: of the arm or the clock.
        palette: of the page or the file.
    """
    if kind == "clock":
        return f'<rect width="12" height="12" rx="2" style="fill: {palette.clocks[index]}"/>'
    if kind == "line":
        how = f"stroke: {palette.muted}; stroke-width: 1.4; stroke-dasharray: 6 4"
        return f'<path d="M0 6h30" style="{how}"/>'
    colour, mark = palette.of(index), style(index)[1]
    dash = dash_of(index, 2.0)
    how = f"stroke: {colour}; stroke-width: 2" + (f"; stroke-dasharray: {dash}" if dash else "")
    fill = f"fill: {'none' if mark == 'x' else colour}; stroke: {colour}; stroke-width: 1.6"
    through = "" if kind == "point" else f'<path d="M0 6h30" style="{how}"/>'
    return f'{through}<path d="{mark_path(mark, 15, 6, 5)}" style="{fill}"/>'
