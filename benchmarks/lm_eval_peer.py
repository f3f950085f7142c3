"""Log-likelihoods of sentences against lm-evaluation-harness's own, same model, same strings,
its batch size automatic and fixed.

    EVENHAND_DATA=... python benchmarks/lm_eval_peer.py [model] [pairs]

Prints one ratio line; the log-likelihoods must agree to 5e-3 (float32, summed over a sentence)."""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from evenhand.data.crows_pairs import CrowSPairs
from evenhand.data.stereoset import StereoSet
from evenhand.lm import LM
from evenhand.run import Run
from evenhand.scoring import continuations


def main(model: str = "smollm2", pairs: str = "300") -> None:
    """Both score CrowS-Pairs and StereoSet intrasentence sentences without a context."""
    lm, run = LM.load(model), Run(Path(tempfile.mkdtemp()), quiet=True)
    sentences = [text for row in CrowSPairs().take("test", int(pairs)) for text in (row.more, row.less)]
    sentences += [text for row in StereoSet(task="intrasentence").take("test", int(pairs)) for text in row.options]
    requests = [Instance("loglikelihood", {}, ("", text), number) for number, text in enumerate(sentences)]
    continuations(lm, [""] * 8, [[text] for text in sentences[:8]], run, "warming up")
    began = time.time()
    found = continuations(lm, [""] * len(sentences), [[text] for text in sentences], run, "scoring")
    ours = time.time() - began
    peers = {}
    for size in ("auto", 16):
        peer = HFLM(pretrained=lm.model, tokenizer=lm.tokenizer, batch_size=size)
        began = time.time()
        theirs = peer.loglikelihood(requests, disable_tqdm=True)
        peers[size] = time.time() - began
    apart = float(np.abs(np.array([own.sum() for (own,) in found]) - [value for value, _ in theirs]).max())
    assert apart < 5e-3, f"the log-likelihoods differ by {apart}"
    print(
        f"lm_eval_peer: {peers['auto'] / ours:.1f}x faster than lm-eval's loglikelihood ({peers['auto']:.1f} s / "
        f"{ours:.1f} s for {len(sentences)} sentences, its batch size automatic; {peers[16] / ours:.1f}x with 16 a "
        f"batch; largest difference {apart:.1g})"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
