"""What CrAWD costs: a training step against the same LoRA step without it, and writing with a cache against the base.

    python benchmarks/crawd_cost.py [model]

Prints one ratio line for each form and size; the larger model (1.2 thousand million parameters on a GPU, 60 million on
a CPU) has random weights, which is enough to take its time."""

import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from evenhand.data.biographies import Biographies
from evenhand.lm import LM
from evenhand.methods._texts import Batch, TextMethod, padded
from evenhand.methods.crawd import CrAWD
from evenhand.methods.vanilla import Vanilla
from evenhand.run import Run
from evenhand.train import Terms

GPU = torch.cuda.is_available()
ROWS, LENGTH = (64, 32) if GPU else (8, 32)
ROUNDS = 12 if GPU else 5
METHODS: dict[str, TextMethod] = {
    "plain": Vanilla(),
    "default": CrAWD(),
    "printed": CrAWD(decays="attention", share=0.4),
}


def larger(tokenizer_of: LM) -> LM:
    """A model of the shape of Llama-3.2-1B on a GPU, a small one otherwise."""
    shape = (
        {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
        if GPU
        else {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 8}
    )
    config = LlamaConfig(vocab_size=128256 if GPU else 49152, num_key_value_heads=8, tie_word_embeddings=True, **shape)
    return LM(LlamaForCausalLM(config).to(tokenizer_of.device), tokenizer_of.tokenizer, "random")


def waited(work: Callable[[], object]) -> float:
    """The seconds something takes until the device has really finished."""
    if GPU:
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if GPU:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def learner(lm: LM, method: TextMethod, encoded: list[list[int]]) -> Callable[[Batch], None]:
    """A whole training step: terms, backward pass, Adam."""
    run = Run(Path(tempfile.mkdtemp()), quiet=True)
    state = method.prepare(lm, encoded, run)
    method.attach(lm, state)
    for name, parameter in lm.model.named_parameters():
        parameter.requires_grad_(method.trains(name))
    lesson = method.lesson(lm, encoded, state, run)
    lm.model.train()
    optimiser = torch.optim.AdamW([p for p in lm.model.parameters() if p.requires_grad], lr=1e-5, fused=True)

    def step(batch: Batch) -> None:
        terms: Terms = lesson.terms(batch)
        torch.stack(list(terms.values())).sum().backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def compare(name: str, base: LM) -> None:
    """Steps of every form by turns, so that whatever else the machine does hits all alike; then writing."""
    encoded = [ids[:LENGTH] for ids in base.encode([row.text for row in Biographies().take("train", 4 * ROWS)])]
    batches = [padded(encoded[start : start + ROWS], base.device) for start in range(0, len(encoded), ROWS)]
    models = {form: LM(copy.deepcopy(base.model), base.tokenizer, form) for form in METHODS}
    steps = {form: learner(lm, METHODS[form], encoded) for form, lm in models.items()}
    times: dict[str, list[float]] = {form: [] for form in METHODS}
    for number in range(-2, ROUNDS):  # two rounds to warm up
        for form, step in steps.items():
            seconds = waited(lambda step=step, number=number: step(batches[number % len(batches)]))
            if number >= 0:
                times[form].append(seconds)
    for form in ("default", "printed"):
        ratios = [own / plain for own, plain in zip(times[form], times["plain"], strict=True)]
        middle, plain = statistics.median(ratios), statistics.median(times["plain"])
        print(f"crawd_cost {name} step, {form}: {middle:.3f}x the plain LoRA step ({1000 * plain:.0f} ms)", flush=True)
    write(name, base)


def write(name: str, base: LM) -> None:
    """Greedy writing with a cache, of the base model and of the same with the printed layer before its head."""
    printed = LM(copy.deepcopy(base.model), base.tokenizer, "printed")
    method = METHODS["printed"]
    assert isinstance(method, CrAWD)
    method.insert_layer(printed, method.prepare(printed, [], Run(Path(tempfile.mkdtemp()), quiet=True)))
    ids = torch.tensor([base.encode(["The doctor said that"])[0]] * 8, device=base.device)

    how = {"do_sample": False, "min_new_tokens": 64, "max_new_tokens": 64, "pad_token_id": 0}

    def writing(lm: LM) -> Callable[[], object]:
        model: Any = lm.model.eval()
        return lambda: model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **how)

    forms = {"base": writing(base), "printed": writing(printed)}
    times: dict[str, list[float]] = {form: [] for form in forms}
    for number in range(6):
        for form, work in forms.items():
            times[form].append(waited(work) if number else 0.0)
    ratios = [own / plain for own, plain in zip(times["printed"][1:], times["base"][1:], strict=True)]
    print(f"crawd_cost {name} writing with cache, printed: {statistics.median(ratios):.3f}x the base model", flush=True)


def main(model: str = "smollm2") -> None:
    """Both sizes."""
    lm = LM.load(model)
    compare(f"{lm.parameter_count() / 1e6:.0f}M", lm)
    big = larger(lm)
    compare(f"{big.parameter_count() / 1e6:.0f}M", big)


if __name__ == "__main__":
    main(*sys.argv[1:])
