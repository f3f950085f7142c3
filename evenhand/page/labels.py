"""Where to write the names of points so that they hide as little as possible."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Spot = tuple[float, float]
Stroke = tuple[Spot, Spot]
DOT = 7.0  # half the side of the square a point takes
NEAR, FAR = 9.0, (26.0, 46.0, 70.0, 100.0)  # pixels between a point and its name; far only where it is crowded
STEP = 4.0  # pixels of a line that count as one square
OUTSIDE = 20.0  # a name cut off is worse than one that touches another
LED = 120.0  # what it costs, in square pixels, that a name needs a line to its point
ASTRAY = 600.0  # and that it stands nearer to another point than to its own


class Box(NamedTuple):
    """A rectangle in pixels, upwards."""

    left: float
    bottom: float
    right: float
    top: float

    def shared(self, other: "Box") -> float:
        """The area two rectangles share."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.top, other.top) - max(self.bottom, other.bottom)
        return wide * high if wide > 0 and high > 0 else 0.0

    def side(self, x: float) -> tuple[str, float]:
        """Which end of a name is nearest to its point, and where that end is."""
        if self.left > x:
            return "left", self.left
        return ("right", self.right) if self.right < x else ("center", (self.left + self.right) / 2)

    def away(self, spot: Spot) -> float:
        """How far a place is from the rectangle."""
        across = max(self.left - spot[0], spot[0] - self.right, 0.0)
        up = max(self.bottom - spot[1], spot[1] - self.top, 0.0)
        return float(np.hypot(across, up))

    def led(self, spot: Spot) -> bool:
        """True where a name stands so far from its point that a line must lead there."""
        return self.away(spot) > (NEAR + FAR[0]) / 2


def placed(points: Sequence[Spot], sizes: Sequence[Spot], bounds: Box, lines: Sequence[Stroke] = ()) -> list[Box]:
    """A rectangle for each point's name, within the bounds where possible; the crowded points choose first."""
    dots = [Box(x - DOT, y - DOT, x + DOT, y + DOT) for x, y in points]
    strokes = np.vstack([np.empty((0, 2)), *(_along(a, b) for a, b in lines)])
    spots = np.asarray(points, dtype=float).reshape(-1, 2)
    nearest = [np.sort(np.hypot(*(spots - spot).T))[1:3].sum() for spot in spots]
    found: dict[int, Box] = {}
    for n in np.argsort(nearest, kind="stable"):
        taken = [*dots, *found.values()]
        choices = _choices(points[n], sizes[n])
        others = [point for place, point in enumerate(points) if place != n]
        costs = [
            _cost(box, taken, strokes, bounds) + _doubt(box, points[n], others) + place
            for place, box in enumerate(choices)
        ]
        found[int(n)] = choices[int(np.argmin(costs))]
    return [found[n] for n in range(len(points))]


def _along(a: Spot, b: Spot) -> np.ndarray:
    count = max(int(np.hypot(b[0] - a[0], b[1] - a[1]) / STEP), 2)
    return np.linspace(a, b, count)


def _choices(point: Spot, size: Spot) -> list[Box]:
    """Places for a name, the usual ones first: right, left, above, below, between these; then the same farther off."""
    (x, y), (wide, high) = point, size
    sides = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
    found = []
    for gap in (NEAR, *FAR):
        for across, up in sides:
            middle_x = x + across * (wide / 2 + (gap if not up else gap / 2))
            middle_y = y + up * (high / 2 + (gap if not across else gap / 2))
            found.append(Box(middle_x - wide / 2, middle_y - high / 2, middle_x + wide / 2, middle_y + high / 2))
    return found


def _doubt(box: Box, own: Spot, others: Sequence[Spot]) -> float:
    """What it costs that a reader may take the name for another point's."""
    away = box.away(own)
    reach = min(1.3 * away, 1.5 * NEAR)  # beyond it the line to its own point leaves no doubt
    astray = sum(box.away(other) < reach for other in others)
    return ASTRAY * astray + (LED * away / FAR[0] if box.led(own) else 0.0)


def _cost(box: Box, taken: list[Box], strokes: np.ndarray, bounds: Box) -> float:
    """The square pixels a name would lose to the edge, to points and other names, and to lines."""
    outside = (box.right - box.left) * (box.top - box.bottom) - box.shared(bounds)
    x, y = strokes.T
    crossed = ((x > box.left) & (x < box.right) & (y > box.bottom) & (y < box.top)).sum()
    return OUTSIDE * outside + sum(box.shared(other) for other in taken) + STEP**2 * float(crossed)
