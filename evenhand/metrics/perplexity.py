"""Perplexity of ordinary text: what debiasing may cost."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from evenhand.config import options
from evenhand.data._rows import Text
from evenhand.lm import LM
from evenhand.metrics._base import Metric
from evenhand.run import Run
from evenhand.scoring import token_nll

__all__ = ["Perplexity"]

SEPARATOR = "\n\n"


@options
class Perplexity(Metric):
    """Exponential of the mean negative log-likelihood per token, strided over the joined text: lower is better."""

    reads: ClassVar = Text
    data: ClassVar = "plain_text"
    ideal: ClassVar = 1.0
    low: ClassVar = 1.0
    high: ClassVar = float("inf")
    headline: ClassVar = "perplexity of ordinary text"
    meaning: ClassVar = "How surprised the model is by ordinary text; it shows what a change of the model has cost."
    sums: ClassVar = ("nll", "tokens")

    window: int = 1024
    """How many tokens the model reads at once (cut to what the model can read)."""
    stride: int = 512
    """How many new tokens each window scores."""

    def score(self, lm: LM, rows: list[Text], run: Run) -> pd.DataFrame:
        """Rows are joined by blank lines and scored as one text; each row gets its own tokens' likelihood back."""
        text = SEPARATOR.join(row.text for row in rows)
        encoded = lm.tokenizer(text, return_offsets_mapping=True, add_special_tokens=False, verbose=False)
        # The prefix stands before every window, and the positions must hold both.
        taken = len(lm.tokenizer(lm.prefix).input_ids) if lm.prefix else 0
        window = min(self.window, getattr(lm.model.config, "max_position_embeddings", self.window + taken) - taken)
        # The start token gives the first token something to follow; it is not scored itself.
        ids = [lm.start, *encoded["input_ids"]]
        nll = token_nll(lm, ids, window, min(self.stride, window), run, "perplexity")
        starts = np.cumsum([0, *(len(row.text) + len(SEPARATOR) for row in rows[:-1])])
        owner = np.searchsorted(starts, [begin for begin, _ in encoded["offset_mapping"]], side="right") - 1
        size = len(rows)
        return pd.DataFrame(
            {
                "id": [row.id for row in rows],
                "group": [row.group for row in rows],
                "text": [row.text for row in rows],
                "nll": np.bincount(owner, nll, size),
                "tokens": np.bincount(owner, minlength=size),
            }
        )

    def value(self, totals: Mapping[str, Any], count: Any) -> Any:
        """Token-weighted over everything scored."""
        return np.exp(totals["nll"] / np.maximum(totals["tokens"], 1))
