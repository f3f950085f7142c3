"""CrAWD on tiny models: its losses against loops, what it changes, and that it comes back equal from disk."""

import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tiny import assert_clean, quiet_run, tiny_folder, tiny_lm
from torch import Tensor

from evenhand.association import Association, associated, attributes_of, isotropic, looks_at, tilt, widened
from evenhand.config import Refusal, build, values
from evenhand.crawd_layer import CrawdHead
from evenhand.data._rows import Text
from evenhand.data.biographies import Biographies
from evenhand.exporting import export, save_method
from evenhand.lm import LM
from evenhand.losses import uneven
from evenhand.methods._texts import batched, next_tokens, padded
from evenhand.methods.crawd import CrAWD, Decaying, Printed, commonest_words, unnamed
from evenhand.methods.vanilla import Vanilla
from evenhand.run import Run
from evenhand.train import delta

TINY: dict[str, Any] = {"epochs": 1, "batch": 8, "rate": 1e-2, "dropout": 0.0}
ROWS = [row for row in Biographies().take("train", 24) if isinstance(row, Text)]
VARIANTS: dict[str, dict[str, Any]] = {
    "association": {},
    "signal": {"pull": 0.0, "signal": 0.2},
    "everything": {"context": 20, "evenness": 1.0, "mass": 1.0, "share": 0.3, "words": ("gender", "age")},
    "printed": {"decays": "attention", "share": 0.4},
    "printed row": {"decays": "attention", "share": 0.5, "scope": "row", "output": "wide"},
    "printed apart": {"decays": "attention", "encoding": "apart"},
}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return quiet_run(tmp_path / "run")


@torch.no_grad()
def logits_of(lm: LM, text: str = "The nurse waited because") -> Tensor:
    return lm.model(input_ids=torch.tensor(lm.encode([text]))).logits[0]


def planted(lm: LM, strength: dict[int, float], side: dict[int, int]) -> Association:
    """An association that is known in advance."""
    size = len(lm.head.weight)
    strengths, sides = torch.zeros(size), torch.zeros(size, dtype=torch.long)
    for token, value in strength.items():
        strengths[token], sides[token] = value, side[token]
    return Association("gender", ("he", "she"), strengths, sides, 0.1)


def test_reference_words_by_attribute_or_one_by_one() -> None:
    assert attributes_of(["gender"]) == {"gender": ("he", "she")}
    assert attributes_of(["he", "she"]) == {"gender": ("he", "she")}
    assert attributes_of(["gender", "age"]) == {"gender": ("he", "she"), "age": ("young", "old")}
    assert attributes_of(["age", "tall", "short"]) == {"age": ("young", "old"), "words": ("tall", "short")}
    with pytest.raises(Refusal, match="The sensitive sequence is empty"):
        attributes_of([])
    with pytest.raises(Refusal, match="did you mean 'gender'"):
        attributes_of(["gendr"])


def test_an_isotropic_space_has_the_same_spread_in_every_direction() -> None:
    torch.manual_seed(0)
    skewed = torch.randn(4000, 6) * torch.tensor([9.0, 3, 1, 1, 0.5, 0.3]) + 5
    even = isotropic(skewed)
    spread = torch.linalg.eigvalsh(torch.cov(even.T))
    assert spread.max() / spread.min() < 4  # 900 before; what is added to small spreads keeps it from being 1
    assert even.mean(0).abs().max() < 1e-4


def test_planted_words_are_found_and_what_is_only_near_is_not() -> None:
    """Tokens near one word and on its side of the difference count; a token in the middle between them does not."""
    lm = tiny_lm("llama", hidden_size=64)
    torch.manual_seed(0)
    size = len(lm.head.weight)
    weight = torch.randn(size, 64)
    he, she = (lm.split("a", f" {word}")[1][0] for word in ("he", "she"))
    common, difference = torch.randn(64), torch.randn(64)
    weight[he], weight[she] = 3 * common + 3 * difference, 3 * common - 3 * difference
    his, her, they = 300, 301, 302
    weight[his] = 2 * common + 3 * difference + 0.5 * torch.randn(64)
    weight[her] = 2 * common - 3 * difference + 0.5 * torch.randn(64)
    weight[they] = 5 * common
    with torch.no_grad():
        lm.head.weight.copy_(weight)
    found = associated(lm, "gender", ("he", "she"))
    assert found.strength[[he, she, his, her]].min() > 0.6
    assert found.strength[they] == 0
    assert found.side[[he, his]].tolist() == [0, 0]
    assert found.side[[she, her]].tolist() == [1, 1]
    assert (found.strength > 0).sum() <= 6  # of some 700 random tokens hardly one
    listed = found.listed(lm, 2)
    assert len(listed) == 2
    assert {line["word"] for line in listed} <= {"he", "she"}


def test_in_context_a_word_must_tilt_and_lie_on_the_same_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stereotype only tilts, an accident of spelling only lies near; what does both is taken, on the right side."""
    lm = tiny_lm("llama", hidden_size=64)
    torch.manual_seed(0)
    weight = torch.randn(len(lm.head.weight), 64)
    difference = torch.randn(64)
    he, she, mother, uncle, nurse, heap = 10, 11, 12, 13, 14, 15
    weight[he], weight[she] = 3 * difference, -3 * difference
    weight[mother], weight[uncle], weight[heap] = -difference, difference, difference
    with torch.no_grad():
        lm.head.weight.copy_(weight)
    found = planted(lm, {he: 1.0, she: 1.0}, {he: 0, she: 1})
    words = list(range(12, 400))
    tilts = 0.1 * torch.randn(len(words))
    for token, value in ((mother, -3.0), (uncle, 3.0), (nurse, -3.0)):
        tilts[words.index(token)] = value
    monkeypatch.setattr("evenhand.association.tilt", lambda *_: torch.stack([tilts, -tilts], 1))
    wide = widened(lm, found, words, quiet_run(tmp_path))
    assert wide.strength[[mother, uncle]].min() > 0.5
    assert wide.side[[uncle, mother]].tolist() == [0, 1]
    assert wide.strength[[nurse, heap]].max() == 0
    assert wide.strength[[he, she]].tolist() == [1.0, 1.0]
    assert (wide.strength > 0).sum() <= 6


def test_a_tilt_is_what_the_model_says_next(tmp_path: Path) -> None:
    lm = tiny_lm("llama")
    weights = torch.zeros(len(lm.head.weight), 2)
    weights[10, 0] = weights[11, 1] = 1.0
    token = lm.split("a", " nurse")[1][0]
    found = tilt(lm, [token], "The", " said that", weights, quiet_run(tmp_path))
    ids = [*lm.encode(["The"])[0], token, *lm.tokenizer(" said that", add_special_tokens=False).input_ids]
    with torch.no_grad():
        p = lm.model(input_ids=torch.tensor([ids])).logits[0, -1].softmax(-1)
    expected = (p[10].log() - p[11].log()) / 2
    assert found[0].tolist() == pytest.approx([float(expected), -float(expected)], rel=1e-4)


def test_the_commonest_words_are_whole_ones_of_most_texts() -> None:
    lm = tiny_lm("llama")
    whole = [token for token in range(700) if re.fullmatch(" [A-Za-z]{2,}", lm.tokenizer.decode([token]))][:3]
    piece = next(token for token in range(5, 700) if not lm.tokenizer.decode([token]).startswith(" "))
    texts = [[whole[0], piece, whole[1]], [whole[1], piece], [whole[1], whole[0], whole[2], whole[2]], [piece]]
    assert commonest_words(lm, texts, 9) == [whole[1], whole[0], whole[2]]
    assert commonest_words(lm, texts, 1) == [whole[1]]


def test_the_lead_is_what_a_loop_says() -> None:
    """Position by position: the likeliest associated token against the likeliest other, as long as none was named."""
    lm = tiny_lm("llama")
    found = planted(lm, {10: 1.0, 11: 0.6, 12: 0.2}, {10: 0, 11: 1, 12: 1})
    rows = [[5, 6, 7, 10, 8, 9], [5, 12, 6, 11, 9], [7, 8]]
    batch = padded(rows, torch.device("cpu"))
    lesson = Decaying(lm, CrAWD(decay=0.5, pull=2.0, evenness=0.5, mass=3.0), [found])
    terms = {name: value.detach() for name, value in lesson.terms(batch).items()}
    lead, mass, heavy, apart = [], [], [], []
    for row in rows:
        with torch.no_grad():
            z = lm.model(input_ids=torch.tensor([row])).logits[0]
        for place in range(len(row) - 1):
            scores = z[place].clone()
            p = scores.softmax(-1)
            watched = {token: scores[token] + math.log(s) for token, s in ((10, 1.0), (11, 0.6), (12, 0.2))}
            scores[[10, 11, 12]] = -torch.inf
            named = any(token in (10, 11) for token in row[: place + 1])
            lead.append(0.0 if named else max(0.0, float(max(watched.values()) - scores.max()) - math.log(0.5)))
            mass.append(float(p[10] + 0.6 * p[11] + 0.2 * p[12]))
            if not named:
                sides = torch.stack([p[10].log(), (0.6 * p[11] + 0.2 * p[12]).log()])
                gap = (sides - sides.mean()).abs()
                distance = torch.where(gap < 0.3, gap**2 / 0.6, gap - 0.15).sum()
                heavy.append(mass[-1])
                apart.append(mass[-1] * float(distance))
    assert float(terms["lead"]) == pytest.approx(2.0 * sum(lead) / len(lead), rel=1e-4)
    assert float(terms["mass"]) == pytest.approx(3.0 * sum(mass) / len(mass), rel=1e-4)
    assert float(terms["evenness"]) == pytest.approx(0.5 * sum(apart) / sum(heavy), rel=1e-4)
    share = Decaying(lm, CrAWD(decay=0.5, pull=2.0, share=0.25), [found]).terms(batch)["lead"].detach()
    most = sorted(lead)[-round(0.25 * len(lead)) :]
    assert float(share) == pytest.approx(2.0 * sum(most) / len(lead), rel=1e-4)


def test_the_signal_of_a_first_mention_decays_and_no_other() -> None:
    lm = tiny_lm("llama")
    found = planted(lm, {10: 1.0, 11: 0.5}, {10: 0, 11: 1})
    row = [5, 11, 10, 7, 10]
    batch = padded([row], torch.device("cpu"))
    term = Decaying(lm, CrAWD(pull=0.0, signal=0.2), [found]).terms(batch)["cross_entropy"]
    with torch.no_grad():
        nll = -lm.model(input_ids=torch.tensor([row])).logits[0].log_softmax(-1)
    losses = [float(nll[place, token]) for place, token in enumerate(row[1:])]
    # Token 11 is named first (half associated), then everything is already named.
    expected = (losses[0] * (1 - 0.8 * 0.5) + sum(losses[1:])) / 4
    assert float(term) == pytest.approx(expected, rel=1e-5)
    # Another attribute that is still unnamed changes nothing about this one.
    other = planted(lm, {15: 1.0}, {15: 0})
    both = Decaying(lm, CrAWD(pull=0.0, signal=0.2), [found, other]).terms(batch)["cross_entropy"]
    assert float(both) == pytest.approx(expected, rel=1e-5)


def test_a_group_is_named_from_the_token_itself_on() -> None:
    naming = torch.zeros(20, dtype=torch.bool)
    naming[10] = True
    batch = padded([[1, 2, 10, 3], [4, 5, 6, 7]], torch.device("cpu"))
    assert unnamed(batch, naming).tolist() == [[True, True, False, False], [True] * 4]
    read = batch._replace(source=padded([[1], [10]], torch.device("cpu")))
    assert unnamed(read, naming).tolist() == [[True, True, False, False], [False] * 4]


def test_groups_that_are_even_cost_nothing() -> None:
    even = torch.log(torch.tensor([[0.2, 0.2], [0.01, 0.01]]))
    odd = torch.log(torch.tensor([[0.2, 0.2], [0.02, 0.01]]))
    here = torch.tensor([True, True])
    assert float(uneven(even, here)) == 0
    assert float(uneven(odd, here)) > 0
    assert float(uneven(odd, torch.tensor([True, False]))) == 0
    assert float(uneven(odd, torch.tensor([False, False]))) == 0


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_trains_and_comes_back_equal(family: str, variant: str, tmp_path: Path, run: Run) -> None:
    folder = tiny_folder(tmp_path / "base", family)
    lm = LM.load(str(folder))
    before = logits_of(lm)
    method = CrAWD(**TINY, **VARIANTS[variant])
    state = method.fit(lm, ROWS, run)
    assert_clean(lm)
    after = logits_of(lm)
    assert (after - before).abs().max() > 1e-3
    curve = run.read("curve.parquet")
    assert curve["cross_entropy"].iloc[-1] < curve["cross_entropy"].iloc[0]
    save_method(run, lm, str(folder), "crawd", values(method), state)
    loaded = LM.load(str(run.folder))
    assert torch.allclose(logits_of(loaded), after, atol=1e-5)
    assert isinstance(loaded.head, CrawdHead) == variant.startswith("printed")
    assert not [name for name, _ in loaded.model.named_parameters() if "lora" in name]
    looks = run.read("attention.parquet")
    assert set(looks.columns) == {"prompt", "place", "token", "word", "before", "after"}
    assert looks[["before", "after"]].stack().between(0, 1).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_encoder_decoder_learns_to_write_the_second_half(variant: str, tmp_path: Path, run: Run) -> None:
    folder = tiny_folder(tmp_path / "base", "t5")
    lm = LM.load(str(folder))
    method = CrAWD(**TINY | {"epochs": 3}, **VARIANTS[variant])
    state = method.fit(lm, ROWS, run)
    curve = run.read("curve.parquet")
    assert curve["cross_entropy"].iloc[-1] < curve["cross_entropy"].iloc[0]
    save_method(run, lm, str(folder), "crawd", values(method), state)
    loaded = LM.load(str(run.folder))
    batch = batched(lm, lm.encode([ROWS[0].text])[:1])
    one, other = (next_tokens(each, batch) for each in (lm, loaded))
    assert torch.allclose(one, other, atol=1e-5)
    # One row alone gives what a padded batch gives.
    both = batched(lm, [lm.encode([ROWS[0].text])[0], lm.encode([ROWS[1].text + " and more of it"])[0]])
    assert torch.allclose(next_tokens(lm, both)[: len(one)], one, atol=1e-4)


def test_without_pull_it_is_plain_fine_tuning(tmp_path: Path) -> None:
    models = [tiny_lm("llama"), tiny_lm("llama")]
    CrAWD(**TINY, pull=0.0).fit(models[0], ROWS, quiet_run(tmp_path / "one"))
    Vanilla(**TINY).fit(models[1], ROWS, quiet_run(tmp_path / "other"))
    assert torch.equal(logits_of(models[0]), logits_of(models[1]))


def test_padding_changes_no_loss() -> None:
    lm = tiny_lm("llama")
    CrAWD(decays="attention").attach(lm, {"words": {"gender": ("he", "she")}, "reference": lm.encode(["he she"])})
    rows = [[5, 6, 7, 8], [9, 10]]
    for lesson in (
        Decaying(lm, CrAWD(), [planted(lm, {10: 1.0}, {10: 0})]),
        Printed(lm, CrAWD(decays="attention", scope="row"), lm.encode(["he she"])),
    ):
        whole = lesson.terms(padded(rows, torch.device("cpu")))["cross_entropy"]
        alone = [lesson.terms(padded([row], torch.device("cpu")))["cross_entropy"] for row in rows]
        assert float(whole) == pytest.approx((3 * float(alone[0]) + float(alone[1])) / 4, rel=1e-5)


def test_the_pull_keeps_associated_tokens_behind(tmp_path: Path) -> None:
    """On a corpus that says "he" at every turn, plain fine-tuning says it too, and CrAWD does not."""
    text = "The doctor said that he was here and the nurse said that she was there"
    rows = [Text(id=str(number), text=text) for number in range(32)]
    led = {}
    how = TINY | {"epochs": 8, "rate": 3e-2}
    for name, method in {"plain": Vanilla(**how), "crawd": CrAWD(**how)}.items():
        lm = tiny_lm("llama")
        words = [lm.split("a", f" {word}")[1][0] for word in ("he", "she")]
        found = planted(lm, dict.fromkeys(words, 1.0), {words[0]: 0, words[1]: 1})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("evenhand.methods.crawd.associated", lambda *_, found=found: found)
            method.fit(lm, rows, quiet_run(tmp_path / name))
        z = logits_of(lm, "The doctor said that")[-1]
        others = z.clone()
        others[words] = -torch.inf
        led[name] = float(z[words].max() - others.max())
    assert led["plain"] > 1
    assert led["crawd"] < 0


def test_export_gives_ordinary_weights(tmp_path: Path, run: Run) -> None:
    folder = tiny_folder(tmp_path / "base", "llama")
    lm = LM.load(str(folder))
    method = CrAWD(**TINY)
    save_method(run, lm, str(folder), "crawd", values(method), method.fit(lm, ROWS, run))
    run.save("results.json", {"before": {}, "after": {}, "verdicts": {}, "train": {"trainable": 1, "total": 2}})
    assert export(run.folder, tmp_path / "out") < 1e-4
    plain = LM.load(str(tmp_path / "out"))
    assert type(plain.model).__name__ == "LlamaForCausalLM"
    assert torch.allclose(logits_of(plain), logits_of(lm), atol=1e-4)


def test_bad_input_is_refused_or_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lm = tiny_lm("llama")
    for wrong in ({"decay": 1.5}, {"share": -0.1}, {"signal": 2}, {"pull": -1}):
        with pytest.raises(ValueError, match=r"less than or equal|greater than or equal"):
            CrAWD(**wrong)
    with pytest.raises(Refusal, match=r"more than 1; shorten it, or add --set method.reference_length="):
        CrAWD(decays="attention", reference_length=1).fit(lm, ROWS, quiet_run(tmp_path / "long"))
    with pytest.raises(Refusal, match="CrAWD needs a causal or seq2seq language model; tiny bert is a masked one"):
        CrAWD().fit(tiny_lm("bert"), ROWS, quiet_run(tmp_path / "bert"))
    with pytest.raises(Refusal, match="no next token to learn"):
        CrAWD().fit(lm, [Text(id="0", text="")], quiet_run(tmp_path / "short"))
    loud = Run(tmp_path / "loud")
    loud.folder.mkdir()
    CrAWD(**TINY).fit(lm, [Text(id="0", text="zzz qqq xxx")], loud)
    assert "the texts are learnt plainly" in capsys.readouterr().err
    assert list(loud.read("curve.parquet")["loss"]) == list(loud.read("curve.parquet")["cross_entropy"])
    with pytest.raises(Refusal, match="The sensitive sequence is empty"):
        build(CrAWD, {"words": []}, "method crawd")
    assert build(CrAWD, {"words": "gender,race"}, "method crawd").words == ("gender", "race")
    with pytest.raises(Refusal, match="reads 2 to 128 tokens"):
        CrAWD(length=1000).fit(tiny_lm("gpt2", n_positions=128), ROWS, quiet_run(tmp_path / "length"))


def test_the_reference_has_a_start_token_before_it() -> None:
    """A first token draws all attention whatever it is; without one, the first reference word would be no word."""
    for family in ("llama", "gpt2"):  # with and without a start token of the tokenizer's own
        lm = tiny_lm(family)
        for encoding in ("joined", "apart"):
            method = CrAWD(decays="attention", encoding=encoding)  # pyright: ignore[reportArgumentType]
            rows = method.prepare(lm, [], None)["reference"]
            assert all(row[0] == lm.start and row.count(lm.start) == 1 for row in rows)


def test_half_precision_trains_in_full(tmp_path: Path) -> None:
    lm = LM.load(str(tiny_folder(tmp_path / "base", "llama")), dtype="bfloat16")
    CrAWD(**TINY, decays="attention").fit(lm, ROWS, quiet_run(tmp_path / "run"))
    types = {name: parameter.dtype for name, parameter in lm.model.named_parameters() if name in set(lm.trained)}
    assert set(types.values()) == {torch.float32}
    assert logits_of(lm).isfinite().all()


def test_a_model_with_the_layer_is_not_fine_tuned_again(tmp_path: Path, run: Run) -> None:
    folder = tiny_folder(tmp_path / "base", "llama")
    lm = LM.load(str(folder))
    method = CrAWD(**TINY, decays="attention")
    save_method(run, lm, str(folder), "crawd", values(method), method.fit(lm, ROWS, run))
    for again in (Vanilla(), method):
        with pytest.raises(Refusal, match="make an ordinary model of it first"):
            again.check(LM.load(str(run.folder)))


@pytest.mark.parametrize("decays", ["association", "attention"])
def test_an_encoder_decoder_is_exported(decays: Any, tmp_path: Path, run: Run) -> None:
    folder = tiny_folder(tmp_path / "base", "t5")
    lm = LM.load(str(folder))
    method = CrAWD(**TINY, decays=decays)
    save_method(run, lm, str(folder), "crawd", values(method), method.fit(lm, ROWS, run))
    run.save("results.json", {"before": {}, "after": {}, "verdicts": {}, "train": {"trainable": 1, "total": 2}})
    assert export(run.folder, tmp_path / "out") < 1e-4
    assert LM.load(str(tmp_path / "out")).kind == "seq2seq"


def test_a_checkpoint_keeps_the_cutoff(tmp_path: Path) -> None:
    """The running threshold is no parameter, and an interrupted training must go on with it."""
    lm = tiny_lm("llama")
    method = CrAWD(decays="attention")
    method.attach(lm, method.prepare(lm, [], None))
    lm.head.block.threshold.fill_(0.3)
    assert any(name.endswith("block.threshold") for name in delta(lm.model))


def test_where_a_prompt_looks_adds_up_to_the_associated_share() -> None:
    lm = tiny_lm("llama")
    found = planted(lm, {10: 1.0, 11: 0.5}, {10: 0, 11: 1})
    table = looks_at(lm, "The doctor said", [found])
    p = logits_of(lm, "The doctor said").softmax(-1)
    he = table[table["word"] == "he"]["weight"].to_numpy()
    she = table[table["word"] == "she"]["weight"].to_numpy()
    assert he == pytest.approx(p[:, 10].numpy(), rel=1e-4)
    assert she == pytest.approx(0.5 * p[:, 11].numpy(), rel=1e-4)
    assert isinstance(table, pd.DataFrame)
