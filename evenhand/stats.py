"""Intervals and verdicts: bootstrap over a table's units, paired before and after, with control for several metrics.

B draws, u units."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy.stats import false_discovery_control

__all__ = ["Comparison", "adjust", "compare_draws", "interval", "resample"]

DRAWS = 2000
LEVEL = 0.95
AT_ONCE = 200


class Comparison(NamedTuple):
    """How a number changed, and whether that can be told from chance."""

    delta: float
    low: float
    high: float
    p: float
    nearer: bool
    """Whether the change goes towards the ideal."""


def resample(columns: np.ndarray, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """The totals of columns [u, c] in each bootstrap draw of their units; the same seed gives paired draws. [B, c]

    Some draws at a time: how often each of a hundred thousand units is taken in all of them would fill the memory."""
    generator = np.random.default_rng(seed)
    even = np.full(len(columns), 1 / len(columns))
    sizes = [min(AT_ONCE, draws - start) for start in range(0, draws, AT_ONCE)]
    return np.concatenate([generator.multinomial(len(columns), even, size=size) @ columns for size in sizes])


def interval(values: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of the draws."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def compare_draws(
    before: float, after: float, drawn_before: np.ndarray, drawn_after: np.ndarray, ideal: float
) -> Comparison:
    """The change with its interval, and a two-sided p-value for "not nearer to the ideal than before"."""
    change = drawn_after - drawn_before  # [B]
    distance = np.abs(drawn_after - ideal) - np.abs(drawn_before - ideal)  # [B]
    tail = min((distance <= 0).sum(), (distance >= 0).sum())
    p = min(1.0, 2 * (float(tail) + 1) / (len(distance) + 1))
    low, high = interval(change)
    return Comparison(after - before, low, high, p, abs(after - ideal) < abs(before - ideal))


def adjust(p_values: Mapping[str, float]) -> dict[str, float]:
    """Benjamini-Yekutieli: the share of false verdicts among several metrics stays below the level, whatever their
    dependence (the metrics of one model are not independent)."""
    if not p_values:
        return {}
    adjusted = false_discovery_control(list(p_values.values()), method="by")
    return dict(zip(p_values, (float(p) for p in adjusted), strict=True))
