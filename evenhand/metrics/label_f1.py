"""Weighted F1: how well a model tells labels apart, from the counts of right and wrong labels of each class.

Equal to scikit-learn's `f1_score(..., average="weighted", zero_division=0, labels=...)`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from evenhand.config import options
from evenhand.data._rows import Labelled
from evenhand.lm import LM
from evenhand.metrics._base import Metric, divided
from evenhand.metrics._labels import as_sets, known_labels, label_columns, predict, predictions_of
from evenhand.run import Run

__all__ = ["LabelF1"]

COUNTS = ("tp ", "fp ", "fn ")


@options
class LabelF1(Metric):
    """F1 of each label, weighted by how often the label occurs; 1 is a classifier without mistakes."""

    reads: ClassVar = Labelled
    data: ClassVar = "labelled_sentences"
    ideal: ClassVar = 1.0
    low: ClassVar = 0.0
    high: ClassVar = 1.0
    headline: ClassVar = "weighted F1 of the labels"
    meaning: ClassVar = "How well the model sorts texts by label; frequent labels count more."
    sums: ClassVar = ("exact", "unanswered")
    unit: ClassVar = "unit"
    drawn: ClassVar = "unit"

    def score(self, lm: LM, rows: list[Labelled], run: Run) -> pd.DataFrame:
        """The model's own zero-shot choice for each row, counted by label."""
        found = predict(lm, rows, run, "label_f1")
        table = self.from_predictions(rows, [each.labels for each in found])
        # How sure the model is of the right answer shows a change long before the answer itself changes.
        right = [sum(each.shares[label] for label in row.labels) for row, each in zip(rows, found, strict=True)]
        return table.assign(p_right=right)

    def read(self, path: Path, rows: Callable[[], list[Any]]) -> pd.DataFrame:
        """A file with one line a row: its id and the labels predicted for it."""
        found = rows()
        return self.from_predictions(found, predictions_of(path, found))

    def from_predictions(self, rows: Sequence[Labelled], predictions: Sequence[Sequence[str]]) -> pd.DataFrame:
        """The table of any classifier's predictions, a set of labels a row.

        What is no label of the rows makes a row wrong, and is no class of its own."""
        golds, guesses = [set(row.labels) for row in rows], as_sets(rows, predictions)
        labels = known_labels(rows)
        counts: dict[str, list[float]] = {}
        for label in labels:
            pairs = [(label in gold, label in guess) for gold, guess in zip(golds, guesses, strict=True)]
            counts[f"tp {label}"] = [float(gold and guess) for gold, guess in pairs]
            counts[f"fp {label}"] = [float(guess and not gold) for gold, guess in pairs]
            counts[f"fn {label}"] = [float(gold and not guess) for gold, guess in pairs]
        exact = [float(gold == guess) for gold, guess in zip(golds, guesses, strict=True)]
        silent = [not guess & set(labels) for guess in guesses]
        table = label_columns(rows, guesses).assign(
            exact=exact,
            # Where a row has no label, saying none is an answer.
            unanswered=[float(none and not right) for none, right in zip(silent, exact, strict=True)],
        )
        return pd.concat([table, pd.DataFrame(counts, index=table.index)], axis=1)

    def columns(self, table: pd.DataFrame) -> list[str]:
        """The counts of every label."""
        return [*self.sums, *(name for name in table.columns if name.startswith(COUNTS))]

    def value(self, totals: Mapping[str, Any], count: Any) -> Any:
        """F1 of each label, weighted by its support; 0 where no row has a label."""
        f1, support = by_label(totals)
        return divided((f1 * support).sum(0), support.sum(0))

    def extras(self, totals: Mapping[str, Any], count: Any) -> dict[str, Any]:
        """The plain mean of F1 over labels, the share of rows whose whole set is right, and of rows without answer."""
        f1, _ = by_label(totals)
        return {
            "macro_f1": f1.mean(0),
            "accuracy": totals["exact"] / count,
            "unanswered": totals["unanswered"] / count,
        }


def by_label(totals: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Every label's F1 (0 where it is neither there nor predicted) and how often it is there. [l, ...]"""
    labels = [name.removeprefix("tp ") for name in totals if name.startswith("tp ")]
    right, extra, missed = (np.stack([np.asarray(totals[kind + label], float) for label in labels]) for kind in COUNTS)
    return divided(2 * right, 2 * right + extra + missed), right + missed
