"""Where a model looks in a prompt: for every token, how much goes to each sensitive word (CrAWD's figure 4)."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from evenhand.association import associated, attributes_of, looks_at
from evenhand.crawd_layer import CrawdHead
from evenhand.hooks import head_inputs
from evenhand.lm import LM

__all__ = ["attended", "layer_looks"]


def attended(model: str, prompt: str, words: Sequence[str], device: str | None = None) -> pd.DataFrame:
    """One line for each token and word: of a model as it is, of a debias run before and after, and of a model with
    CrAWD's layer what that layer looks at before and after its decay."""
    lm = LM.load(model, device=device)
    if isinstance(lm.head, CrawdHead):
        return layer_looks(lm, prompt)
    own = of_model(lm, prompt, words).rename(columns={"weight": "after"})
    method = Path(model) / "method.json"
    if not method.exists():
        return own.rename(columns={"after": "before"}).assign(after=math.nan)
    base = LM.load(json.loads(method.read_text(encoding="utf-8"))["base"], device=device)
    return own.assign(before=of_model(base, prompt, words)["weight"])


def of_model(lm: LM, prompt: str, words: Sequence[str]) -> pd.DataFrame:
    """How much of the next token goes to each word and what is associated with it."""
    lm.require("causal", "attention")
    return looks_at(lm, prompt, [associated(lm, name, each) for name, each in attributes_of(words).items()])


@torch.no_grad()
def layer_looks(lm: LM, prompt: str) -> pd.DataFrame:
    """The attention of CrAWD's layer to its sensitive sequence, the mean over heads, before and after the decay."""
    ids = lm.encode([prompt])[0]
    with head_inputs(lm) as read:
        lm.model(input_ids=torch.tensor([ids], device=lm.device), use_cache=False)
    head = lm.head
    assert isinstance(head, CrawdHead)
    before, after = (weights[0].mean(0) for weights in head.attention(read[0]))  # [s, m]
    named = head.config.words if len(head.config.words) == before.shape[1] else []
    return pd.DataFrame(
        [
            {
                "prompt": prompt,
                "place": place,
                "token": lm.tokenizer.decode([token]),
                "word": named[number] if named else f"token {number + 1} of the sequence",
                "before": float(before[place, number]),
                "after": float(after[place, number]),
            }
            for number in range(before.shape[1])
            for place, token in enumerate(ids)
        ]
    )
