"""Next-word probabilities of prompts: what AFGB and UB share."""

import numpy as np

from evenhand.config import Refusal
from evenhand.data._rows import Prompt
from evenhand.lm import LM
from evenhand.run import Run
from evenhand.scoring import next_token_logprobs

__all__ = ["word_probabilities"]


def word_probabilities(lm: LM, rows: list[Prompt], run: Run, what: str) -> np.ndarray:
    """P(word) after each prompt, over the whole vocabulary. [n, w]"""
    words = rows[0].words
    for row in rows:
        if row.words != words:
            raise Refusal(
                f"{what}: row {row.id} compares {', '.join(row.words)} where others compare {', '.join(words)}."
            )
    ids = lm.word_ids(words, rows[0].text)
    return np.exp(next_token_logprobs(lm, [row.text for row in rows], [ids] * len(rows), run, what))
