"""Measuring CrowS-Pairs and StereoSet's intrasentence task against a loop over sentences as bias-bench has it.

    EVENHAND_DATA=folder python benchmarks/bias_bench.py [model] [limit]

Prints one ratio line; the scores of both must agree to 1e-4. With a limit both score the first so many rows of each
dataset; without it evenhand scores all rows and the loop a random sample of their sentences, compared by sentence. Each
side runs in a process of its own, so that the peak of its memory is its own."""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from evenhand.data.crows_pairs import CrowSPairs as Pairs
from evenhand.data.stereoset import StereoSet as Items
from evenhand.lm import LM
from evenhand.metrics.crows_pairs import CrowSPairs
from evenhand.metrics.stereoset import StereoSet
from evenhand.run import Run

SAMPLE = 300


class Rows(NamedTuple):
    """What is measured."""

    pairs: list[Any]
    items: list[Any]

    def sentences(self) -> list[tuple[str, bool]]:
        """Every sentence, and whether it is one of a pair."""
        paired = [(text, True) for row in self.pairs for text in (row.more, row.less)]
        return paired + [(text, False) for row in self.items for text in row.options]


def plain(lm: LM, sentences: list[tuple[str, bool]]) -> list[float]:
    """Mean log-probability of each sentence: one pass a sentence, all logits kept, softmax over all of them. For
    CrowS-Pairs bias-bench runs the start token anew for every sentence, for StereoSet once."""
    start = torch.tensor([[lm.start]], device=lm.device)
    found = []
    with torch.no_grad():
        once = lm.model(start).logits.softmax(-1)
        for text, paired in sentences:
            tokens = lm.tokenizer(text, add_special_tokens=False).input_ids
            first = lm.model(start).logits.softmax(-1) if paired else once
            p = lm.model(torch.tensor([tokens], device=lm.device)).logits.softmax(-1)
            each = [first[0, 0, tokens[0]].item()]
            each += [p[0, place - 1, tokens[place]].item() for place in range(1, len(tokens))]
            found.append(float(np.mean(np.log(each))))
    return found


def engine(lm: LM, rows: Rows, run: Run) -> list[float]:
    """The same from the two metrics' tables."""
    pairs = CrowSPairs().score(lm, rows.pairs, run)[["more", "less"]]
    items = StereoSet().score(lm, rows.items, run)[["stereotype", "anti_stereotype", "unrelated"]]
    return [*pairs.to_numpy().ravel().tolist(), *items.to_numpy().ravel().tolist()]


def side(which: str, model: str, limit: str = "") -> None:
    """One side's time, memory and scores by the sentence's number, as JSON."""
    lm = LM.load(model)
    most = int(limit) if limit else None
    rows = Rows(Pairs().take("test", most), Items(task="intrasentence").take("test", most))
    sentences = rows.sentences()
    numbers = list(range(len(sentences)))
    if which == "plain" and not limit:
        numbers = random.Random(0).sample(numbers, SAMPLE)
    run = Run(Path(tempfile.mkdtemp()), quiet=True)
    plain(lm, sentences[:1])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.time()
    scores = plain(lm, [sentences[n] for n in numbers]) if which == "plain" else engine(lm, rows, run)
    seconds = time.time() - began
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    print(json.dumps({"seconds": seconds, "memory": memory, "scores": list(zip(numbers, scores, strict=True))}))


def main(model: str = "smollm2", limit: str = "") -> None:
    """Run both sides and print the ratio."""
    results = {}
    for which in ("plain", "evenhand"):
        command = [sys.executable, __file__, which, model, limit]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results[which] = json.loads(done.stdout.splitlines()[-1])
    a, b = results["plain"], results["evenhand"]
    ours = dict(b["scores"])
    apart = max(abs(score - ours[number]) for number, score in a["scores"])
    assert apart < 1e-4, f"the scores differ by {apart}"
    each_a, each_b = (1e3 * one["seconds"] / len(one["scores"]) for one in (a, b))
    print(
        f"bias_bench: {each_a / each_b:.1f}x faster than one sentence at a time ({each_a:.1f} ms / {each_b:.1f} ms a "
        f"sentence; {len(a['scores'])} / {len(b['scores'])} sentences), scores agree to {apart:.0e}, peak memory above "
        f"the model {b['memory']:.0f} MB / {a['memory']:.0f} MB"
    )


if __name__ == "__main__":
    (side if sys.argv[1:2] in (["plain"], ["evenhand"]) else main)(*sys.argv[1:])
