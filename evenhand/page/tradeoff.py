"""What a row of a table trades for what: two numbers against each other, a point a row, a line a method."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from evenhand.page.labels import Box, Spot, Stroke, placed
from evenhand.page.plain import exact, known, number
from evenhand.page.svg import AFTER, BEFORE, INK, MUTED, PAGE, PARTS, POINT, Sheet, clean, inline

COLOURS = (AFTER, BEFORE, *PARTS)
MARKERS = ("o", "s", "D", "^", "v", "P", "X")  # one more than colours, so that the pairs repeat late
WIDE_RANGE = 8  # times the least value from which an axis counts in powers
LETTER = 0.62  # of the font's size: the mean width of a letter


class Point(NamedTuple):
    """A row's mean on both axes, and its spread over seeds where there are several."""

    name: str
    x: float
    y: float
    x_spread: float | None = None
    y_spread: float | None = None


Named = tuple[str, float]  # an axis: its heading and its ideal


class Tradeoff(NamedTuple):
    """The figure and what to see in it."""

    figure: Markup
    about: str


def tradeoff(points: Sequence[Point], axes: tuple[Named, Named], base: str) -> Tradeoff | None:
    """The figure, where there are two points to compare."""
    if len(points) < 2:
        return None
    (x, x_ideal), (y, y_ideal) = axes
    places = "; ".join(f"{p.name} {number(p.x)}, {number(p.y)}" for p in points)
    label = f"{y} against {x}: {places}"
    better = wanted(points, x_ideal, y_ideal)
    figure = inline("tradeoff", label, lambda sheet: _paint(sheet, points, axes, base))
    return Tradeoff(figure, f"{better} The star is the base model; lines join the rows of one method.")


def wanted(points: Sequence[Point], x_ideal: float, y_ideal: float) -> str:
    """Which corner is better, in words."""
    across = {-1: "left", 1: "right", 0: ""}[direction([p.x for p in points], x_ideal)]
    up = {-1: "lower", 1: "upper", 0: ""}[direction([p.y for p in points], y_ideal)]
    if across and up:
        return f"Better is towards the {up} {across} corner."
    sides = [side for side in ({"lower": "the bottom", "upper": "the top"}.get(up), across and f"the {across}") if side]
    lines = [exact(ideal) for side, ideal in ((across, x_ideal), (up, y_ideal)) if not side]
    near = f"near the dashed line{'s' * (len(lines) > 1)} at {' and '.join(lines)}"
    return f"Better is {near}{f' and towards {sides[0]}' if sides else ''}."


def direction(values: Sequence[float], ideal: float) -> int:
    """-1 where less is better, 1 where more is, 0 where the ideal lies among the values."""
    return -1 if ideal <= min(values) else 1 if ideal >= max(values) else 0


def family(name: str) -> str:
    """The method a row belongs to: crawd@0.2 and crawd/small are both of crawd."""
    return re.split("[/@]", name, maxsplit=1)[0]


def _paint(sheet: Sheet, points: Sequence[Point], axes: tuple[Named, Named], base: str) -> None:
    (panel,) = sheet.panels(1, 1, 420 if sheet.narrow else 560)
    families: dict[str, list[Point]] = {}
    for point in points:
        families.setdefault(family(point.name), []).append(point)
    methods = [name for name in families if name != base]
    places = {name: methods.index(name) if name in methods else -1 for name in families}
    for name, found in families.items():
        found.sort(key=lambda point: point.x)
        _draw_family(sheet, panel, found, places[name], axes)
    _set_axes(sheet, panel, points, axes)
    _name_points(sheet, panel, families, places)


def _look(place: int) -> tuple[str, str, float]:
    """Colour, marker and size of a method's points; the base model, whose place is -1, is a star."""
    return (INK, "*", 210.0) if place < 0 else (COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)], 66.0)


def _bars(point: Point) -> list[Stroke]:
    """The point's spread along either axis, where it has one."""
    x, y, across, up = point[1:]
    along = [((x - across, y), (x + across, y))] if known(across) else []
    return along + ([((x, y - up), (x, y + up))] if known(up) else [])


def _draw_family(sheet: Sheet, panel: Axes, found: list[Point], place: int, axes: tuple[Named, Named]) -> None:
    """A method's points in order of x, joined, with their spreads."""
    colour, marker, size = _look(place)
    if len(found) > 1:
        panel.plot([p.x for p in found], [p.y for p in found], color=colour, linewidth=1.8, alpha=0.55)
    for p in found:
        for start, end in _bars(p):
            panel.plot(*zip(start, end, strict=True), color=colour, linewidth=2.5, alpha=0.4)
        dots = panel.scatter([p.x], [p.y], s=size, color=colour, marker=marker, edgecolor=PAGE, linewidth=1, zorder=3)
        sheet.hint(dots, [f"{p.name}: {axes[0][0]} {number(p.x)}, {axes[1][0]} {number(p.y)}"])


def _set_axes(sheet: Sheet, panel: Axes, points: Sequence[Point], axes: tuple[Named, Named]) -> None:
    for which, (heading, ideal), values in zip("xy", axes, ([p.x for p in points], [p.y for p in points]), strict=True):
        where = direction(values, ideal)
        text = f"{clean(heading, 30)}{', less is better' if where < 0 else ', more is better' if where else ''}"
        (panel.set_xlabel if which == "x" else panel.set_ylabel)(text)
        if where == 0:
            (panel.axvline if which == "x" else panel.axhline)(ideal, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
        axis = panel.xaxis if which == "x" else panel.yaxis
        if min(values) > 0 and max(values) > WIDE_RANGE * min(values):
            (panel.set_xscale if which == "x" else panel.set_yscale)("log")
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            # The usual labels of such an axis are formulas, which the page does not set.
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
            axis.set_minor_formatter(NullFormatter())
        else:
            panel.locator_params(axis=which, nbins=5)  # type: ignore[arg-type]
    panel.margins(0.24 if sheet.narrow else 0.1, 0.1)


def _name_points(sheet: Sheet, panel: Axes, families: dict[str, list[Point]], places: dict[str, int]) -> None:
    """Write each row's name where it hides least, in its method's colour."""
    figure = sheet.figure
    figure.draw_without_rendering()  # places the panel, so that the points' pixels are known
    scale = POINT / figure.dpi

    def pixels(x: float, y: float) -> Spot:
        across, up = panel.transData.transform((x, y)) * scale
        return float(across), float(up)

    size = 11.0 if sheet.narrow else 12.5
    points = [(point, places[name]) for name, found in families.items() for point in found]
    names = [label for found in families.values() for label in labels(found, sheet.narrow)]
    at = [pixels(point.x, point.y) for point, _ in points]
    joins = [((a.x, a.y), (b.x, b.y)) for found in families.values() for a, b in pairwise(found)]
    strokes = [*joins, *(bar for point, _ in points for bar in _bars(point))]
    edges = Box(*(float(edge) * scale for edge in panel.get_window_extent().extents))
    sizes = [(LETTER * size * len(name), size) for name in names]
    boxes = placed(at, sizes, edges, [(pixels(*start), pixels(*end)) for start, end in strokes])
    for (point, place), name, spot, box in zip(points, names, at, boxes, strict=True):
        side, edge = box.side(spot[0])  # a name keeps to its point whatever the width of the reader's font
        joined = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.8, "shrinkB": 5}
        text = panel.annotate(
            name,
            (point.x, point.y),
            (edge - spot[0], (box.bottom + box.top) / 2 - spot[1]),
            textcoords="offset points",
            ha=side,
            va="center_baseline",
            size=size,
            color=_look(place)[0],
            arrowprops=joined if box.led(spot) else None,
        )
        text.set_in_layout(False)


def labels(found: list[Point], narrow: bool) -> list[str]:
    """The names of a method's points; where there is little room only the first is written out."""
    if not narrow:
        return [shortened(clean(point.name), 30) for point in found]
    own = len(family(found[0].name))
    first, *rest = [clean(point.name) for point in found]
    return [shortened(first, 18), *(shortened(name[own:] or name, 12) for name in rest)]


def shortened(name: str, longest: int) -> str:
    """A name without its middle: what tells rows apart often stands at the end."""
    kept = longest - 1
    return name if len(name) <= longest else f"{name[: kept - kept // 2]}…{name[-(kept // 2) :]}"
