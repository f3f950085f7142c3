"""Measuring GenBiasEval against a plain transformers loop that pads batches of 32 and keeps all logits.

    python benchmarks/next_token.py [model]

Prints one ratio line; the probabilities of both must agree to 5e-5. Each side runs in a process of its own, so that the
peak of its memory is its own."""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from evenhand.data.genbiaseval import GenBiasEval
from evenhand.lm import LM
from evenhand.run import Run
from evenhand.scoring import next_token_logprobs

ROWS, BATCH = 256, 32


def plain(lm: LM, texts: list[str], words: list[int]) -> np.ndarray:
    """What one would write first: batches in order, padded, all logits kept, softmax at the last position."""
    lm.tokenizer.pad_token = lm.tokenizer.pad_token or lm.tokenizer.eos_token
    lm.tokenizer.padding_side = "right"
    found = []
    with torch.no_grad():
        for start in range(0, len(texts), BATCH):
            batch = lm.tokenizer(texts[start : start + BATCH], return_tensors="pt", padding=True).to(lm.device)
            logits = lm.model(**batch).logits
            last = batch["attention_mask"].sum(1) - 1
            found.append(logits.softmax(-1)[torch.arange(len(last)), last][:, words].cpu().numpy())
    return np.concatenate(found)


def side(which: str, model: str) -> None:
    """One side's time, memory and probabilities, as JSON."""
    lm = LM.load(model)
    rows = GenBiasEval().take("test", ROWS)
    texts, words = [row.text for row in rows], lm.word_ids(rows[0].words, rows[0].text)
    run = Run(Path(tempfile.mkdtemp()), quiet=True)
    lm.model(torch.tensor([lm.encode(texts[:1])[0]], device=lm.device))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.time()
    p = (
        plain(lm, texts, words)
        if which == "plain"
        else np.exp(next_token_logprobs(lm, texts, [words] * ROWS, run, "afgb"))
    )
    seconds = time.time() - began
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    print(json.dumps({"seconds": seconds, "memory": memory, "p": p.tolist()}))


def main(model: str = "smollm2") -> None:
    """Run both sides and print the ratio."""
    results = {}
    for which in ("plain", "evenhand"):
        done = subprocess.run([sys.executable, __file__, which, model], capture_output=True, text=True, check=True)
        results[which] = json.loads(done.stdout.splitlines()[-1])
    a, b = results["plain"], results["evenhand"]
    apart = float(np.abs(np.array(a["p"]) - np.array(b["p"])).max())
    assert apart < 5e-5, f"the probabilities differ by {apart}"
    memory = f"{b['memory']:.0f} MB / {a['memory']:.0f} MB"
    print(
        f"next_token: {a['seconds'] / b['seconds']:.1f}x faster than a plain loop ({a['seconds']:.1f} s / "
        f"{b['seconds']:.1f} s for {ROWS} prompts), peak memory above the model {memory}"
    )


if __name__ == "__main__":
    side(*sys.argv[1:]) if len(sys.argv) == 3 else main(*sys.argv[1:])
