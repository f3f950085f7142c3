"""What a metric is: `score` needs the model and gives one line an example; every number is made from that table.

u units, B draws."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd

from evenhand.config import options
from evenhand.data._rows import Row
from evenhand.lm import LM
from evenhand.run import Run
from evenhand.stats import Comparison, compare_draws, interval, resample

__all__ = ["Metric", "Numbers", "word_columns"]


class Numbers(NamedTuple):
    """A metric's summary: one value, the same by group, and what helps to read it."""

    value: float
    groups: dict[str, float]
    extra: dict[str, float]


@options
class Metric:
    """A number made from the totals of a table's columns."""

    reads: ClassVar[type[Row]]
    data: ClassVar[str]
    """The dataset measured when none is named."""
    ideal: ClassVar[float]
    low: ClassVar[float]
    high: ClassVar[float]
    headline: ClassVar[str]
    """What the value says, in a few words."""
    sums: ClassVar[tuple[str, ...]]
    """The columns whose totals make the value."""
    extra_sums: ClassVar[tuple[str, ...]] = ()
    """The columns whose means are reported beside it."""
    unit: ClassVar[str] = "id"
    """What is drawn in a bootstrap: rows of one unit are drawn together."""

    def score(self, lm: LM, rows: list[Any], run: Run) -> pd.DataFrame:
        """One line an example."""
        raise NotImplementedError

    def value(self, totals: Mapping[str, Any], count: Any) -> Any:
        """The metric from column totals and the number of rows; works on arrays of draws as well."""
        raise NotImplementedError

    def summarise(self, table: pd.DataFrame) -> Numbers:
        """The value, the value of each group, and the means of the extra columns."""
        groups = {str(name): self.of(part) for name, part in table.groupby("group") if name != ""}
        return Numbers(self.of(table), groups, {name: float(table[name].mean()) for name in self.extra_sums})

    def of(self, table: pd.DataFrame) -> float:
        """The value of a table."""
        return float(self.value({name: float(table[name].sum()) for name in self.sums}, len(table)))

    def draws(self, table: pd.DataFrame, seed: int = 0) -> np.ndarray:
        """The value in every bootstrap draw; tables with the same units are drawn alike. [B]"""
        columns = table.assign(_rows=1).groupby(self.unit, sort=True)[[*self.sums, "_rows"]].sum()
        totals = resample(len(columns), seed=seed) @ columns.to_numpy(float)  # [B, columns]
        return self.value(dict(zip(self.sums, totals.T, strict=False)), totals[:, -1])

    def report(self, table: pd.DataFrame) -> dict[str, Any]:
        """The entry of results.json: value, interval, ideal, n, groups, extra."""
        numbers = self.summarise(table)
        low, high = interval(self.draws(table))
        groups = {}
        for name, value in numbers.groups.items():
            part = table[table["group"] == name]
            bounds = interval(self.draws(part))
            groups[name] = {"value": value, "low": bounds[0], "high": bounds[1], "n": len(part)}
        return {
            "value": numbers.value,
            "low": low,
            "high": high,
            "ideal": self.ideal,
            "n": len(table),
            "headline": self.headline,
            "unit": self.unit,
            "groups": groups,
            "extra": numbers.extra,
        }

    def compare(self, before: pd.DataFrame, after: pd.DataFrame) -> Comparison:
        """Paired: both tables are drawn by the same units."""
        return compare_draws(self.of(before), self.of(after), self.draws(before), self.draws(after), self.ideal)


def word_columns(rows: list[Any], probabilities: np.ndarray) -> pd.DataFrame:
    """The columns that every next-word metric keeps: who, what, and one probability a word."""
    base = pd.DataFrame(
        {
            "id": [row.id for row in rows],
            "axis": [row.axis for row in rows],
            "group": [row.group for row in rows],
            "subject": [row.subject for row in rows],
            "text": [row.text for row in rows],
        }
    )
    for place, word in enumerate(rows[0].words):
        base[f"p_{word}"] = probabilities[:, place]
    return base
