"""BMI (LFTF, eq. 4): how much each block turns the hidden states, summed over the tokens of the training prompts.

n prompts, s positions, d hidden size, b blocks."""

from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from evenhand.config import options
from evenhand.data._rows import Prompt
from evenhand.hooks import block_inputs, head_inputs
from evenhand.lm import LM
from evenhand.locators._base import Locator, Ranking
from evenhand.run import Run
from evenhand.train import same_length

__all__ = ["BMI"]

DRAWS, DRAWN = 5, 100


@options
class BMI(Locator):
    """One minus the cosine between what a block reads and what it writes, summed over tokens."""

    paper: ClassVar = "LFTF"

    final_norm: bool = True
    """Read the last block's output after the final norm, as `output_hidden_states` gives it (the paper's reading)."""
    reduction: Literal["sum", "per_prompt", "per_token"] = "sum"
    """Add up over all tokens, or take the mean; the order of blocks by sum and by prompt is the same."""

    def rank(self, lm: LM, rows: list[Prompt], run: Run) -> Ranking:
        """Both readings of every block, the chosen one as score, and its variance over five draws of 100 prompts."""
        lm.require("causal", "bmi")
        turned, tokens = turns(lm, [row.text for row in rows], run)  # [n, b + 1], [n]
        blocks = len(lm.blocks)
        before, after = turned[:, :blocks], np.delete(turned, blocks - 1, axis=1)
        scale = {"sum": 1, "per_prompt": len(rows), "per_token": tokens.sum()}[self.reduction]
        chosen = after if self.final_norm else before
        table = pd.DataFrame(
            {
                "block": range(blocks),
                "score": chosen.sum(0) / scale,
                "bmi_before_norm": before.sum(0) / scale,
                "bmi_after_norm": after.sum(0) / scale,
                "variance": variance_over_draws(chosen),
            }
        )
        return Ranking(table)


def variance_over_draws(turned: np.ndarray) -> np.ndarray:
    """The paper's robustness (A.1): the variance of each block's mean per prompt over five draws of 100 prompts. [b]"""
    size = min(DRAWN, len(turned))
    draws = [np.random.default_rng(seed).choice(len(turned), size, replace=False) for seed in range(1, DRAWS + 1)]
    return np.var([turned[draw].mean(0) for draw in draws], axis=0)


@torch.inference_mode()
def turns(lm: LM, texts: list[str], run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Each prompt's token sum of 1 - cos for every block; the last column reads the last block after the final norm."""
    encoded = lm.encode(texts)
    every = list(range(len(lm.blocks) + 1))
    turned = np.zeros((len(texts), len(every)))
    # Without padding every token counts and none has to be masked.
    groups = same_length(encoded)
    for group in run.progress(groups, "bmi", sizes=[len(group) for group in groups]):
        ids = torch.tensor([encoded[row] for row in group], device=lm.device)
        with block_inputs(lm, every) as states, head_inputs(lm) as finals:
            lm.model(input_ids=ids, use_cache=False)
        pairs = [(states[block], states[block + 1]) for block in every[:-1]]
        pairs.append((states[len(lm.blocks) - 1], finals[0]))
        turned[group] = torch.stack([turn(read, written) for read, written in pairs], dim=1).cpu().numpy()
    return turned, np.array([len(row) for row in encoded])


def turn(read: Tensor, written: Tensor) -> Tensor:
    """1 - cos at each position, summed over positions. [n]"""
    return (1 - torch.nn.functional.cosine_similarity(read.double(), written.double(), dim=-1)).sum(-1)
