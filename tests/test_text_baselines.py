"""The baselines that fine-tune on texts: their losses against slow loops, what they are for, and coming back equal."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import CAUSAL, assert_clean, quiet_run, tiny_folder, tiny_lm
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy
from transformers import AutoModelForCausalLM

from evenhand.config import Refusal, build, values
from evenhand.data._rows import Text
from evenhand.exporting import export, save_method
from evenhand.hooks import attention_shown
from evenhand.lm import LM
from evenhand.methods import deep_soft_debias
from evenhand.methods._texts import Batch, TextMethod, padded
from evenhand.methods._words import forms, single_tokens
from evenhand.methods.cda import CDA
from evenhand.methods.debias_tuning import DebiasTuning, twin_of
from evenhand.methods.deep_soft_debias import DeepSoftDebias, effect, softened, untie
from evenhand.methods.deep_soft_debias import embedding as input_embedding
from evenhand.methods.ibm import IBM
from evenhand.methods.vanilla import Vanilla
from evenhand.run import Run
from evenhand.swapping import swapped

FAMILIES = ("llama", "gpt2", "opt")
CLOSE = {"atol": 1e-5, "rtol": 1e-4}
TEXTS = [
    "The nurse smiled because he had found the key.",
    "She was late.",
    "The plumber waited outside the building until the rain had stopped because she was early",
    "The teacher called the office and his sister laughed",
]
TINY: dict[str, Any] = {"epochs": 8, "batch": 4, "rate": 1e-2, "dropout": 0.0, "length": 16}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return quiet_run(tmp_path / "run")


def rows(texts: list[str]) -> list[Text]:
    return [Text(id=str(number), axis="gender", text=text) for number, text in enumerate(texts)]


def batch_of(lm: LM, texts: list[str] = TEXTS) -> Batch:
    return padded(lm.encode(texts), lm.device)


@torch.no_grad()
def next_logits(lm: LM, ids: list[int]) -> Tensor:
    """One row alone, from the model itself."""
    return lm.model(input_ids=torch.tensor([ids])).logits[0]


@torch.no_grad()
def plain_loss(lm: LM, texts: list[str]) -> float:
    """The mean cross-entropy of every next token, one row at a time."""
    encoded = lm.encode(texts)
    losses = [cross_entropy(next_logits(lm, ids)[:-1], torch.tensor(ids[1:]), reduction="none") for ids in encoded]
    return float(torch.cat(losses).mean())


# ---- words


def test_the_forms_of_a_word() -> None:
    lm = tiny_lm("llama")
    assert forms(lm, "he") == [
        lm.tokenizer(form, add_special_tokens=False).input_ids for form in (" he", "he", " He", "He")
    ]
    known = single_tokens(lm, ["he", "himself"])
    assert known["himself"] == []
    assert known["he"] == [tokens[0] for tokens in forms(lm, "he") if len(tokens) == 1]
    assert lm.word_ids(["he"], "because")[0] in known["he"]


# ---- debias_tuning


@pytest.mark.parametrize("family", [*FAMILIES, "gemma2", "falcon"])
def test_the_terms_of_debias_tuning_are_those_of_a_plain_loop(family: str) -> None:
    lm = tiny_lm(family)
    method = DebiasTuning(words=("he", "she", "her", "his"), weight=0.7, gas=2.0, gld=3.0, add=4.0)
    sides = [
        {token for word in words for token in single_tokens(lm, [word])[word]}
        for words in (("he", "his"), ("she", "her"))
    ]
    gas, gld, add = [], [], []
    for ids in lm.encode(TEXTS):
        p = next_logits(lm, ids).softmax(-1)
        twin = twin_of(lm, 0, ids)
        assert twin is not None
        q, there = next_logits(lm, twin.ids).softmax(-1), dict(twin.places)
        for place in range(len(ids) - 1):
            male, female = (sum(float(p[place, token]) for token in side) for side in sides)
            gas.append(male + female)
            gld.append(abs(female - male) / (female + male + 1e-8))
            middle = (p[place] + q[there[place]]) / 2 if place in there else None
            divergences = (
                [float((x * (x / middle).log()).sum()) for x in (p[place], q[there[place]])]
                if middle is not None
                else [0.0]
            )
            add.append(sum(divergences) / 2)
    found = method.terms(lm, batch_of(lm))
    assert list(found) == ["cross_entropy", "gas", "gld", "add"]
    count = len(gas)
    expected = [
        plain_loss(lm, TEXTS),
        0.7 * 2 * sum(gas) / count,
        0.7 * 3 * sum(gld) / count,
        0.7 * 4 * sum(add) / count,
    ]
    torch.testing.assert_close(torch.stack(list(found.values())), torch.tensor(expected), **CLOSE)
    assert found["add"] > 1e-3


def test_a_twin_stands_beside_its_row_however_many_tokens_a_word_has() -> None:
    lm = tiny_lm("llama")
    ids = lm.encode(["The woman said she was early and the girl laughed because"])[0]
    twin = twin_of(lm, 3, ids)
    assert twin is not None
    assert twin.row == 3
    assert twin.ids == lm.encode(["The man said he was early and the boy laughed because"])[0]
    assert len(twin.ids) != len(ids)
    for here, there in twin.places:
        assert swapped(lm.tokenizer.decode(ids[1 : here + 1])) == lm.tokenizer.decode(twin.ids[1 : there + 1])
    assert len(twin.places) >= 10
    assert twin_of(lm, 0, lm.encode(["The rain stopped"])[0]) is None


def test_a_batch_without_gendered_words_has_no_distance_to_its_twins() -> None:
    lm = tiny_lm("llama")
    assert (
        float(DebiasTuning(add=1.0).terms(lm, batch_of(lm, ["The rain stopped", "It was late"]))["add"].detach()) == 0
    )


def test_words_of_several_tokens_are_named_and_passed_over(run: Run) -> None:
    lm = tiny_lm("llama")
    DebiasTuning(words=("he", "she", "himself")).prepare(lm, [[1, 2]], run)
    assert any("himself" in line and "he," not in line for line in (run.folder / "log.jsonl").read_text().splitlines())
    one, other = (
        DebiasTuning(words=words).terms(lm, batch_of(lm)) for words in (("he", "she"), ("he", "she", "himself"))
    )
    assert one == other


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "needs a male and a female"),
        (("he",), "needs a male and a female"),
        (("he", "shee"), "did you mean 'she'"),
        (("himself", "she"), "lacks one"),
    ],
)
def test_debias_tuning_refuses_words_it_cannot_use(words: tuple[str, ...], said: str, run: Run) -> None:
    with pytest.raises(Refusal, match=said) as refused:
        DebiasTuning(words=words).fit(tiny_lm("llama"), rows(TEXTS), run)
    assert "--set method.words" in str(refused.value)


# ---- ibm


def slow_likeness(lm: LM, texts: list[str], words: tuple[str, ...]) -> float:
    """The term row by row, from what transformers itself returns."""
    alone = []
    for word in words:
        ids = [lm.start, *lm.tokenizer(word, add_special_tokens=False).input_ids]
        alone.append(lm.model.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0, 1:].mean(0))
    found = []
    for ids in lm.encode(texts):
        output = lm.model.base_model(input_ids=torch.tensor([ids]), output_attentions=True)
        looks = output.attentions[-1][0].mean(0)[-1]
        direct = {
            start + offset
            for word in words
            for form in forms(lm, word)
            for start in range(len(ids))
            if ids[start : start + len(form)] == form
            for offset in range(len(form))
        }
        places = [place for place in range(1, len(ids)) if ids[place] > 3 and place not in direct]
        assert len(places) < len(ids) - 1
        nearest = [
            max(cosine_similarity(output.last_hidden_state[0, place], each, dim=0) for each in alone)
            for place in places
        ]
        total = sum(float(looks[place]) for place in places)
        found.append(
            sum(
                float(looks[place]) / total * min(max(float(near), 0), 1)
                for place, near in zip(places, nearest, strict=True)
            )
        )
    return sum(found) / len(found)


@pytest.mark.parametrize("family", CAUSAL)
def test_the_term_of_ibm_is_that_of_a_plain_loop(family: str) -> None:
    lm = tiny_lm(family)
    texts = [text for text in TEXTS if "he " in text]
    with attention_shown(lm), torch.no_grad():
        expected = slow_likeness(lm, texts, ("he", "she", "his"))
        found = IBM(words=("he", "she", "his"), weight=0.5).terms(lm, batch_of(lm, texts))
        torch.testing.assert_close(float(found["likeness"]), 0.5 * expected, **CLOSE)
        torch.testing.assert_close(float(found["cross_entropy"]), plain_loss(lm, texts), **CLOSE)


def test_ibm_reaches_the_attention_itself() -> None:
    """Attention is in the graph: with likeness held still, the last block's queries still have a slope."""
    lm = tiny_lm("llama")
    query = lm.blocks[-1].get_parameter("self_attn.q_proj.weight")
    with attention_shown(lm):
        loss = IBM().terms(lm, batch_of(lm, TEXTS[:1]))["likeness"]
    assert_clean(lm)
    assert float(torch.autograd.grad(loss, query)[0].abs().max()) > 0
    assert lm.model.config._attn_implementation != "eager"


def test_ibm_refuses_no_words_and_a_model_that_hides_its_attention(run: Run) -> None:
    lm = tiny_lm("llama")
    with pytest.raises(Refusal, match=r"--set method\.words"):
        IBM(words=()).fit(lm, rows(TEXTS), run)
    with pytest.raises(Refusal, match="choose another model"):
        IBM().terms(lm, batch_of(lm))
    assert_clean(lm)


# ---- what holds for all


METHODS: dict[str, TextMethod] = {
    "debias_tuning": DebiasTuning(weight=5.0, gas=20.0, add=4.0, **TINY),
    "ibm": IBM(weight=5.0, **TINY),
    "deep_soft_debias": DeepSoftDebias(**TINY),
    "cda": CDA(**TINY),
}


@pytest.mark.parametrize("method", [DebiasTuning(words=("he", "she"), add=1.0), IBM()], ids=["debias_tuning", "ibm"])
def test_padding_changes_nothing(method: TextMethod) -> None:
    lm = tiny_lm("gpt2")
    tight = batch_of(lm)
    wide = Batch(
        *(torch.cat([x, x.new_full((len(x), 5), value)], 1) for x, value in zip(tight[:2], (7, False), strict=True))
    )
    with attention_shown(lm), torch.no_grad():
        one, other = method.terms(lm, tight), method.terms(lm, wide)
    torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("method", [DebiasTuning(weight=0.0, add=1.0), IBM(weight=0.0), CDA(), DeepSoftDebias()])
def test_without_weight_the_loss_is_plain_fine_tuning(method: TextMethod) -> None:
    lm = tiny_lm("llama")
    assert method.terms(lm, batch_of(lm)) == Vanilla().terms(lm, batch_of(lm))


def own_terms(method: TextMethod, lm: LM) -> dict[str, float]:
    with attention_shown(lm), torch.no_grad():
        return {name: float(value) for name, value in method.terms(lm, batch_of(lm)).items()}


@torch.no_grad()
def logits(model: Any, lm: LM) -> Tensor:
    return model(input_ids=torch.tensor(lm.encode(TEXTS[:1]))).logits[0]


def write_results(folder: Path) -> None:
    """The least that a finished run holds."""
    results = {"before": {}, "after": {}, "verdicts": {}, "train": {"trainable": 1, "total": 2}}
    (folder / "results.json").write_text(json.dumps(results))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", METHODS)
def test_fit_lowers_its_terms_and_comes_back_equal(
    name: str, family: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deep_soft_debias, "MOST_STEPS", 20)
    base = tiny_folder(tmp_path / "base", family, **({"tie_word_embeddings": True} if family == "llama" else {}))
    method, lm = METHODS[name], LM.load(str(base), device="cpu")
    attention = lm.model.config._attn_implementation
    before, start = own_terms(method, lm), {key: value.clone() for key, value in lm.model.state_dict().items()}
    state = method.fit(lm, rows(TEXTS * 2), run)
    after = own_terms(method, lm)
    assert all(after[term] < before[term] for term in after), (before, after)
    assert_clean(lm)
    assert lm.model.config._attn_implementation == attention
    embedding = next(key for key, value in lm.model.named_parameters() if value is input_embedding(lm.model))
    apart = {embedding} if name == "deep_soft_debias" else set()
    assert {key for key in lm.trained if ".lora_" not in key} == apart
    assert run.read("train.json")["trainable"] == sum(lm.model.get_parameter(key).numel() for key in lm.trained)
    assert torch.equal(lm.head.weight, start[embedding])  # these families tie the two
    assert torch.equal(input_embedding(lm.model), start[embedding]) == (not apart)

    save_method(run, lm, str(base), name, values(method), state)
    again = LM.load(str(run.folder), device="cpu")
    torch.testing.assert_close(logits(again.model, lm), logits(lm.model, lm), atol=1e-5, rtol=0)
    write_results(run.folder)
    assert export(run.folder, tmp_path / "exported", device="cpu") < 1e-5
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()
    torch.testing.assert_close(logits(model, lm), logits(lm.model, lm), atol=1e-5, rtol=0)
    assert model.config.tie_word_embeddings == (not apart)
    assert torch.equal(input_embedding(model), LM(model, lm.tokenizer, "").head.get_parameter("weight")) == (not apart)


def test_presets_build() -> None:
    for cls in (DebiasTuning, IBM, CDA, DeepSoftDebias):
        for settings in cls.presets.values():
            assert values(build(cls, settings, "preset")) == values(cls()) | settings


# ---- deep_soft_debias


def planted(count: int = 300, width: int = 64) -> tuple[Tensor, Tensor]:
    """Vectors of uneven spread, as embeddings have, with a planted direction in every one of them."""
    drawn = torch.Generator().manual_seed(0)
    spread = torch.arange(1, width + 1) ** -0.5 * 4
    direction = torch.nn.functional.normalize(torch.randn(width, generator=drawn), dim=0)
    vectors = torch.randn(count, width, generator=drawn) * spread
    vectors -= (vectors @ direction)[:, None] * direction
    return vectors + torch.randn(count, 1, generator=drawn) * direction, direction[None]


def test_softening_takes_the_direction_out_and_keeps_the_geometry(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, basis = planted()
    neutral = torch.ones(len(vectors), dtype=torch.bool)
    neutral[:14] = False
    monkeypatch.setattr(deep_soft_debias, "MOST_STEPS", 160)
    after = softened(0.03 * vectors, neutral, basis, 1.0, run) / 0.03
    found = effect(vectors[neutral], after[neutral], basis)
    assert found.after < 0.2 * found.before
    assert found.geometry < 0.1
    monkeypatch.setattr(deep_soft_debias, "MOST_STEPS", 20)
    one, again = (softened(vectors, neutral, basis, 1.0, run) for _ in range(2))
    assert torch.equal(one, again)  # the seed decides
    kept = softened(vectors, neutral, basis, 0.0, run)
    torch.testing.assert_close(kept, vectors, atol=1e-5, rtol=1e-5)  # without strength there is nothing to gain


def test_the_effect_is_that_of_whole_tables() -> None:
    vectors, basis = planted(50)
    after = vectors + 0.1 * torch.randn(vectors.shape, generator=torch.Generator().manual_seed(1))
    found = effect(vectors, after, basis)
    products = [x @ x.T for x in (vectors, after)]
    assert found.geometry == pytest.approx(float((products[1] - products[0]).norm() / products[0].norm()), rel=1e-4)
    cosines = [[abs(float(cosine_similarity(row, basis[0], dim=0))) for row in x] for x in (vectors, after)]
    assert found.before == pytest.approx(sum(cosines[0]) / 50, rel=1e-4)
    assert found.after == pytest.approx(sum(cosines[1]) / 50, rel=1e-4)


def test_the_basis_is_what_the_words_of_a_set_differ_in() -> None:
    lm = tiny_lm("llama")
    weight = input_embedding(lm.model)
    he, she = (weight[token].detach() for token in lm.word_ids(["he", "she"], "because"))
    basis = DeepSoftDebias(sets=(("he", "she"),)).basis(lm)
    assert basis.shape == (1, 32)
    assert abs(float(cosine_similarity(basis[0], he - she, dim=0))) == pytest.approx(1, abs=1e-5)
    three = DeepSoftDebias(directions=3).basis(lm)
    torch.testing.assert_close(three @ three.T, torch.eye(3), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"sets": ()}, "method.sets"),
        ({"sets": (("he", "he"),)}, "method.sets"),
        ({"sets": (("he", "she"),), "directions": 2}, "method.directions=1"),
    ],
)
def test_deep_soft_debias_refuses_sets_it_cannot_use(settings: dict[str, Any], remedy: str, run: Run) -> None:
    with pytest.raises(Refusal, match=remedy):
        DeepSoftDebias(**settings).fit(tiny_lm("llama"), rows(TEXTS), run)


@pytest.mark.parametrize("family", ["llama", "gemma2", "bloom", "falcon"])
def test_untied_models_say_the_same(family: str) -> None:
    lm = tiny_lm(family)
    before = logits(lm.model, lm)
    untie(lm.model)
    assert lm.head.weight is not input_embedding(lm.model)
    assert torch.equal(logits(lm.model, lm), before)
