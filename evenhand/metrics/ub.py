"""UB-Score (LFTF, eq. 2): whether the model still follows a hint that the prompt gives."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from evenhand.config import Refusal, options
from evenhand.data._rows import Prompt
from evenhand.lm import LM
from evenhand.metrics._base import Metric, word_columns
from evenhand.metrics._words import word_probabilities
from evenhand.run import Run

__all__ = ["UB"]


@options
class UB(Metric):
    """Mean of P(hinted word) minus the mean P of the others: 1 follows every hint, 0 none, -1 contradicts."""

    reads: ClassVar = Prompt
    data: ClassVar = "genhinteval"
    ideal: ClassVar = 1.0
    low: ClassVar = -1.0
    high: ClassVar = 1.0
    headline: ClassVar = "agreement with the hint"
    meaning: ClassVar = (
        "Where the prompt gives the word away (his, her), a useful model follows; this is how clearly it does."
    )
    sums: ClassVar = ("agreement",)
    extra_sums: ClassVar = ("mass",)

    def score(self, lm: LM, rows: list[Prompt], run: Run) -> pd.DataFrame:
        """Each prompt's agreement with its hint."""
        for row in rows:
            if row.hint not in row.words:
                raise Refusal(
                    f"ub: row {row.id} has no hint among its words ({', '.join(row.words)}); add a hint column."
                )
        p = word_probabilities(lm, rows, run, "ub")
        hinted = np.array([row.words.index(row.hint) for row in rows])
        own = p[np.arange(len(rows)), hinted]
        others = (p.sum(1) - own) / (p.shape[1] - 1)
        return word_columns(rows, p).assign(hint=[row.hint for row in rows], agreement=own - others, mass=p.sum(1))

    def value(self, totals: Mapping[str, Any], count: Any) -> Any:
        """The mean agreement."""
        return totals["agreement"] / count
