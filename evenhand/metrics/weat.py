"""WEAT (Caliskan et al. 2017): whether one group's words lie nearer to one kind of word than another group's do."""

from typing import ClassVar, Literal

import numpy as np
import torch

from evenhand.config import options
from evenhand.lm import LM
from evenhand.metrics._association import Association
from evenhand.run import Run
from evenhand.scoring import vectors

__all__ = ["WEAT"]


@options
class WEAT(Association):
    """Mean absolute effect size |d| of word association tests: 0 is even-handed, 2 the largest there is."""

    data: ClassVar = "weat"
    headline: ClassVar = "association of words with groups"
    meaning: ClassVar = (
        "Whether the model places one group's words nearer to, say, career and the other's nearer to family: "
        "0 is no difference, 0.8 is called large, 2 is the most."
    )

    space: Literal["contextual", "started", "static"] = "contextual"
    """A word's vector: its last hidden states, the word read alone; the same behind a start token, which a model whose
    tokenizer gives none needs, because its first token's state is much the same whatever the token; or its input
    embeddings (which LoRA on the blocks never changes)."""

    def embed(self, lm: LM, texts: list[str], run: Run) -> np.ndarray:
        """The vector of each word, read alone or looked up. [n, d]"""
        if self.space == "started":
            lm.require("causal", "weat with space=started")
            return vectors(lm, texts, run, self.label, started=True)
        return static_vectors(lm, texts) if self.space == "static" else super().embed(lm, texts, run)


@torch.inference_mode()
def static_vectors(lm: LM, words: list[str]) -> np.ndarray:
    """The mean input embedding of the tokens each word has inside a text (" word"). [n, d]"""
    embeddings = lm.model.get_input_embeddings()
    means = []
    for word in words:
        # Behind another word, because some tokenizers write a leading space as a token of its own.
        _, tokens = lm.split("a", f" {word}")
        means.append(embeddings(torch.tensor(tokens, device=lm.device)).double().mean(0).cpu().numpy())
    return np.stack(means)
