"""Which block to tune: where a small step removes the most bias for what it does to ordinary text.

BMI asks how much a block changes its input, which says little about what tuning it would do. Here the step that Adam
would take first (the sign of the gradient) is followed in every block at once, to first order for the gain and to
second order for the harm, so nothing is changed and one pass over a few texts serves all blocks."""

import pandas as pd
import torch
from torch import Tensor

from evenhand.config import options
from evenhand.data._rows import Prompt
from evenhand.data.plain_text import PlainText
from evenhand.lm import LM
from evenhand.locators._base import Locator, Ranking
from evenhand.losses import balance
from evenhand.run import Run
from evenhand.train import logits

__all__ = ["Tradeoff"]

TEXT_TOKENS = 20


@options
class Tradeoff(Locator):
    """Bias removed by a small step in each block, for what the same step does to ordinary text."""

    prompts: int = 64
    """How many prompts the step is computed from."""
    sentences: int = 32
    """How many sentences of ordinary text its harm is estimated on."""

    def rank(self, lm: LM, rows: list[Prompt], run: Run) -> Ranking:
        """Gain squared over harm: the harm grows with the square of a step, so its length does not matter."""
        lm.require("causal", "tradeoff")
        parameters = [list(block.parameters()) for block in lm.blocks]
        flat = [each for block in parameters for each in block]
        trained = [parameter.requires_grad for parameter in flat]
        for parameter in flat:
            parameter.requires_grad_(True)
        try:
            gradients = bias_gradients(lm, rows[: self.prompts], flat)
            gain = by_block(parameters, [gradient.abs().sum(dtype=torch.float32) for gradient in gradients])
            harm = torch.zeros_like(gain)
            texts = lm.encode([row.text for row in PlainText().take("train", self.sentences)])
            draw = torch.Generator().manual_seed(run.seed)
            signs = [gradient.sign() for gradient in gradients]
            for ids in run.progress(texts, "weighing each block"):
                moved = [
                    (g * s).sum(dtype=torch.float32)
                    for g, s in zip(text_gradients(lm, ids[:TEXT_TOKENS], flat, draw), signs, strict=True)
                ]
                harm += by_block(parameters, moved) ** 2 / len(texts)
        finally:
            for parameter, before in zip(flat, trained, strict=True):
                parameter.requires_grad_(before)
        score = gain**2 / harm.clamp_min(1e-30)
        table = {
            "block": range(len(lm.blocks)),
            "score": score.tolist(),
            "gain": gain.tolist(),
            "text_harm": harm.tolist(),
        }
        return Ranking(pd.DataFrame(table))


def bias_gradients(lm: LM, rows: list[Prompt], parameters: list[Tensor]) -> list[Tensor]:
    """The gradient of the imbalance between the words."""
    words = lm.word_ids(rows[0].words, rows[0].text)
    tokens = [torch.tensor(ids, device=lm.device) for ids in lm.encode([row.text for row in rows])]
    z = logits(lm, None, tokens, [torch.tensor([len(ids) - 1]) for ids in tokens])
    return list(torch.autograd.grad(balance(z, words), parameters))


def text_gradients(lm: LM, ids: list[int], parameters: list[Tensor], draw: torch.Generator) -> list[Tensor]:
    """The gradient of the log-likelihood of tokens drawn from the model itself: squared along a step, it is what the
    step does to the model's distribution (the Fisher information)."""
    tokens = torch.tensor(ids, device=lm.device)
    logp = logits(lm, None, [tokens], [torch.arange(len(ids))]).log_softmax(-1)
    drawn = torch.multinomial(logp.detach().exp().cpu(), 1, generator=draw).to(lm.device)  # [s, 1]
    return list(torch.autograd.grad(logp.gather(-1, drawn).sum(), parameters))


def by_block(parameters: list[list[Tensor]], numbers: list[Tensor]) -> Tensor:
    """Add up the numbers of each block's parameters, in order."""
    return torch.stack([part.sum() for part in torch.stack(numbers).split([len(block) for block in parameters])])
