"""Locators against slow loops: BMI by transformers' own hidden states, Tradeoff by plain gradients and differences."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import BLOCKS, CAUSAL, assert_clean, quiet_run, tiny_lm
from torch import Tensor

from evenhand.config import Refusal
from evenhand.data._rows import Prompt
from evenhand.data.genbiaseval import GenBiasEval
from evenhand.data.plain_text import PlainText
from evenhand.lm import LM
from evenhand.locators import tradeoff
from evenhand.locators._base import Ranking
from evenhand.locators.bmi import BMI, variance_over_draws
from evenhand.locators.tradeoff import Tradeoff
from evenhand.losses import balance
from evenhand.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return quiet_run(tmp_path)


def prompts(count: int, axis: str = "gender") -> list[Prompt]:
    return GenBiasEval(axis=axis).take("train", count)  # pyright: ignore[reportReturnType, reportArgumentType]


def turned(one: Tensor, other: Tensor) -> float:
    """1 - cos, token by token."""
    total = 0.0
    for a, b in zip(one.double(), other.double(), strict=True):
        total += 1 - float(a @ b) / float(a.norm() * b.norm())
    return total


@torch.no_grad()
def slow_bmi(lm: LM, rows: list[Prompt]) -> tuple[np.ndarray, np.ndarray]:
    """One prompt at a time: the last block's output before the final norm, and as `output_hidden_states` gives it."""
    before, after = np.zeros(BLOCKS), np.zeros(BLOCKS)
    for row in rows:
        written = []
        hook = lm.blocks[-1].register_forward_hook(
            lambda _, __, output, into=written: into.append(output[0] if isinstance(output, tuple) else output)
        )
        ids = torch.tensor(lm.encode([row.text]))
        states = [h[0] for h in lm.model(input_ids=ids, output_hidden_states=True).hidden_states]
        hook.remove()
        for block in range(BLOCKS):
            after[block] += turned(states[block], states[block + 1])
        states[-1] = written[0][0]
        for block in range(BLOCKS):
            before[block] += turned(states[block], states[block + 1])
    return before, after


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "bloom"])
def test_bmi_equals_a_loop(family: str, run: Run) -> None:
    rows = prompts(12)
    assert len({len(ids) for ids in tiny_lm(family).encode([row.text for row in rows])}) > 3
    lm = tiny_lm(family)
    tables = {final: BMI(final_norm=final).rank(lm, rows, run).table for final in (True, False)}
    assert_clean(lm)
    before, after = slow_bmi(lm, rows)
    assert abs(before[-1] - after[-1]) > 0.1, "the final norm turns the last block's output"
    for final, table in tables.items():
        assert table["block"].tolist() == list(range(BLOCKS))
        np.testing.assert_allclose(table["bmi_before_norm"], before, rtol=1e-4)
        np.testing.assert_allclose(table["bmi_after_norm"], after, rtol=1e-4)
        np.testing.assert_allclose(table["score"], after if final else before, rtol=1e-4)


def test_bmi_reductions_only_change_the_scale(run: Run) -> None:
    lm, rows = tiny_lm("llama"), prompts(12)
    tables = {how: BMI(reduction=how).rank(lm, rows, run) for how in ("sum", "per_prompt", "per_token")}
    tokens = sum(len(ids) for ids in lm.encode([row.text for row in rows]))
    for how, scale in (("per_prompt", 12), ("per_token", tokens)):
        np.testing.assert_allclose(tables[how].table["score"] * scale, tables["sum"].table["score"])
        assert tables[how].best == tables["sum"].best
        assert tables[how].table["score"].argsort().tolist() == tables["sum"].table["score"].argsort().tolist()


def test_variance_over_draws() -> None:
    values = np.random.default_rng(0).random((250, 4))
    found = variance_over_draws(values)
    assert found.shape == (4,)
    assert (found > 0).all()
    # The mean of 100 of 250 varies with the population's variance, less what drawing without replacement takes away.
    np.testing.assert_allclose(found, values.var(0) / 100 * (1 - 100 / 250), rtol=2)
    assert (variance_over_draws(np.ones((250, 4))) == 0).all()
    assert variance_over_draws(values[:7]) == pytest.approx(np.zeros(4), abs=1e-12)


def test_the_best_block_is_marked() -> None:
    ranking = Ranking(pd.DataFrame({"block": [0, 1, 2], "score": [0.5, 2.0, 1.0]}))
    assert ranking.best == 1
    assert ranking.marked()["chosen"].tolist() == [False, True, False]


@pytest.mark.parametrize(("family", "trainable"), [("llama", True), *((family, False) for family in CAUSAL)])
def test_tradeoff_leaves_the_model_alone(family: str, trainable: bool, run: Run) -> None:
    lm = tiny_lm(family)
    lm.model.requires_grad_(trainable)
    before = {name: parameter.detach().clone() for name, parameter in lm.model.named_parameters()}
    table = Tradeoff(prompts=6, sentences=3).rank(lm, prompts(8), run).table
    assert np.isfinite(table.to_numpy(float)).all()
    assert (table[["score", "gain", "text_harm"]] > 0).all().all()
    np.testing.assert_allclose(table["score"], table["gain"] ** 2 / table["text_harm"], rtol=1e-5)
    for name, parameter in lm.model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None
        assert parameter.requires_grad == trainable, name
    assert_clean(lm)


def test_tradeoff_leaves_the_model_alone_when_it_fails(run: Run) -> None:
    lm = tiny_lm("llama")
    lm.model.requires_grad_(False)
    wrong = [Prompt(id="0", text="The nurse smiled because", words=("he", "anthropologist"))]
    with pytest.raises(Refusal, match="anthropologist"):
        Tradeoff().rank(lm, wrong, run)
    assert not any(parameter.requires_grad for parameter in lm.model.parameters())


@pytest.mark.parametrize(("family", "axis"), [("llama", "gender"), ("gpt2", "race")])
def test_the_gain_is_the_gradient_added_up(family: str, axis: str, run: Run) -> None:
    lm, rows = tiny_lm(family), prompts(9, axis)
    table = Tradeoff(prompts=7, sentences=1).rank(lm, rows, run).table
    words = lm.word_ids(rows[0].words, rows[0].text)
    lm.model.requires_grad_(True)
    for row in rows[:7]:
        z = lm.model(input_ids=torch.tensor(lm.encode([row.text]))).logits[:, -1]
        (balance(z, words) / 7).backward()
    gain = [sum(float(p.grad.abs().sum()) for p in block.parameters() if p.grad is not None) for block in lm.blocks]
    np.testing.assert_allclose(table["gain"], gain, rtol=1e-3)


def test_the_harm_is_what_a_small_step_does_to_drawn_text(run: Run) -> None:
    """By differences: the model itself is moved a little in each block and the drawn tokens are scored again."""
    # This family computes in double precision throughout; others norm in single precision, too coarse for differences.
    lm, rows, sentences = tiny_lm("gpt2"), prompts(5), 3
    table = Tradeoff(prompts=5, sentences=sentences).rank(lm, rows, run).table
    lm.model.requires_grad_(True)
    gradients = tradeoff.bias_gradients(lm, rows, list(lm.model.parameters()))
    signs = {id(p): g.sign().double() for p, g in zip(lm.model.parameters(), gradients, strict=True)}
    lm.model.requires_grad_(False)
    draw = torch.Generator().manual_seed(run.seed)
    texts = [torch.tensor([ids[:20]]) for ids in lm.encode([row.text for row in PlainText().take("train", sentences)])]
    drawn = [torch.multinomial(lm.model(ids).logits[0].softmax(-1), 1, generator=draw) for ids in texts]
    steps = [[(p, signs[id(p)]) for p in block.parameters()] for block in lm.blocks]
    lm.model.double()

    def likelihoods() -> np.ndarray:
        scored = (
            lm.model(ids).logits[0].log_softmax(-1).gather(-1, own) for ids, own in zip(texts, drawn, strict=True)
        )
        return np.array([float(values.sum()) for values in scored])

    for block, step in enumerate(steps):
        ends = []
        for size in (1e-6, -2e-6, 1e-6):
            for parameter, sign in step:
                parameter.data += size * sign
            ends.append(likelihoods())
        slope = (ends[0] - ends[1]) / 2e-6
        assert table["text_harm"][block] == pytest.approx((slope**2).mean(), rel=1e-3)


def test_tradeoff_can_be_repeated(tmp_path: Path) -> None:
    lm, rows, method = tiny_lm("llama"), prompts(6), Tradeoff(prompts=6, sentences=3)
    first, second, other = (
        method.rank(lm, rows, quiet_run(tmp_path / str(n), seed)).table for n, seed in enumerate((0, 0, 1))
    )
    pd.testing.assert_frame_equal(first, second)
    assert first["gain"].tolist() == other["gain"].tolist()
    assert first["text_harm"].tolist() != other["text_harm"].tolist()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tradeoff_adds_up_in_single_precision(dtype: torch.dtype, run: Run) -> None:
    """The harm is a square of large sums: beyond float16, and coarse in bfloat16."""
    rows, lm = prompts(8), tiny_lm("llama")
    exact = Tradeoff(prompts=8, sentences=4).rank(lm, rows, run).table
    lm.model.to(dtype)
    table = Tradeoff(prompts=8, sentences=4).rank(lm, rows, run).table
    assert np.isfinite(table["score"]).all()
    assert (table["text_harm"] > 0).all()
    np.testing.assert_allclose(table["gain"], exact["gain"], rtol=0.05)
    assert table["gain"].tolist() != table["gain"].astype(int).tolist(), "not cut to half precision"


@pytest.mark.parametrize("locator", [BMI(), Tradeoff()])
def test_other_kinds_are_refused(locator: BMI | Tradeoff, run: Run) -> None:
    with pytest.raises(Refusal, match="causal"):
        locator.rank(tiny_lm("bert"), prompts(2), run)
