"""TPR gap: whether a classifier finds a label equally often for every protected group (equality of opportunity).

y labels, g groups."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from evenhand.config import Refusal, options
from evenhand.data._rows import Labelled
from evenhand.lm import LM
from evenhand.metrics._base import Metric, divided
from evenhand.metrics._labels import as_sets, known_labels, label_columns, predict, predictions_of
from evenhand.run import Run

__all__ = ["TPRGap"]

BETWEEN = " | "


@options
class TPRGap(Metric):
    """Root mean square over labels of the gap between groups' true positive rates: 0 is even-handed."""

    reads: ClassVar = Labelled
    data: ClassVar = "labelled_sentences"
    ideal: ClassVar = 0.0
    low: ClassVar = 0.0
    high: ClassVar = 1.0
    headline: ClassVar = "gap between groups' true positive rates"
    meaning: ClassVar = "How much more often the right label is found for one group of people than for another."
    sums: ClassVar = ()
    unit: ClassVar = "unit"
    drawn: ClassVar = "unit"

    def score(self, lm: LM, rows: list[Labelled], run: Run) -> pd.DataFrame:
        """The model's own zero-shot choice for each row, counted by group and label."""
        check_groups(rows)
        return self.from_predictions(rows, [each.labels for each in predict(lm, rows, run, "tpr_gap")])

    def read(self, path: Path, rows: Callable[[], list[Any]]) -> pd.DataFrame:
        """A file with one line a row: its id and the labels predicted for it."""
        found = rows()
        return self.from_predictions(found, predictions_of(path, found))

    def from_predictions(self, rows: Sequence[Labelled], predictions: Sequence[Sequence[str]]) -> pd.DataFrame:
        """The table of any classifier's predictions, a set of labels a row; rows without a group are not counted."""
        groups, guesses = check_groups(rows), as_sets(rows, predictions)
        counts: dict[str, list[float]] = {}
        for label in known_labels(rows):
            for group in groups:
                there = [row.group == group and label in row.labels for row in rows]
                if any(there):
                    name = group + BETWEEN + label
                    counts[f"n {name}"] = [float(each) for each in there]
                    counts[f"hit {name}"] = [
                        float(each and label in guess) for each, guess in zip(there, guesses, strict=True)
                    ]
        table = label_columns(rows, guesses)
        return pd.concat([table, pd.DataFrame(counts, index=table.index)], axis=1)

    def columns(self, table: pd.DataFrame) -> list[str]:
        """The counts of every group and label."""
        return [name for name in table.columns if name.startswith(("n ", "hit ")) and BETWEEN in name]

    def parts(self, table: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """None: within one group there is no gap."""
        return {}

    def value(self, totals: Mapping[str, Any], count: Any) -> Any:
        """The root mean square of the labels' gaps; labels that fewer than two groups have are left out."""
        n, hits, _, _ = cells(totals)
        gap, both = spread(n, hits)
        return np.sqrt(divided((gap**2).sum(0), both.sum(0)))

    def extras(self, totals: Mapping[str, Any], count: Any) -> dict[str, Any]:
        """The rate of each group, the root mean square against everybody's rate, and each label's own gap (with its
        sign where there are two groups: the first in the alphabet minus the second)."""
        n, hits, labels, groups = cells(totals)
        gap, both = spread(n, hits)
        rate = divided(hits, n)  # [y, g, ...]
        overall = divided(hits.sum(1), n.sum(1))[:, None]
        counted = (n > 0) & both[:, None]
        against = divided((np.where(counted, rate - overall, 0) ** 2).sum((0, 1)), counted.sum((0, 1)))
        signed = np.where(both, rate[:, 0] - rate[:, 1], 0) if len(groups) == 2 else gap
        return {
            **{f"tpr {group}": divided(hits[:, g].sum(0), n[:, g].sum(0)) for g, group in enumerate(groups)},
            "against_overall": np.sqrt(against),
            **{f"gap {label}": signed[y] for y, label in enumerate(labels)},
        }

    def draws(self, table: pd.DataFrame, seed: int = 0) -> np.ndarray:
        """The draws, moved so that their mean is the value: chance alone gives every draw some gap, and a root mean
        square cannot cancel it. [B]"""
        drawn = super().draws(table, seed)
        return np.clip(drawn - drawn.mean() + self.of(table), self.low, self.high)


def check_groups(rows: Sequence[Labelled]) -> list[str]:
    """The protected groups, or a refusal where there is nothing to compare."""
    groups = sorted({row.group for row in rows} - {""})
    if len(groups) < 2:
        raise Refusal(
            f"tpr_gap compares groups of people, and these rows have {len(groups)}; "
            "name the column that holds the group with --set data.group=COLUMN."
        )
    return groups


def cells(totals: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, list[str], list[str]]:
    """How many rows of each label and group there are, and how many of them were found. [y, g, ...] twice"""
    names = [name.removeprefix("n ").split(BETWEEN, 1) for name in totals if name.startswith("n ")]
    groups, labels = (sorted({name[place] for name in names}) for place in (0, 1))
    none = np.zeros_like(np.asarray(next(iter(totals.values())), float))

    def stacked(kind: str) -> np.ndarray:
        return np.stack(
            [
                np.stack([np.asarray(totals.get(kind + group + BETWEEN + label, none), float) for group in groups])
                for label in labels
            ]
        )

    return stacked("n "), stacked("hit "), labels, groups


def spread(n: np.ndarray, hits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each label's largest rate minus its smallest, and whether two groups have the label (else the gap is 0)."""
    rate = divided(hits, n)  # [y, g, ...]
    both = (n > 0).sum(1) > 1
    gap = np.where(n > 0, rate, -np.inf).max(1, initial=0) - np.where(n > 0, rate, np.inf).min(1, initial=1)
    return np.where(both, gap, 0), both
