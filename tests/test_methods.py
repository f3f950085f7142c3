"""Methods on tiny models: they train what they say, come back equal from run and export, and do what they are for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import BLOCKS, assert_clean, quiet_run, tiny_folder, tiny_lm
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from evenhand.config import Refusal, build, values
from evenhand.data._rows import Prompt
from evenhand.data.genbiaseval import GenBiasEval
from evenhand.exporting import export, save_method
from evenhand.lm import LM
from evenhand.locators.bmi import BMI
from evenhand.locators.tradeoff import Tradeoff
from evenhand.methods._base import Method
from evenhand.methods.full_finetune import FullFinetune
from evenhand.methods.lftf import LFTF
from evenhand.methods.prompt import PARAPHRASES, PromptMethod
from evenhand.metrics.afgb import AFGB
from evenhand.run import Run

FAMILIES = ("llama", "gpt2", "opt", "qwen2")
TINY = {"epochs": 1, "batch": 8}
METHODS: dict[str, tuple[str, Method]] = {
    "lftf": ("lftf", LFTF(**TINY)),
    "paper": ("lftf", build(LFTF, LFTF.presets["paper"] | TINY, "lftf")),
    "full_finetune": ("full_finetune", FullFinetune(rate=1e-3, **TINY)),
    "prompt": ("prompt", PromptMethod()),
}
BARE = {"keep_words": 0.0, "keep_hints": 0.0, "keep_text": 0.0}
TEXT = "The nurse waited outside the building until the rain had stopped because"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return quiet_run(tmp_path / "run")


def prompts(count: int = 16, axis: str = "gender") -> list[Prompt]:
    return GenBiasEval(axis=axis).take("train", count)  # pyright: ignore[reportReturnType, reportArgumentType]


@torch.no_grad()
def whole_logits(lm: LM) -> Tensor:
    return lm.model(input_ids=torch.tensor(lm.encode([TEXT]))).logits[0]


def log_ratios(lm: LM, rows: list[Prompt]) -> np.ndarray:
    """How far the most and the least likely word of each prompt are apart, one plain call at a time."""
    words = lm.word_ids(rows[0].words, rows[0].text)
    with torch.no_grad():
        z = [lm.model(input_ids=torch.tensor(lm.encode([row.text]))).logits[0, -1, words] for row in rows]
    return torch.stack([row.max() - row.min() for row in z]).numpy()


def write_results(folder: Path) -> None:
    """What a finished debias run holds, with numbers to be found again."""
    score = {"headline": "gap", "ideal": 0.0, "data": {"name": "genbiaseval", "checksum": "0"}}
    results = {
        "before": {"afgb": score | {"value": 0.4321}},
        "after": {"afgb": score | {"value": 0.0123}},
        "verdicts": {"afgb": {"delta": -0.4198, "low": -0.5, "high": -0.3, "p": 0.001, "verdict": "improved"}},
        "train": {"seconds": 1.0, "trainable": 9876, "total": 54321},
    }
    (folder / "results.json").write_text(json.dumps(results))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", METHODS)
def test_fit_save_load_export(name: str, family: str, run: Run, tmp_path: Path) -> None:
    base = tiny_folder(tmp_path / "base", family)
    key, method = METHODS[name]
    lm = LM.load(str(base), device="cpu")
    AFGB().score(lm, prompts(4), run)  # measured before, as `debias` does: nothing of that may be in training's way
    before = {key: parameter.detach().clone() for key, parameter in lm.model.named_parameters()}
    state = method.fit(lm, prompts(), run)

    changed = {key for key, parameter in lm.model.named_parameters() if not torch.equal(parameter, before[key])}
    expected = {"prompt": set(), "full_finetune": set(before)}.get(name)
    assert set(lm.trained) == (set(lm.block_parameters(state["block"])) if expected is None else expected)
    assert changed <= set(lm.trained)
    assert bool(changed) == (name != "prompt")
    assert_clean(lm)
    assert not lm.model.training
    train = run.read("train.json")
    assert train["trainable"] == sum(before[key].numel() for key in lm.trained)
    assert train["total"] == lm.parameter_count()
    if name != "prompt":
        assert not any(parameter.requires_grad for parameter in lm.model.parameters())
        assert len(run.read("curve.parquet")) == 2

    save_method(run, lm, str(base), key, values(method), state)
    again = LM.load(str(run.folder), device="cpu")
    assert again.trained == lm.trained
    assert again.prefix == lm.prefix
    torch.testing.assert_close(whole_logits(again), whole_logits(lm), atol=1e-6, rtol=0)
    assert (whole_logits(again)[-1] - whole_logits(LM.load(str(base), device="cpu"))[-1]).abs().max() > 1e-4
    check_export(run.folder, tmp_path / "exported", lm)


def check_export(folder: Path, target: Path, lm: LM) -> None:
    """Only a finished run is exported, only if it has weights, and then transformers alone reads it."""
    with pytest.raises(Refusal, match="not a finished debias run"):
        export(folder, target, device="cpu")
    write_results(folder)
    if lm.prefix:
        with pytest.raises(Refusal, match="no model to export"):
            export(folder, target, device="cpu")
        assert not target.exists()
        return
    assert export(folder, target, device="cpu") < 1e-6
    model, tokenizer = AutoModelForCausalLM.from_pretrained(target).eval(), AutoTokenizer.from_pretrained(target)
    with torch.no_grad():
        found = model(**tokenizer(TEXT, return_tensors="pt", return_token_type_ids=False)).logits[0]
    torch.testing.assert_close(found, whole_logits(lm), atol=1e-6, rtol=0)
    card = (target / "README.md").read_text()
    for number in ("0.4321", "0.0123", "-0.4198 [-0.5, -0.3]", "improved", "9,876 of 54,321"):
        assert number in card
    with pytest.raises(Refusal, match="--overwrite"):
        export(folder, target, device="cpu")
    assert export(folder, target, overwrite=True, device="cpu") < 1e-6
    assert not target.with_name("exported.part").exists()


def test_a_run_of_a_run_keeps_both_changes(tmp_path: Path) -> None:
    """A debiased model may be debiased again: the second run's base is the first run."""
    where, blocks = str(tiny_folder(tmp_path / "base", "llama")), (0, 2)
    for number in blocks:
        run = quiet_run(tmp_path / str(number))
        lm = LM.load(where, device="cpu")
        method = LFTF(block=number, **TINY, **BARE)
        save_method(run, lm, where, "lftf", values(method), method.fit(lm, prompts(), run))
        where = str(run.folder)
    torch.testing.assert_close(whole_logits(LM.load(where, device="cpu")), whole_logits(lm), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("seed", "paraphrase", "text"), [(0, None, ""), (4, None, ""), (1, 2, ""), (1, 0, "Mine. ")])
def test_the_prompt_is_the_seeds_or_the_users(seed: int, paraphrase: Any, text: str, tmp_path: Path) -> None:
    lm = tiny_lm("llama")
    state = PromptMethod(paraphrase=paraphrase, text=text).fit(lm, [], quiet_run(tmp_path, seed))
    number = seed % 3 if paraphrase is None else paraphrase
    assert lm.prefix == state["prefix"] == (text or PARAPHRASES[number])


def outspoken_lm() -> LM:
    """A model whose head can give nearly everything to one word."""
    lm = tiny_lm("llama")
    with torch.no_grad():
        lm.head.weight.mul_(3)
    return lm


@pytest.mark.parametrize(("weights", "winner"), [((0.0, 1.0), "she"), ((1.0, 0.0), "he")])
def test_one_word_alone_takes_everything(weights: tuple[float, ...], winner: str, run: Run) -> None:
    """The paper's ablation: trained towards one word, the model says it everywhere and AFGB is at its worst."""
    lm, rows = outspoken_lm(), prompts(24)
    assert AFGB().score(lm, rows, run)["gap"].mean() < 0.3
    method = LFTF(loss="cross_entropy", weights=weights, block=1, rate=1e-2, epochs=18, batch=8, **BARE)
    method.fit(lm, rows, run)
    after = AFGB().score(lm, rows, run)
    assert after[f"p_{winner}"].min() > 0.8
    assert AFGB().summarise(after).value > 0.9


def test_cross_entropy_brings_both_words_to_half(run: Run) -> None:
    lm, rows = outspoken_lm(), prompts(24)
    LFTF(loss="cross_entropy", block=1, rate=1e-2, epochs=25, batch=8, **BARE).fit(lm, rows, run)
    after = AFGB().score(lm, rows, run)
    assert after["mass"].mean() > 0.8
    assert np.abs(after[["p_he", "p_she"]] - 0.5).mean().max() < 0.15


@pytest.mark.parametrize("axis", ["gender", "race"])
def test_balance_evens_the_words(axis: str, run: Run) -> None:
    """With the default weights of what must stay, on two words and on three."""
    lm, rows = tiny_lm("llama"), prompts(24, axis)
    before = log_ratios(lm, rows)
    LFTF(rate=2e-3, epochs=12, batch=8).fit(lm, rows, run)
    assert log_ratios(lm, rows).mean() < before.mean() / 2
    curve = run.read("curve.parquet")
    assert {"balance", "words", "hints", "text"} <= set(curve.columns)
    np.testing.assert_allclose(curve["loss"], curve[["balance", "words", "hints", "text"]].sum(axis=1), atol=1e-3)


def test_what_must_stay_stays_nearer(tmp_path: Path) -> None:
    """The same training with and without the terms that keep ordinary text."""
    moved = []
    for keep in (0.0, 10.0):
        lm = tiny_lm("llama")
        before = whole_logits(lm).log_softmax(-1)
        method = LFTF(block=1, rate=2e-3, epochs=6, batch=8, keep_words=keep, keep_hints=keep, keep_text=keep)
        method.fit(lm, prompts(24), quiet_run(tmp_path / str(keep)))
        after = whole_logits(lm).log_softmax(-1)
        moved.append(float((before.exp() * (before - after)).sum(-1).mean()))
    assert moved[1] < moved[0] / 2


@pytest.mark.parametrize("part", ["attention", "mlp"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_part_of_a_block(family: str, part: Any, run: Run) -> None:
    lm = tiny_lm(family)
    before = {name: parameter.detach().clone() for name, parameter in lm.model.named_parameters()}
    LFTF(block=2, part=part, **TINY, **BARE).fit(lm, prompts(), run)
    changed = {name for name, parameter in lm.model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == set(lm.block_parameters(2, part))
    attention = {"llama": ".self_attn.", "gpt2": ".attn.", "opt": ".self_attn."}[family]
    assert all((attention in name) == (part == "attention") for name in changed)


@pytest.mark.parametrize("locator", ["bmi", "tradeoff"])
def test_the_located_block_is_the_locators_best(locator: Any, run: Run) -> None:
    lm, rows = tiny_lm("qwen2"), prompts()
    best = {"bmi": BMI(), "tradeoff": Tradeoff()}[locator].rank(lm, rows, run).best
    state = LFTF(locator=locator, **TINY, **BARE).fit(lm, rows, run)
    ranking = run.read("ranking.parquet")
    assert state["block"] == best == int(ranking.loc[ranking["chosen"], "block"].item())
    assert {"bmi_before_norm", "bmi_after_norm"} <= set(ranking.columns)


def test_an_interrupted_run_keeps_its_block(run: Run) -> None:
    """Training has changed the model by then, so it must not be located again."""
    for block in range(BLOCKS):
        table = pd.DataFrame({"block": range(BLOCKS), "score": 1.0, "chosen": [n == block for n in range(BLOCKS)]})
        run.save("ranking.parquet", table)
        assert LFTF(**TINY, **BARE).fit(tiny_lm("llama"), prompts(8), run) == {"block": block}


@pytest.mark.parametrize("method", [LFTF(), FullFinetune()])
@pytest.mark.parametrize("family", ["bert", "t5"])
def test_other_kinds_are_refused(method: Method, family: str, run: Run) -> None:
    with pytest.raises(Refusal, match="causal"):
        method.fit(tiny_lm(family), prompts(2), run)


def test_refusals(run: Run) -> None:
    with pytest.raises(Refusal, match="there is no block 3"):
        LFTF(block=3).fit(tiny_lm("llama"), prompts(2), run)
    rows = [Prompt(id="0", text=TEXT, words=("he", "she"))]
    with pytest.raises(Refusal, match="axis"):
        LFTF(block=1, **TINY).fit(tiny_lm("llama"), rows, run)


@pytest.mark.parametrize("method", [LFTF(block=1, **TINY), FullFinetune(**TINY)])
def test_training_in_float16_is_refused(method: Method, run: Run) -> None:
    """Adam's smallest numbers are zero in float16: one step makes every weight NaN."""
    lm = tiny_lm("llama")
    lm.model.half()
    with pytest.raises(Refusal, match="float16"):
        method.fit(lm, prompts(8), run)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
def test_training_in_bfloat16(tmp_path: Path, run: Run) -> None:
    base = tiny_folder(tmp_path / "base", "llama")
    lm, method = LM.load(str(base), dtype="bfloat16", device="cpu"), LFTF(block=2, **TINY)
    save_method(run, lm, str(base), "lftf", values(method), method.fit(lm, prompts(8), run))
    assert np.isfinite(run.read("curve.parquet")["loss"]).all()
    again = LM.load(str(run.folder), dtype="bfloat16", device="cpu")
    torch.testing.assert_close(whole_logits(again), whole_logits(lm), atol=0, rtol=0)


@pytest.mark.parametrize("weights", [(1.0,), (0.0, 1.0, 1.0)])
def test_one_weight_for_every_word(weights: tuple[float, ...], run: Run) -> None:
    """Fewer or more weights than words say nothing about what is meant."""
    with pytest.raises(Refusal, match="weights"):
        LFTF(loss="cross_entropy", weights=weights, block=1, **TINY, **BARE).fit(tiny_lm("llama"), prompts(2), run)
