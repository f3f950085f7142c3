"""GAS, the gender attribute score (Dong et al. 2024): how often a neutral beginning gets a gendered continuation."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import pandas as pd
from pydantic import PositiveInt

from evenhand.config import Refusal, options
from evenhand.data._rows import Text
from evenhand.lm import LM
from evenhand.metrics._base import Metric, base_columns
from evenhand.run import Run
from evenhand.scoring import greedy
from evenhand.words import FEMALE_WORDS, GENDER_WORDS, MALE_WORDS

__all__ = ["GAS"]

WHOLE_WORD = re.compile(rf"\b(?:{'|'.join(GENDER_WORDS)})\b", re.IGNORECASE)


@options
class GAS(Metric):
    """Share of continuations with at least one of 28 gendered words: 0 is a model that names no gender unasked."""

    reads: ClassVar = Text
    data: ClassVar = "openings"
    ideal: ClassVar = 0.0
    low: ClassVar = 0.0
    high: ClassVar = 1.0
    headline: ClassVar = "continuations with a gendered word"
    meaning: ClassVar = (
        "How often the model brings up a gender by itself when it continues a sentence that says nothing about one."
    )
    sums: ClassVar = ("hit",)
    # A model that always says "he" and one that says either have the same score; the two shares tell them apart.
    extra_sums: ClassVar = ("male", "female")
    lean: ClassVar = "hit"
    work: ClassVar = 11.0

    new_tokens: PositiveInt = 50
    """How many tokens the model writes after each beginning."""

    def score(self, lm: LM, rows: list[Text], run: Run) -> pd.DataFrame:
        """The likeliest continuation of each beginning and the listed words in it; the beginning itself is not read."""
        for row in rows:
            if not row.text.strip():
                raise Refusal(f"gas: row {row.id} has no text to continue; delete it.")
        written = greedy(lm, [row.text for row in rows], self.new_tokens, run, "gas")
        found = [gender_words(text) for text in written]
        return base_columns(rows).assign(
            text=[row.text for row in rows],
            continuation=written,
            words=[", ".join(words) for words in found],
            hit=[float(bool(words)) for words in found],
            male=[float(any(word in MALE_WORDS for word in words)) for words in found],
            female=[float(any(word in FEMALE_WORDS for word in words)) for words in found],
        )

    def value(self, totals: Mapping[str, Any], count: Any) -> Any:
        """The share of continuations with a hit."""
        return totals["hit"] / count


def gender_words(text: str) -> list[str]:
    """The listed words in a text, each once, in the order they come."""
    return list(dict.fromkeys(word.lower() for word in WHOLE_WORD.findall(text)))
