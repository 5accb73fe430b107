"""Figures as SVG: elements of a page in its own colours and font, and files of their own.

They are written by hand and not by a plotting library: a page has two sizes of each of up to a dozen
figures, and is made again every few seconds while runs go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sifting.report.figures.plot import Axis, Bar, Line, Note, Plot
from sifting.report.marks import dash_of, mark_path
from sifting.report.marks import length as _n
from sifting.report.palette import Palette, style
from sifting.report.sanitize import escape

INCH = 72.0  # units of a drawing
RIGHT, BOTTOM, TOP = 0.12, 0.56, 0.12  # inches around the axes; what is left of them is the plot's
LETTERS, SMALL = 12.0, 11.0  # height of letters
TICK = 3.5
FONT = "DejaVu Sans, Verdana, sans-serif"  # of a file; a page has its own
SPACE = ' xmlns="http://www.w3.org/2000/svg"'


@dataclass(frozen=True)
class Frame:
    """Where the axes of a plot are, in units of the drawing."""

    plot: Plot
    width: float
    height: float

    @classmethod
    def of(cls, plot: Plot, width: float, height: float) -> Frame:
        """Of a canvas of so many inches."""
        return cls(plot, INCH * width, INCH * (plot.height or height))

    @property
    def left(self) -> float:
        return INCH * self.plot.left

    @property
    def right(self) -> float:
        return self.width - INCH * RIGHT

    @property
    def top(self) -> float:
        return INCH * TOP

    @property
    def bottom(self) -> float:
        return self.height - INCH * BOTTOM

    def x(self, value: float) -> float:
        """Where a value is along the x axis."""
        return self.left + self.plot.x.share(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Where a value is along the y axis, which goes up."""
        return self.bottom - self.plot.y.share(value) * (self.bottom - self.top)


def inline(
    plot: Plot, palette: Palette, size: tuple[float, float], *, prefix: str, title: str, about: str
) -> str:
    """A figure as an element of a page: named, in the page's font, as wide as there is room for.

    Args:
        plot: what is drawn.
        palette: the page's colours, by their variables.
        size: width and height of its canvas in inches.
        prefix: goes before every id, which must not occur twice in a page.
        title: its name.
        about: its description.
    """
    frame = Frame.of(plot, *size)
    return (
        f'<svg{SPACE} viewBox="0 0 {_n(frame.width)} {_n(frame.height)}" role="img" '
        f'aria-labelledby="{prefix}-title {prefix}-desc">'
        f'<title id="{prefix}-title">{escape(title)}</title>'
        f'<desc id="{prefix}-desc">{escape(about)}</desc>'
        f"{_drawn(frame, palette, prefix)}</svg>"
    )


def whole_file(
    plot: Plot, palette: Palette, size: tuple[float, float], legend: Sequence[tuple[str, str]]
) -> str:
    """A figure as a file of its own, its legend under it.

    Args:
        plot: what is drawn.
        palette: plain colours.
        size: width and height of its canvas in inches.
        legend: of each entry, its sign, which is 30 wide and 12 high, and its name.
    """
    frame = Frame.of(plot, *size)
    rows = (len(legend) + 1) // 2
    width, height = _n(frame.width), _n(frame.height + 0.28 * INCH * rows)
    entries = []
    for number, (sign, label) in enumerate(legend):
        x = 0.3 * INCH + (number % 2) * (frame.width / 2 - 0.1 * INCH)
        y = frame.height + 0.28 * INCH * (number // 2) + 2
        entries.append(f'<g transform="translate({_n(x)} {_n(y)})">{sign}</g>')
        entries.append(_text(x + 38, y + 10, label, palette.ink))
    return (
        f'<svg{SPACE} width="{width}pt" height="{height}pt" viewBox="0 0 {width} {height}" '
        f'style="font-family: {FONT}"><rect width="{width}" height="{height}" fill="{palette.paper}"/>'
        f"{_drawn(frame, palette, 'figure')}{''.join(entries)}</svg>\n"
    )


def _drawn(frame: Frame, palette: Palette, prefix: str) -> str:
    plot = frame.plot
    box = (
        f'x="{_n(frame.left)}" y="{_n(frame.top)}" width="{_n(frame.right - frame.left)}" '
        f'height="{_n(frame.bottom - frame.top)}"'
    )
    inside = [_bar(frame, palette, bar, prefix) for bar in plot.bars]
    inside += [_rule(frame, palette, height) for height in plot.rules]
    for line in plot.lines:
        inside += _line(frame, palette, line)
    hatch = (
        f'<pattern id="{prefix}-hatch" width="5" height="5" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><path d="M0 0v5" style="stroke: {palette.paper}"/></pattern>'
    )
    return "".join(
        [
            f'<defs><clipPath id="{prefix}-frame"><rect {box}/></clipPath>{hatch if plot.bars else ""}</defs>',
            *_sides(frame, palette),
            f'<g clip-path="url(#{prefix}-frame)">{"".join(inside)}</g>',
            *(_note(frame, palette, note) for note in plot.notes),
        ]
    )


def _sides(frame: Frame, palette: Palette) -> Iterator[str]:
    """Grid, sides, ticks and what is written at them."""
    plot = frame.plot
    left, right, top, bottom = frame.left, frame.right, frame.top, frame.bottom
    for value, text in _within(plot.x):
        x = frame.x(value)
        if plot.x.grid:
            yield _stroke(f"M{_n(x)} {_n(bottom)}V{_n(top)}", palette.rule, 0.8)
        yield _stroke(f"M{_n(x)} {_n(bottom)}v{TICK}", palette.muted, 0.8)
        yield _text(x, bottom + TICK + 3.5 + 0.8 * LETTERS, text, palette.muted, anchor="middle")
    for value, text in _within(plot.y):
        y = frame.y(value)
        if plot.y.grid:
            yield _stroke(f"M{_n(left)} {_n(y)}H{_n(right)}", palette.rule, 0.8)
        yield _stroke(f"M{_n(left)} {_n(y)}h{-TICK}", palette.muted, 0.8)
        yield _text(left - TICK - 3.5, y + 0.36 * LETTERS, text, palette.muted, anchor="end")
    if plot.x.line:
        yield _stroke(f"M{_n(left)} {_n(bottom)}H{_n(right)}", palette.muted, 0.8)
    if plot.y.line:
        yield _stroke(f"M{_n(left)} {_n(bottom)}V{_n(top)}", palette.muted, 0.8)
    x, y = (left + right) / 2, (top + bottom) / 2
    yield _text(x, bottom + 0.47 * INCH, plot.x.label, palette.ink, anchor="middle")
    if plot.y.label:
        yield _text(0.2 * INCH, y, plot.y.label, palette.ink, anchor="middle", turned=True)


def _within(axis: Axis) -> Iterator[tuple[float, str]]:
    low, high = sorted((axis.low, axis.high))
    for value, text in axis.ticks:
        if low <= value <= high or -1e-9 <= axis.share(value) <= 1 + 1e-9:
            yield value, text


def _line(frame: Frame, palette: Palette, line: Line) -> Iterator[str]:
    colour = {"ink": palette.ink, "muted": palette.muted}.get(line.tone, palette.of(line.style))
    xs, ys = [frame.x(float(v)) for v in line.x], [frame.y(float(v)) for v in line.y]
    if line.spread is not None:
        pairs = list(zip(line.y, line.spread, strict=True))
        upper = [frame.y(float(y + s)) for y, s in pairs]
        lower = [frame.y(float(y - s)) for y, s in pairs]
        edge = _path([*xs, *reversed(xs)], [*upper, *reversed(lower)])
        yield f'<path d="{edge}Z" style="fill: {colour}; fill-opacity: 0.16"/>'
    if line.joined != "no" and len(xs) > 1:
        path = _path(xs, ys) if line.joined == "straight" else _stairs(xs, ys)
        dash = dash_of(line.style, 1.9) if line.dashed else ""
        yield _stroke(path, colour, 1.9 if line.tone == "arm" else 0.8, dash)
    if line.every:
        mark = line.mark or style(line.style)[1]
        places = zip(xs[:: line.every], ys[:: line.every], strict=True)
        path = "".join(mark_path(mark, x, y, line.size) for x, y in places)
        fill = "none" if mark == "x" else colour
        wide = 1.6 if mark == "x" else 1
        yield f'<path d="{path}" style="fill: {fill}; stroke: {colour}; stroke-width: {wide}"/>'


def _rule(frame: Frame, palette: Palette, height: float) -> str:
    y = _n(frame.y(height))
    return _stroke(f"M{_n(frame.left)} {y}H{_n(frame.right)}", palette.muted, 1.1, "4.4 3.3")


def _bar(frame: Frame, palette: Palette, bar: Bar, prefix: str) -> str:
    x, end = frame.x(bar.left), frame.x(bar.left + bar.length)
    y, below = frame.y(bar.row - 0.2), frame.y(bar.row + 0.2)
    box = f'x="{_n(x)}" y="{_n(y)}" width="{_n(end - x)}" height="{_n(below - y)}"'
    colour = palette.clocks[bar.clock]
    found = f'<rect {box} style="fill: {colour}; stroke: {palette.paper}; stroke-width: 0.8"/>'
    if bar.clock == len(palette.clocks) - 1:  # evaluation, which is no training
        found += f'<rect {box} style="fill: url(#{prefix}-hatch)"/>'
    return found


def _note(frame: Frame, palette: Palette, note: Note) -> str:
    x, y = frame.x(note.x), frame.y(note.y)
    if note.where == "over":
        return _text(x, y - 5, note.text, palette.ink)
    return _text(x + 4, y + 0.36 * SMALL, note.text, palette.muted, size=SMALL)


def _text(
    x: float,
    y: float,
    text: str,
    colour: str,
    *,
    anchor: str = "",
    size: float = LETTERS,
    turned: bool = False,
) -> str:
    where = f' transform="rotate(-90 {_n(x)} {_n(y)})"' if turned else ""
    how = f"; text-anchor: {anchor}" if anchor else ""
    return (
        f'<text x="{_n(x)}" y="{_n(y)}"{where} style="fill: {colour}; font-size: {size:g}px{how}">'
        f"{escape(text)}</text>"
    )


def _stroke(path: str, colour: str, width: float, dash: str = "") -> str:
    how = f"; stroke-dasharray: {dash}" if dash else ""
    return (
        f'<path d="{path}" style="fill: none; stroke: {colour}; stroke-width: {width:g}; '
        f'stroke-linejoin: round{how}"/>'
    )


def _path(xs: Sequence[float], ys: Sequence[float]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in zip(xs, ys, strict=True))


def _stairs(xs: Sequence[float], ys: Sequence[float]) -> str:
    """From each point level to the next, then up or down to it."""
    rest = zip(xs[1:], ys[1:], strict=True)
    return f"M{_n(xs[0])} {_n(ys[0])}" + "".join(f"H{_n(x)}V{_n(y)}" for x, y in rest)
