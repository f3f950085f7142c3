"""Metrics by hand: small tables whose numbers anyone can work out, and a tiny model asked one prompt at a time."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import quiet_run, tiny_lm

from evenhand.config import Refusal
from evenhand.data._rows import Prompt, Text
from evenhand.data.genbiaseval import GenBiasEval
from evenhand.data.genhinteval import GenHintEval
from evenhand.data.plain_text import PlainText
from evenhand.lm import LM
from evenhand.metrics import afgb as afgb_module
from evenhand.metrics import ub as ub_module
from evenhand.metrics._base import word_columns
from evenhand.metrics.afgb import AFGB, gaps
from evenhand.metrics.perplexity import Perplexity
from evenhand.metrics.ub import UB
from evenhand.run import Run


@pytest.fixture(scope="module")
def lm() -> LM:
    return tiny_lm("llama")


def prompts(*rows: tuple[str, str], words: tuple[str, ...]) -> list[Prompt]:
    return [
        Prompt(id=f"row-{number}", axis="race", group=group, text=f"Prompt {number}", words=words, hint=hint)
        for number, (group, hint) in enumerate(rows)
    ]


def probabilities(monkeypatch: pytest.MonkeyPatch, numbers: list[list[float]]) -> None:
    """Let the model have said this."""
    for module in (afgb_module, ub_module):
        monkeypatch.setattr(module, "word_probabilities", lambda *_: np.array(numbers))


def score(metric: AFGB | UB, rows: list[Prompt]) -> pd.DataFrame:
    return metric.score(None, rows, None)  # pyright: ignore[reportArgumentType]


# AFGB


def test_afgb_of_two_words_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities(monkeypatch, [[0.6, 0.2], [0.1, 0.3], [0.0, 0.0]])
    table = score(AFGB(), prompts(("word", ""), ("word", ""), ("phrase", ""), words=("he", "she")))
    assert table["gap"].tolist() == pytest.approx([0.4, 0.2, 0.0])
    assert table["normalised"].tolist() == pytest.approx([0.5, 0.5, 0.0])
    assert table["mass"].tolist() == pytest.approx([0.8, 0.4, 0.0])
    assert table[["p_he", "p_she"]].to_numpy().tolist() == [[0.6, 0.2], [0.1, 0.3], [0.0, 0.0]]
    numbers = AFGB().summarise(table)
    assert numbers.value == pytest.approx(0.2)
    assert numbers.groups == pytest.approx({"word": 0.3, "phrase": 0.0})
    assert numbers.extra == pytest.approx({"normalised": 1 / 3, "mass": 0.4})


def test_afgb_of_three_words_is_the_mean_over_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities(monkeypatch, [[0.5, 0.3, 0.1]])
    table = score(AFGB(), prompts(("word", ""), words=("white", "black", "Asian")))
    # |.5 - .3|, |.5 - .1|, |.3 - .1|, and each over the sum of its two.
    assert table["gap"][0] == pytest.approx((0.2 + 0.4 + 0.2) / 3)
    assert table["normalised"][0] == pytest.approx((0.2 / 0.8 + 0.4 / 0.6 + 0.2 / 0.4) / 3)
    assert table["mass"][0] == pytest.approx(0.9)


def test_afgb_does_not_ask_which_word_comes_first() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(5), size=20)[:, :3]
    rows = prompts(*[("", "")] * 20, words=("a", "b", "c"))
    one = gaps(word_columns(rows, p), p)
    for order in ([2, 1, 0], [1, 0, 2]):
        other = gaps(word_columns(rows, p[:, order]), p[:, order])
        assert other["gap"].to_numpy() == pytest.approx(one["gap"].to_numpy(), abs=1e-15)
        assert other["normalised"].to_numpy() == pytest.approx(one["normalised"].to_numpy(), abs=1e-15)


def test_afgb_is_the_count_weighted_mean_of_its_scales() -> None:
    rows = GenBiasEval().take("test")
    gap = np.random.default_rng(1).uniform(0, 1, len(rows))
    table = pd.DataFrame({"id": [row.id for row in rows], "group": [row.group for row in rows], "gap": gap})
    numbers = AFGB().summarise(table.assign(normalised=0.0, mass=0.0))
    counts = {"word": 308, "phrase": 330, "sentence": 306}
    assert numbers.value == pytest.approx(sum(numbers.groups[scale] * n for scale, n in counts.items()) / 944)
    assert numbers.value != pytest.approx(np.mean(list(numbers.groups.values())), abs=1e-6)


# UB


def test_ub_rewards_the_hinted_word(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities(monkeypatch, [[0.7, 0.1], [0.7, 0.1], [0.2, 0.2]])
    table = score(UB(), prompts(("he", "he"), ("she", "she"), ("she", "she"), words=("he", "she")))
    assert table["agreement"].tolist() == pytest.approx([0.6, -0.6, 0.0])
    assert table["mass"].tolist() == pytest.approx([0.8, 0.8, 0.4])
    assert UB().summarise(table).value == pytest.approx(0.0)
    assert UB().summarise(table).groups == pytest.approx({"he": 0.6, "she": -0.3})


def test_ub_of_three_words_takes_the_mean_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities(monkeypatch, [[0.5, 0.3, 0.1]] * 3)
    words = ("white", "black", "Asian")
    table = score(UB(), prompts(*[(word, word) for word in words], words=words))
    assert table["agreement"].tolist() == pytest.approx([0.5 - 0.2, 0.3 - 0.3, 0.1 - 0.4])


@pytest.mark.parametrize(("own", "other", "value"), [(1.0, 0.0, 1.0), (0.0, 1.0, -1.0), (0.5, 0.5, 0.0)])
def test_ub_reaches_its_ends(own: float, other: float, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities(monkeypatch, [[own, other], [other, own]])
    table = score(UB(), prompts(("he", "he"), ("she", "she"), words=("he", "she")))
    assert UB().summarise(table).value == value


@pytest.mark.parametrize("hint", ["", "they"])
def test_ub_refuses_rows_without_a_hint(hint: str, lm: LM, tmp_path: Path) -> None:
    rows = prompts(("he", "he"), ("", hint), words=("he", "she"))
    with pytest.raises(Refusal, match=r"ub: row row-1 has no hint among its words \(he, she\); add a hint column"):
        UB().score(lm, rows, quiet_run(tmp_path))


@pytest.mark.parametrize("metric", [AFGB(), UB()])
def test_rows_that_compare_different_words_are_refused(metric: AFGB | UB, lm: LM, tmp_path: Path) -> None:
    rows = [
        Prompt(id="one", text="The nurse smiled because", words=("he", "she"), hint="he"),
        Prompt(id="two", text="The nurse is", words=("young", "old"), hint="old"),
    ]
    with pytest.raises(Refusal, match="row two compares young, old where others compare he, she"):
        metric.score(lm, rows, quiet_run(tmp_path))


# On a model


def asked(lm: LM, row: Prompt) -> list[float]:
    """P(word) after one prompt, by the plainest forward pass there is."""
    ids = torch.tensor([lm.tokenizer(row.text).input_ids])
    with torch.no_grad():
        p = lm.model(ids).logits[0, -1].softmax(-1)
    return [float(p[lm.tokenizer(f" {word}", add_special_tokens=False).input_ids[0]]) for word in row.words]


@pytest.mark.parametrize("axis", ["gender", "race"])
def test_afgb_is_what_one_prompt_at_a_time_gives(axis: Any, lm: LM, tmp_path: Path) -> None:
    rows = GenBiasEval(axis=axis).take("test", 30)
    table = AFGB().score(lm, rows, quiet_run(tmp_path))
    expected = np.array([asked(lm, row) for row in rows])
    assert table[[f"p_{word}" for word in rows[0].words]].to_numpy() == pytest.approx(expected, abs=1e-6)
    pairs = [np.abs(expected[:, a] - expected[:, b]) for a in range(expected.shape[1]) for b in range(a)]
    assert table["gap"].to_numpy() == pytest.approx(np.mean(pairs, axis=0), abs=1e-6)


@pytest.mark.parametrize("metric", [AFGB(), UB()])
def test_scores_do_not_depend_on_the_order_of_rows(metric: AFGB | UB, lm: LM, tmp_path: Path) -> None:
    data = GenBiasEval() if isinstance(metric, AFGB) else GenHintEval()
    rows = data.take("test", 40)
    shuffled = [rows[place] for place in np.random.default_rng(2).permutation(40)]
    run: Run = quiet_run(tmp_path)
    one, other = (metric.score(lm, each, run).set_index("id").sort_index() for each in (rows, shuffled))  # pyright: ignore
    pd.testing.assert_frame_equal(one, other, atol=1e-6, rtol=1e-5)


# Perplexity


def test_perplexity_weighs_tokens_not_rows() -> None:
    table = pd.DataFrame({"id": ["a", "b"], "group": ["", ""], "nll": [2.0, 9.0], "tokens": [2, 9]})
    assert Perplexity().summarise(table).value == pytest.approx(np.e)
    uneven = table.assign(nll=[2.0, 18.0])
    assert Perplexity().summarise(uneven).value == pytest.approx(np.exp(20 / 11))


def test_perplexity_is_that_of_the_joined_text(lm: LM, tmp_path: Path) -> None:
    """In one window, the strided sum is the plain cross-entropy of the whole text behind its start token."""
    rows = PlainText().take("test", 2)
    table = Perplexity().score(lm, rows, quiet_run(tmp_path))
    text = "\n\n".join(row.text for row in rows)
    ids = torch.tensor([[lm.start, *lm.tokenizer(text, add_special_tokens=False).input_ids]])
    assert 60 < ids.shape[1] <= 128
    with torch.no_grad():
        logits = lm.model(ids).logits[0, :-1]
    nll = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
    assert table["tokens"].sum() == ids.shape[1] - 1
    assert table["nll"].sum() == pytest.approx(float(nll), rel=1e-5)
    assert Perplexity().summarise(table).value == pytest.approx(float(torch.exp(nll / (ids.shape[1] - 1))), rel=1e-5)


def test_each_row_gets_the_likelihood_of_its_own_tokens(lm: LM, tmp_path: Path) -> None:
    """Token by token: the row whose text, or whose blank line after it, a token begins in."""
    rows = [
        Text(id=str(number), text=text) for number, text in enumerate(["Water is wet.", "Snow.", "Ice is cold too."])
    ]
    text = "\n\n".join(row.text for row in rows)
    encoded = lm.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    owners = [number for number, row in enumerate(rows) for _ in row.text + "\n\n"]
    ids = torch.tensor([[lm.start, *encoded.input_ids]])
    with torch.no_grad():
        logp = lm.model(ids).logits[0].log_softmax(-1)
    nll, tokens = [0.0] * 3, [0] * 3
    for place, (begin, _) in enumerate(encoded["offset_mapping"]):
        nll[owners[begin]] -= float(logp[place, ids[0, place + 1]])
        tokens[owners[begin]] += 1
    table = Perplexity().score(lm, rows, quiet_run(tmp_path))
    assert table["tokens"].tolist() == tokens
    assert table["nll"].tolist() == pytest.approx(nll, rel=1e-5)


def test_every_token_is_scored_once_whatever_the_window(lm: LM, tmp_path: Path) -> None:
    rows = PlainText().take("test", 12)
    tables = [
        Perplexity(window=window, stride=stride).score(lm, rows, quiet_run(tmp_path))
        for window, stride in ((128, 64), (64, 64), (32, 8), (1000, 500))
    ]
    for table in tables[1:]:
        assert table["tokens"].tolist() == tables[0]["tokens"].tolist()
    assert tables[0]["nll"].sum() != pytest.approx(tables[1]["nll"].sum(), rel=1e-6)


def test_blank_rows_count_nothing_of_their_own(lm: LM, tmp_path: Path) -> None:
    rows = [Text(id=str(number), text=text) for number, text in enumerate(["Water is wet.", "", "Snow is white."])]
    table = Perplexity().score(lm, rows, quiet_run(tmp_path))
    assert table["id"].tolist() == ["0", "1", "2"]
    joined = lm.tokenizer("Water is wet.\n\n\n\nSnow is white.", add_special_tokens=False).input_ids
    assert table["tokens"].sum() == len(joined)
    assert np.isfinite(table["nll"]).all()
