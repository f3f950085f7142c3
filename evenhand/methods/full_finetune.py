"""Full-parameter fine-tuning (the paper's FPFT): LFTF's loss on every weight. The baseline that forgets the hints."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from evenhand.config import options
from evenhand.data._rows import Prompt
from evenhand.lm import LM
from evenhand.losses import towards
from evenhand.methods._base import Method, keep
from evenhand.run import Run
from evenhand.train import Schedule, logits, train

__all__ = ["FullFinetune"]


@options
class FullFinetune(Method):
    """Cross-entropy towards each word, on all parameters (FPFT)."""

    reads: ClassVar = Prompt
    data: ClassVar = "genbiaseval"
    paper: ClassVar = "LFTF, section 5.1 (baseline FPFT)"
    citation: ClassVar = "Anonymous ACL submission, 2025"

    rate: float = 1e-5
    """Adam's learning rate."""
    epochs: int = 2
    """How often every prompt is seen."""
    batch: int = 32
    """Prompts a step (on each device)."""

    def fit(self, lm: LM, rows: list[Prompt], run: Run) -> dict[str, Any]:
        """Train everything; nothing is frozen, so nothing can be computed ahead."""
        lm.require("causal", "full_finetune")
        words = lm.word_ids(rows[0].words, rows[0].text)
        tokens = [torch.tensor(ids, device=lm.device) for ids in lm.encode([row.text for row in rows])]

        def terms(batch: list[int]) -> dict[str, Tensor]:
            inputs = [tokens[row] for row in batch]
            z = logits(lm, None, inputs, [torch.tensor([len(row) - 1]) for row in inputs])
            return {"cross_entropy": towards(z, words)}

        names = [name for name, _ in lm.model.named_parameters()]
        keep(run, lm, train(lm, names, len(rows), terms, Schedule(self.rate, self.epochs, self.batch, False), run))
        return {}
