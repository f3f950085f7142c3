"""What a metric is: `score` needs the model and gives one line an example; every number is made from that table.

u units, B draws."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd

from evenhand.config import Refusal, options, values
from evenhand.data._rows import Row
from evenhand.lm import LM
from evenhand.run import Run
from evenhand.stats import Comparison, compare_draws, interval, resample

__all__ = ["Metric", "Numbers", "base_columns", "divided", "word_columns"]


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
    """The dataset measured when none is named; empty: what stands behind the colon is no dataset (harness:TASK)."""
    ideal: ClassVar[float]
    low: ClassVar[float]
    high: ClassVar[float]
    headline: ClassVar[str]
    """What the value says, in a few words."""
    meaning: ClassVar[str]
    """What the value means, in a plain sentence for somebody who has not read the paper."""
    sums: ClassVar[tuple[str, ...]]
    """The columns whose totals make the value."""
    extra_sums: ClassVar[tuple[str, ...]] = ()
    """The columns whose means are reported beside it."""
    unit: ClassVar[str] = "id"
    """The column whose values are drawn in a bootstrap: rows of one unit are drawn together."""
    drawn: ClassVar[str] = "row"
    """What such a unit is called: a term, a template."""
    work: ClassVar[float] = 0.65
    """How many times the tokens of its rows a metric runs, for the estimate of time: less where beginnings are shared,
    much more where text is written."""
    lean: ClassVar[str] = ""
    """The column whose size says how biased an example is; the page shows the largest."""

    def score(self, lm: LM, rows: list[Any], run: Run) -> pd.DataFrame:
        """One line an example."""
        raise NotImplementedError

    def read(self, path: Path, rows: Callable[[], list[Any]]) -> pd.DataFrame:
        """The same table from a file of another model's predictions; `rows` gives the rows of the dataset."""
        raise Refusal(f"{type(self).__name__} cannot be scored from a file; measure a model instead.")

    def value(self, totals: Mapping[str, Any], count: Any) -> Any:
        """The metric from the totals over units and their number of rows; works on arrays of draws as well."""
        raise NotImplementedError

    def extras(self, totals: Mapping[str, Any], count: Any) -> dict[str, Any]:
        """What is reported beside the value, from the same totals."""
        return {name: totals[name] / count for name in self.extra_sums}

    def units(self, table: pd.DataFrame) -> pd.DataFrame:
        """One line a unit: its totals, and in `rows` how much it counts."""
        return table.assign(rows=1).groupby(self.unit, sort=True)[[*self.columns(table), "rows"]].sum()

    def columns(self, table: pd.DataFrame) -> list[str]:
        """The columns that are added up; a metric whose columns follow from its rows finds them in the table."""
        return list(dict.fromkeys([*self.sums, *self.extra_sums]))

    def parts(self, table: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """The groups that are reported on their own."""
        return {str(name): part for name, part in table.groupby("group") if name != ""}

    def totals(self, table: pd.DataFrame) -> tuple[dict[str, float], float]:
        """The totals over all units, and how many rows they stand for."""
        units = self.units(table)
        # Exact, so that a table read back from its file gives the same numbers to the last digit.
        sums = {str(name): math.fsum(units[name]) for name in units.columns}
        return sums, sums.pop("rows")

    def of(self, table: pd.DataFrame) -> float:
        """The value of a table."""
        return float(self.value(*self.totals(table)))

    def beside(self, table: pd.DataFrame) -> dict[str, float]:
        """The extras of a table."""
        return {name: float(value) for name, value in self.extras(*self.totals(table)).items()}

    def summarise(self, table: pd.DataFrame) -> Numbers:
        """The value, the value of each group, and the extras."""
        return Numbers(
            self.of(table), {name: self.of(part) for name, part in self.parts(table).items()}, self.beside(table)
        )

    def draws(self, table: pd.DataFrame, seed: int = 0) -> np.ndarray:
        """The value in every bootstrap draw; tables with the same units are drawn alike. [B]"""
        columns = self.units(table)
        totals = resample(columns.to_numpy(float), seed=seed)  # [B, columns]
        by_name = dict(zip(map(str, columns.columns), totals.T, strict=True))
        return self.value(by_name, by_name.pop("rows"))

    def report(self, table: pd.DataFrame) -> dict[str, Any]:
        """The entry of results.json: value, interval, ideal, n, groups, extra, and how it was scored."""
        return {
            **self.entry(table),
            "ideal": self.ideal,
            "range": [self.low, self.high if np.isfinite(self.high) else None],
            "headline": self.headline,
            "meaning": self.meaning,
            "lean": self.lean,
            "unit": self.drawn,
            "units": len(self.units(table)),
            "scorer": values(self),
            "groups": {name: self.entry(part) for name, part in self.parts(table).items()},
        }

    def entry(self, table: pd.DataFrame) -> dict[str, Any]:
        """Value, interval, n and extras of a table or of one of its groups."""
        low, high = interval(self.draws(table))
        return {"value": self.of(table), "low": low, "high": high, "n": len(table), "extra": self.beside(table)}

    def compare(self, before: pd.DataFrame, after: pd.DataFrame) -> Comparison:
        """Paired: both tables are drawn by the same units."""
        return compare_draws(self.of(before), self.of(after), self.draws(before), self.draws(after), self.ideal)


def divided(above: Any, below: Any, empty: float = 0.0) -> np.ndarray:
    """A quotient of numbers or of arrays of draws; `empty` where there is nothing to divide by."""
    above, below = np.broadcast_arrays(np.asarray(above, float), np.asarray(below, float))
    return np.divide(above, below, out=np.full(below.shape, float(empty)), where=below > 0)


def base_columns(rows: list[Any]) -> pd.DataFrame:
    """The columns that every table has: which row it is, and what it is grouped, drawn and read by."""
    names = ("id", "axis", "group", "unit", "condition")
    table = pd.DataFrame({name: [getattr(row, name) for row in rows] for name in names})
    # A row without a unit is drawn alone.
    return table.assign(unit=table["unit"].where(table["unit"] != "", table["id"]))


def word_columns(rows: list[Any], probabilities: np.ndarray) -> pd.DataFrame:
    """The columns that every next-word metric keeps: who, what, and one probability a word."""
    base = base_columns(rows).assign(subject=[row.subject for row in rows], text=[row.text for row in rows])
    for place, word in enumerate(rows[0].words):
        base[f"p_{word}"] = probabilities[:, place]
    return base
