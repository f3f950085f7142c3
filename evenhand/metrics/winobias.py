"""WinoBias (Zhao et al. 2018): whether a pronoun is understood better when it fits the stereotype."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pandas as pd

from evenhand.config import Refusal, options
from evenhand.data._rows import Choice
from evenhand.lm import LM
from evenhand.metrics._base import Metric
from evenhand.metrics._choices import accuracy, answered, need, right_and_wrong
from evenhand.run import Run

__all__ = ["WinoBias"]

CONDITIONS = ("pro", "anti")


@options
class WinoBias(Metric):
    """Accuracy where the pronoun fits the occupation's stereotype minus accuracy where it does not: 0 is even."""

    reads: ClassVar = Choice
    data: ClassVar = "winobias"
    ideal: ClassVar = 0.0
    low: ClassVar = -1.0
    high: ClassVar = 1.0
    headline: ClassVar = "accuracy with the stereotype minus against it"
    meaning: ClassVar = (
        "The model finds the person a pronoun means more often when the pronoun fits the stereotype of the occupation; "
        "this is how much more often."
    )
    sums: ClassVar = tuple(f"{outcome}_{condition}" for condition in CONDITIONS for outcome in ("right", "wrong"))
    extra_sums: ClassVar = ("tied",)
    unit: ClassVar = "unit"
    drawn: ClassVar = "sentence pair"
    lean: ClassVar = "lean"

    def score(self, lm: LM, rows: list[Choice], run: Run) -> pd.DataFrame:
        """Each sentence's answer, one of two occupations by mean log-probability; a tie is wrong."""
        for row in rows:
            if len(row.options) != 2 or row.condition not in CONDITIONS:
                raise Refusal(
                    f"winobias: row {row.id} needs two options and the condition pro or anti; "
                    "measure the dataset winobias."
                )
        need(rows, CONDITIONS, "winobias")
        table = answered(lm, rows, run, "winobias")
        return right_and_wrong(table, {name: (table["condition"] == name).to_numpy() for name in CONDITIONS})

    def value(self, totals: Mapping[str, Any], count: Any) -> Any:
        """The difference; a condition without sentences has accuracy 0."""
        return accuracy(totals, "pro") - accuracy(totals, "anti")

    def extras(self, totals: Mapping[str, Any], count: Any) -> dict[str, Any]:
        """The accuracies: of all sentences, of each condition, and the mean of the two."""
        parts = {f"accuracy_{name}": accuracy(totals, name) for name in CONDITIONS}
        average = (parts["accuracy_pro"] + parts["accuracy_anti"]) / 2
        tied = totals["tied"] / count
        return {"accuracy": accuracy(totals, *CONDITIONS), **parts, "average": average, "tied": tied}
