"""IBM, indirect bias mitigation: fine-tuning that is charged for attending to tokens which resemble sensitive words.

Of the paper only the abstract was at hand; attention and likeness are read as the metric `ausc` reads them.

n rows, s positions, h heads, w sensitive words, d hidden size."""

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.utils.rnn import pad_sequence

from evenhand.config import Refusal, options
from evenhand.data._rows import Text
from evenhand.hooks import attention_shown, head_inputs, through_head
from evenhand.lm import LM
from evenhand.methods._texts import Batch, TextMethod
from evenhand.methods._words import forms
from evenhand.run import Run
from evenhand.train import Terms

__all__ = ["IBM"]


@options
class IBM(TextMethod):
    """LoRA fine-tuning that turns attention away from tokens that resemble sensitive words (IBM)."""

    paper: ClassVar = "Discovering and Mitigating Indirect Bias in Attention-Based Model Explanations"
    citation: ClassVar = "Haque, Xu and Yuan, Findings of NAACL 2024"

    words: tuple[str, ...] = ("he", "she")
    """The sensitive words; in a text they are left out themselves, because only what stands in for them is charged."""
    weight: float = Field(1.0, ge=0)
    """How much the likeness of attended tokens counts beside learning the texts (lambda)."""

    def fit(self, lm: LM, rows: list[Text], run: Run) -> dict[str, Any]:
        """Fine-tune with attention maps to be seen."""
        if not any(word.strip() for word in self.words):
            raise Refusal("ibm has no sensitive words; name some with --set method.words=[he,she].")
        with attention_shown(lm) if self.weight else contextlib.nullcontext():
            return super().fit(lm, rows, run)

    def terms(self, lm: LM, batch: Batch) -> Terms:
        """Cross-entropy and the weighted likeness; the sensitive words ride in the batch as rows of their own."""
        if not self.weight:
            return super().terms(lm, batch)
        count, width = batch.ids.shape
        # The first token draws attention to itself whatever it is: before a lone word the start token takes that place.
        words = [[lm.start, *tokens] for tokens in lm.tokenizer(list(self.words), add_special_tokens=False).input_ids]
        extra = [torch.tensor(ids, device=lm.device) for ids in words]
        with last_attention(lm) as maps, head_inputs(lm) as read:
            lm.model(input_ids=pad_sequence([*batch.ids, *extra], batch_first=True), use_cache=False)
        states = read[0][:count, :width]  # [n, s, d]
        alone = torch.stack([read[0][count + place, 1 : len(ids)].float().mean(0) for place, ids in enumerate(words)])
        every, last = torch.arange(count, device=lm.device), batch.mask.sum(1) - 1
        looks = maps[0][every, :, last, :width].float().mean(1)  # [n, h, s] -> [n, s]
        charged = attended_likeness(looks * self.counted(lm, batch), states, alone)
        z = through_head(lm, batch.read(states))
        return {"cross_entropy": cross_entropy(z, batch.targets), "likeness": self.weight * charged}

    def counted(self, lm: LM, batch: Batch) -> Tensor:
        """The tokens that count: not padding, not the first, not special, not those of a sensitive word. [n, s]

        A word is known by its tokens, so a longer word that begins with the same ones loses them too."""
        special = torch.tensor(lm.tokenizer.all_special_ids, device=batch.ids.device)
        left_out = torch.isin(batch.ids, special)
        left_out[:, 0] = True
        for tokens in (each for word in self.words for each in forms(lm, word) if len(each) <= batch.ids.shape[1]):
            windows = batch.ids.unfold(1, len(tokens), 1)  # [n, s - tokens + 1, tokens]
            starts = (windows == torch.tensor(tokens, device=batch.ids.device)).all(-1)
            for offset in range(len(tokens)):
                left_out[:, offset : offset + starts.shape[1]] |= starts
        return batch.mask & ~left_out


def attended_likeness(looks: Tensor, states: Tensor, words: Tensor) -> Tensor:
    """Each token's cosine to the nearest word, negative ones as 0, averaged by where attention goes [n, s]; the mean
    over rows, of which one without a token that counts has 0."""
    share = looks / looks.sum(1, keepdim=True).clamp_min(1e-12)
    likeness = (normalize(states.float(), dim=-1) @ normalize(words, dim=-1).T).amax(-1).clamp(0, 1)  # [n, s]
    return (share * likeness).sum(1).mean()


@contextlib.contextmanager
def last_attention(lm: LM) -> Iterator[list[Tensor]]:
    """The attention maps of the last block in the next forward pass. [n, h, s, s]"""
    seen: list[Tensor] = []

    def take(_: nn.Module, __: Any, output: Any) -> None:
        shown = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if not isinstance(shown, Tensor) or shown.dim() != 4:
            raise Refusal(
                f"ibm needs the attention maps of the last block, and {lm.model.config.model_type!r} does not show "
                "them; choose another model or method."
            )
        seen.append(shown)

    # The module that holds attention's output projection is the attention.
    handle = lm.blocks[-1].get_submodule(lm.projections[0].rpartition(".")[0]).register_forward_hook(take)
    try:
        yield seen
    finally:
        handle.remove()
