"""Counterfactual data augmentation: the texts that are learned speak of women as they speak of men."""

import random
from typing import ClassVar

from evenhand.config import options
from evenhand.data._rows import Text
from evenhand.methods._texts import TextMethod
from evenhand.run import Run
from evenhand.swapping import swapped

__all__ = ["CDA"]


@options
class CDA(TextMethod):
    """LoRA fine-tuning on texts in half of which, drawn at random, the gendered words are exchanged (CDA)."""

    paper: ClassVar = "Gender Bias in Neural Natural Language Processing"
    citation: ClassVar = "Lu et al., 2020 (arXiv:1807.11714); Zmigrod et al., ACL 2019"
    kinds: ClassVar = ("causal", "seq2seq")

    both: bool = False
    """Learn every gendered text and its exchanged twin, in up to twice the steps; else one of the two."""

    def texts(self, rows: list[Text], run: Run) -> list[str]:
        """Each text or its twin, or both; which one depends on the seed and the row, not on the rows around it."""
        texts = [row.text for row in rows]
        if self.both:
            return texts + [twin for text in texts if (twin := swapped(text)) != text]
        drawn = [random.Random(f"{run.seed} {row.id}").random() < 0.5 for row in rows]
        return [swapped(text) if swap else text for text, swap in zip(texts, drawn, strict=True)]
