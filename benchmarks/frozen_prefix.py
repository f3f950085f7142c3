"""Training LFTF's last block from the cached output of the frozen blocks, against the same training without the cache.

    python benchmarks/frozen_prefix.py [model]

Prints one ratio line; the losses of both trainings must agree to 1e-4."""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from evenhand.data.genbiaseval import GenBiasEval
from evenhand.lm import LM
from evenhand.losses import towards
from evenhand.run import Run
from evenhand.train import Fit, Schedule, logits, prepare, train


def fit(lm: LM, block: int | None, inputs: list[torch.Tensor], words: list[int]) -> Fit:
    """Two epochs of the paper's training of the last block, from hidden states or from tokens."""

    def terms(rows: list[int]) -> dict[str, torch.Tensor]:
        chosen = [inputs[row] for row in rows]
        return {
            "cross_entropy": towards(logits(lm, block, chosen, [torch.tensor([len(row) - 1]) for row in chosen]), words)
        }

    names = list(lm.block_parameters(len(lm.blocks) - 1))
    with tempfile.TemporaryDirectory() as folder:
        return train(lm, names, len(inputs), terms, Schedule(1e-5, 2, 32, False), Run(Path(folder), quiet=True))


def main(model: str = "smollm2") -> None:
    """Train twice from the same start."""
    rows = GenBiasEval().take("train")
    lm = LM.load(model)
    words, encoded = lm.word_ids(rows[0].words, rows[0].text), lm.encode([row.text for row in rows])
    last = len(lm.blocks) - 1
    start = {name: parameter.clone() for name, parameter in lm.block_parameters(last).items()}
    began = time.time()
    prepared = prepare(lm, encoded, last, Run(Path(tempfile.mkdtemp()), quiet=True), "preparing")
    preparing = time.time() - began
    cached = fit(lm, last, prepared.inputs, words)
    with torch.no_grad():
        for name, parameter in lm.block_parameters(last).items():
            parameter.copy_(start[name])
    plain = fit(lm, None, [torch.tensor(ids, device=lm.device) for ids in encoded], words)
    apart = float(np.abs(cached.curve["loss"] - plain.curve["loss"]).max())
    assert apart < 1e-4, f"the losses differ by {apart}"
    print(
        f"frozen_prefix: {plain.seconds / cached.seconds:.1f}x faster training with the cache ({plain.seconds:.1f} s / "
        f"{cached.seconds:.1f} s, two epochs of {len(rows)} prompts; filling the cache took {preparing:.1f} s once; "
        f"largest difference of losses {apart:.1g})"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
