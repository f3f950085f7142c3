"""Perplexity of texts read one by one: how well a model knows the kind of text it was fine-tuned on."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from pydantic import PositiveInt

from evenhand.config import options
from evenhand.data._rows import Text
from evenhand.lm import LM
from evenhand.methods._words import single_tokens
from evenhand.metrics._base import Metric, base_columns, divided
from evenhand.run import Run
from evenhand.scoring import token_logprobs
from evenhand.words import GENDER_WORDS

__all__ = ["SentencePerplexity"]


@options
class SentencePerplexity(Metric):
    """Exponential of the mean negative log-likelihood per token, each text read alone: lower is better."""

    reads: ClassVar = Text
    data: ClassVar = "biographies"
    ideal: ClassVar = 1.0
    low: ClassVar = 1.0
    high: ClassVar = float("inf")
    headline: ClassVar = "perplexity of held-out texts"
    meaning: ClassVar = "How surprised the model is by texts like those it was fine-tuned on, each read by itself."
    sums: ClassVar = ("nll", "tokens")
    # A model that avoids gendered words is surprised by them; what it makes of everything else is the cost proper.
    extra_sums: ClassVar = ("gendered nll", "gendered tokens")

    length: PositiveInt = 64
    """How many tokens of each text are read."""

    def score(self, lm: LM, rows: list[Text], run: Run) -> pd.DataFrame:
        """Each text behind the start token; its first token is scored too."""
        gendered = gender_tokens(lm)
        items = []
        for row in rows:
            before, tokens = lm.split("", row.text)
            items.append((before, tokens[: self.length]))
        nll = [-each for each in token_logprobs(lm, items, run, "sentence_perplexity")]
        marked = [np.isin(tokens, gendered) for _, tokens in items]
        return base_columns(rows).assign(
            **{
                "text": [row.text for row in rows],
                "nll": [float(each.sum()) for each in nll],
                "tokens": [float(len(each)) for each in nll],
                "gendered nll": [float(each[mark].sum()) for each, mark in zip(nll, marked, strict=True)],
                "gendered tokens": [float(mark.sum()) for mark in marked],
            }
        )

    def value(self, totals: Mapping[str, Any], count: Any) -> Any:
        """Token-weighted over everything scored."""
        return np.exp(divided(totals["nll"], totals["tokens"]))

    def extras(self, totals: Mapping[str, Any], count: Any) -> dict[str, Any]:
        """The same over all tokens that are no gendered word."""
        nll, tokens = (totals[name] - totals[f"gendered {name}"] for name in ("nll", "tokens"))
        return {"without_gendered": np.exp(divided(nll, tokens))}


def gender_tokens(lm: LM) -> list[int]:
    """The tokens that are a whole gendered word, small or capital, inside a text or at its beginning."""
    return sorted({token for tokens in single_tokens(lm, GENDER_WORDS).values() for token in tokens})
