"""What a locator is: it scores the parts of a model, here its blocks."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from evenhand.config import options
from evenhand.lm import LM
from evenhand.run import Run

__all__ = ["Locator", "Ranking"]


@dataclass(frozen=True)
class Ranking:
    """One line a block: its score, and what the score is made of."""

    table: pd.DataFrame

    @property
    def best(self) -> int:
        """The block with the highest score."""
        return int(self.table.loc[self.table["score"].idxmax(), "block"])

    def marked(self) -> pd.DataFrame:
        """The table with the best block marked, as a run keeps it."""
        return self.table.assign(chosen=self.table["block"] == self.best)


@options
class Locator:
    """Scores over blocks; the highest is the one to tune."""

    def rank(self, lm: LM, rows: list[Any], run: Run) -> Ranking:
        """Score every block on these rows."""
        raise NotImplementedError
