"""The scoring engine on real sentences against a bare forward pass over perfectly packed batches of as many tokens.

    EVENHAND_DATA=... python benchmarks/bare_forward.py [model] [pairs]

Prints one ratio line: the share of the bare pass's tokens per second that the engine reaches, counting only tokens that
it really runs; what it saves by running shared beginnings once comes on top."""

import sys
import tempfile
import time
from pathlib import Path

import torch

from evenhand.data.crows_pairs import CrowSPairs
from evenhand.lm import LM
from evenhand.run import Run
from evenhand.scoring import budget, can_branch, token_logprobs
from evenhand.trees import plant

LENGTH = 256


def bare(lm: LM, tokens: int) -> float:
    """The seconds of forward passes over full rows with as many tokens in all, every logit computed."""
    rows = max(1, budget(lm) // LENGTH)
    ids = torch.randint(0, 1000, (rows, LENGTH), device=lm.device)
    passes = max(1, round(tokens / ids.numel()))
    with torch.inference_mode():
        lm.model(input_ids=ids, use_cache=False).logits[0, 0, 0].item()
        began = time.time()
        for _ in range(passes):
            lm.model(input_ids=ids, use_cache=False).logits[0, 0, 0].item()
    return (time.time() - began) * tokens / (passes * ids.numel())


def main(model: str = "smollm2", pairs: str = "400") -> None:
    """Score the sentences of some pairs, then run as many tokens bare."""
    lm, run = LM.load(model), Run(Path(tempfile.mkdtemp()), quiet=True)
    sentences = [text for row in CrowSPairs().take("test", int(pairs)) for text in (row.more, row.less)]
    items = [lm.split("", text) for text in dict.fromkeys(sentences)]
    runs = list(dict.fromkeys((*context, *target[:-1]) for context, target in items))
    tokens = sum(len(tree.tokens) for tree in plant(runs, can_branch(lm, max(map(len, runs))))[0])
    token_logprobs(lm, items[:8], run, "warming up")
    began = time.time()
    token_logprobs(lm, items, run, "scoring")
    engine = time.time() - began
    limit = bare(lm, tokens)
    saved = sum(map(len, runs)) / tokens
    print(
        f"bare_forward: {100 * limit / engine:.0f} % of a bare forward pass's tokens per second "
        f"({tokens / engine:.0f} / {tokens / limit:.0f} on {tokens} tokens of {len(items)} sentences); "
        f"shared beginnings make it {saved:.2f}x as many tokens of text"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
