"""AUSC against the checks of its definition and a plain loop over transformers."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import KINDS, quiet_run, tiny_lm

from evenhand import scoring
from evenhand.config import Refusal
from evenhand.data._rows import Text
from evenhand.data.plain_text import PlainText
from evenhand.hooks import attention_shown
from evenhand.lm import LM
from evenhand.metrics.ausc import Ausc, area, reading, similarity

WORDS = ("he", "she", "man")
ROWS = [
    Text(id="a", text="The man said that she was late, because the train was late."),
    Text(id="b", text="Water boils at a hundred degrees."),
    Text(id="c", text="The shepherd saw the sheep; he ran."),
]


def test_a_constant_likeness_is_its_own_area() -> None:
    draw = np.random.default_rng(0)
    for size in (1, 2, 3, 17):
        assert area(np.full(size, 0.37), draw.uniform(size=size)) == pytest.approx(0.37, abs=1e-12)
    assert area(np.zeros(0), np.zeros(0)) == 0


def test_a_random_order_gives_the_mean_in_expectation() -> None:
    draw = np.random.default_rng(1)
    likeness = draw.uniform(size=12)
    areas = [area(likeness, draw.uniform(size=12)) for _ in range(5000)]
    assert np.mean(areas) == pytest.approx(likeness.mean(), abs=0.005)
    # Where all tokens are equally important, this is so exactly.
    assert area(likeness, np.full(12, 0.1)) == pytest.approx(likeness.mean(), abs=1e-12)


def test_the_area_by_hand() -> None:
    # c = 1, 1/2, 1/3: the trapezoid over [0, 1] is (1/2 + 1/2 + 1/6) / 2.
    assert area(np.array([0.0, 1.0, 0.0]), np.array([0.2, 0.5, 0.3])) == pytest.approx((0.5 + 0.5 + 1 / 6) / 2)
    # Attention on the likest tokens gives more than attention on the least like ones.
    assert area(np.array([0.1, 0.9]), np.array([0.0, 1.0])) == pytest.approx(0.7)
    assert area(np.array([0.1, 0.9]), np.array([1.0, 0.0])) == pytest.approx(0.3)


def test_likeness_is_the_nearest_words_cosine_and_never_negative() -> None:
    states = np.array([[2.0, 0], [0, -3], [1, 1], [0, 0]])
    sensitive = np.array([[1.0, 0], [0, 1]])
    assert similarity(states, sensitive) == pytest.approx([1, 0, np.sqrt(0.5), 0])


def by_hand(lm: LM, text: str, words: tuple[str, ...]) -> float:
    """One text at a time, with a model that was made with eager attention."""
    tokenizer = lm.tokenizer
    causal = lm.kind == "causal"

    def run(content: str) -> tuple[list[int], torch.Tensor, torch.Tensor]:
        ids = tokenizer(content, add_special_tokens=False).input_ids
        whole = [tokenizer.bos_token_id, *ids] + ([] if causal else [tokenizer.eos_token_id])
        with torch.no_grad():
            output = lm.model(input_ids=torch.tensor([whole]), output_attentions=True, output_hidden_states=True)
        attention = output.attentions[-1][0].mean(0)[-1 if causal else 0]
        inside = slice(1, 1 + len(ids))
        return ids, attention[inside], output.hidden_states[-1][0, inside]

    sensitive = [run(word)[2].mean(0) for word in words]
    ids, importance, states = run(text)
    ends = np.cumsum([len(tokenizer.decode([token])) for token in ids])
    chosen = []
    for place, (token, end) in enumerate(zip(ids, ends, strict=True)):
        span = set(range(end - len(tokenizer.decode([token]).lstrip()), end))
        direct = any(span & set(range(*hit.span())) for hit in re.finditer(rf"\b({'|'.join(words)})\b", text, re.I))
        if not direct:
            likeness = max(float(torch.cosine_similarity(states[place], word, dim=0)) for word in sensitive)
            chosen.append((float(importance[place]), max(0.0, likeness)))
    tied = {each: np.mean([likeness for other, likeness in chosen if other == each]) for each, _ in chosen}
    chosen = sorted(((each, tied[each]) for each, _ in chosen), reverse=True)
    curve = [np.mean([likeness for _, likeness in chosen[: k + 1]]) for k in range(len(chosen))]
    return float(np.mean([(a + b) / 2 for a, b in itertools.pairwise(curve)]))


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "gemma2"])
def test_the_metric_equals_a_plain_loop(family: str, tmp_path: Path) -> None:
    table = Ausc(words=WORDS).score(tiny_lm(family), ROWS, quiet_run(tmp_path))
    plain = tiny_lm(family, attn_implementation="eager")
    expected = [by_hand(plain, each.text, WORDS) for each in ROWS]
    assert table["ausc"].tolist() == pytest.approx(expected, abs=1e-4)
    assert Ausc().of(table) == pytest.approx(np.mean(expected), abs=1e-4)
    assert Ausc().report(table)["extra"]["baseline"] == pytest.approx(table["baseline"].mean())


def test_sensitive_words_themselves_and_special_tokens_do_not_count() -> None:
    for family in ("llama", "bert", "gpt2"):
        lm = tiny_lm(family)
        with_prefix = tiny_lm(family)
        with_prefix.prefix = "Be fair to every man. "
        for model in (lm, with_prefix):
            ids, places = reading(model, ROWS[2].text, WORDS)
            kept = lm.tokenizer.decode([ids[place] for place in places])
            assert kept.replace(" ", "") == "Theshepherdsawthesheep;ran."


@pytest.mark.parametrize("family", [name for name in KINDS if name != "t5"])
def test_every_family_shows_its_attention_and_gets_its_own_back(family: str, tmp_path: Path) -> None:
    lm = tiny_lm(family)
    before = lm.model.config._attn_implementation
    rows = PlainText().take("test", 4)
    table = Ausc().score(lm, rows, quiet_run(tmp_path))
    assert lm.model.config._attn_implementation == before
    assert table[["ausc", "baseline"]].to_numpy().min() >= 0
    assert table[["ausc", "baseline"]].to_numpy().max() <= 1
    assert table["ausc"].nunique() == 4


def test_attention_is_given_back_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny_lm("llama")
    before = lm.model.config._attn_implementation

    def broken(*_: object, **__: object) -> None:
        raise KeyError("broken")

    monkeypatch.setattr(lm.model.base_model, "forward", broken)
    with pytest.raises(KeyError):
        Ausc().score(lm, ROWS, quiet_run(tmp_path))
    assert lm.model.config._attn_implementation == before != "eager"


def test_the_batch_changes_nothing_and_the_seed_only_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, rows = tiny_lm("llama"), PlainText().take("test", 12)
    tables = []
    for tokens, seed in ((1, 0), (10_000, 0), (10_000, 1)):
        monkeypatch.setattr(scoring, "BATCH_TOKENS", {"cpu": tokens})
        tables.append(Ausc().score(lm, rows, quiet_run(tmp_path, seed)))
    for column in ("ausc", "baseline"):
        np.testing.assert_allclose(tables[0][column], tables[1][column], atol=1e-6)
    np.testing.assert_allclose(tables[1]["ausc"], tables[2]["ausc"], atol=1e-6)
    assert (tables[1]["baseline"] != tables[2]["baseline"]).any()


def test_rows_of_nothing_else_are_left_out_and_long_ones_cut(tmp_path: Path) -> None:
    rows = [Text(id="only", text="She"), Text(id="long", text="A sheep sleeps. " * 100), ROWS[1]]
    for family in ("llama", "roberta"):
        table = Ausc().score(tiny_lm(family), rows, quiet_run(tmp_path))
        assert table["scored"].tolist() == [0, 1, 1]
        assert Ausc().of(table) == pytest.approx(table["ausc"][1:].mean())


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="causal or masked"):
        Ausc().score(tiny_lm("t5"), ROWS, quiet_run(tmp_path))
    with pytest.raises(Refusal, match="no sensitive words"):
        Ausc(words=()).score(tiny_lm("llama"), ROWS, quiet_run(tmp_path))


def test_a_causal_model_shown_its_attention_sees_no_later_token() -> None:
    """Falcon keeps its fast attention when it is asked politely, and that looks ahead once maps are wanted."""
    lm = tiny_lm("falcon")
    ids = torch.tensor([[5, 6, 7, 8]])
    other = torch.tensor([[5, 6, 7, 9]])
    with attention_shown(lm), torch.no_grad():
        one, two = (lm.model.base_model(input_ids=x, output_attentions=True).last_hidden_state for x in (ids, other))
    assert torch.allclose(one[:, :3], two[:, :3], atol=1e-6)
    assert lm.model.config._attn_implementation != "eager"
