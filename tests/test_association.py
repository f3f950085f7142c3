"""WEAT and SEAT: a worked example, slow loops over plain vectors, and the published files where they are."""

import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import quiet_run, tiny_lm

from evenhand import scoring
from evenhand.config import Absent, Refusal
from evenhand.data._rows import Text
from evenhand.data.seat import SEAT as SentenceTests
from evenhand.data.weat import SETS
from evenhand.data.weat import WEAT as WordTests
from evenhand.data.word_sets import WORDS, WordSets
from evenhand.lm import LM
from evenhand.metrics import _association as shared
from evenhand.metrics._association import associations, effect_size, permutation_p, unit_length
from evenhand.metrics.seat import SEAT
from evenhand.metrics.weat import WEAT

TOY = {
    "targ1": [(1, 0), (0.8, 0.6)],
    "targ2": [(0, 1), (0.6, 0.8)],
    "attr1": [(1, 0.1), (0.9, 0.2)],
    "attr2": [(0.1, 1), (0.2, 0.9)],
}


@pytest.fixture(scope="module")
def lm() -> LM:
    return tiny_lm("llama")


def published() -> Path:
    """The folder with the published files, or a skip."""
    folder = Path(os.environ.get("EVENHAND_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not (folder / "seat").is_dir():
        pytest.skip("the published tests are not here; needs EVENHAND_DATA")
    return folder


def toy_rows(copies: tuple[str, ...] = ("toy",)) -> list[Text]:
    return [
        Text(id=f"{test}-{part}-{n}", axis="gender", group=test, condition=part, text=f"{part}-{n}")
        for test in copies
        for part, each in TOY.items()
        for n in range(len(each))
    ]


def toy_vectors(_: Any, texts: list[str], *__: Any) -> np.ndarray:
    return np.array([TOY[text[:5]][int(text[6:])] for text in texts])


def side_table(**tests: tuple[list[float], list[float]]) -> pd.DataFrame:
    """A table as `score` gives it, with these associations."""
    lines = [
        {"id": f"{name}-{side}-{n}", "axis": "", "group": name, "condition": side, "association": value}
        for name, sides in tests.items()
        for side, values in zip(("targ1", "targ2"), sides, strict=True)
        for n, value in enumerate(values)
    ]
    return pd.DataFrame(lines)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def slow_associations(sets: dict[str, list[np.ndarray]], side: str) -> list[float]:
    """s(w, A, B) as the paper writes it."""
    return [
        float(np.mean([cosine(w, a) for a in sets["attr1"]]) - np.mean([cosine(w, b) for b in sets["attr2"]]))
        for w in sets[side]
    ]


def slow_effect(x: list[float], y: list[float]) -> float:
    return float((np.mean(x) - np.mean(y)) / np.std([*x, *y], ddof=1))


def slow_p(x: list[float], y: list[float]) -> float:
    """Every division into sides of these sizes, counted one by one."""
    together = [*x, *y]
    sums = [sum(together[place] for place in chosen) for chosen in itertools.combinations(range(len(together)), len(x))]
    return sum(each >= sum(x) - 1e-9 for each in sums) / len(sums)


# The numbers


def test_the_worked_example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shared, "vectors", toy_vectors)
    table = WEAT().score(None, toy_rows(), quiet_run(tmp_path))  # pyright: ignore[reportArgumentType]
    assert table["association"].tolist() == pytest.approx([0.827395, 0.165479, -0.827395, -0.165479], abs=1e-6)
    assert table["offset"].tolist() == pytest.approx(table["association"].tolist())
    numbers = WEAT().summarise(table)
    assert numbers.value == pytest.approx(1.441153, abs=1e-6)
    assert numbers.extra == pytest.approx({"d": 1.441153, "p": 1 / 6}, abs=1e-6)
    assert numbers.groups == pytest.approx({"toy": 1.441153, "gender": 1.441153}, abs=1e-6)


def test_the_sign_is_kept_beside_the_value() -> None:
    x, y = [0.3, 0.1, 0.2], [-0.1, 0.0, 0.05]
    report = WEAT().report(side_table(one=(x, y), other=(y, x)))
    assert report["extra"] == {}
    one, other = (report["groups"][name] for name in ("one", "other"))
    assert one["value"] == pytest.approx(other["value"]) == pytest.approx(report["value"])
    assert one["extra"]["d"] == pytest.approx(slow_effect(x, y)) == pytest.approx(-other["extra"]["d"])
    assert one["extra"]["p"] == pytest.approx(1 / 20)
    assert other["extra"]["p"] == 1


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_the_effect_size_of_equal_sides_is_the_sample_formula(size: int) -> None:
    draw = np.random.default_rng(size)
    x, y = draw.normal(0.2, 1, (30, size)), draw.normal(0, 1, (30, size))
    expected = [slow_effect(list(a), list(b)) for a, b in zip(x, y, strict=True)]
    assert effect_size(x, y) == pytest.approx(expected, rel=1e-12)


def test_unequal_sides_follow_the_plain_formula() -> None:
    """Only sides of one size keep below 2."""
    x, y = np.ones(1), np.zeros(9)
    assert float(effect_size(x, y)) == pytest.approx(slow_effect(list(x), list(y))) == pytest.approx(np.sqrt(10))
    assert float(effect_size(y, x)) == pytest.approx(-np.sqrt(10))


@pytest.mark.parametrize(("x", "y"), [(4, 4), (3, 5), (5, 2)])
def test_the_exact_p_counts_every_division(x: int, y: int) -> None:
    draw = np.random.default_rng(x)
    # Few distinct values, so that there are ties to count.
    first, second = draw.integers(0, 4, x) / 10, draw.integers(0, 4, y) / 10
    assert permutation_p(first, second) == pytest.approx(slow_p(list(first), list(second)), abs=1e-12)


def test_the_sampled_p_is_near_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(5)
    first, second = draw.normal(0.5, 1, 10), draw.normal(0, 1, 10)  # 184 756 divisions
    sampled = permutation_p(first, second)
    assert sampled == permutation_p(first, second)
    monkeypatch.setattr(shared, "PERMUTATIONS", 200_000)
    exact = permutation_p(first, second)
    assert 0.01 < exact < 0.5
    assert sampled != exact
    assert sampled == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 1e5))


def test_a_sampled_p_is_never_zero() -> None:
    assert permutation_p(np.arange(100, 130.0), np.arange(30.0)) == 1 / 100_000


def test_an_even_table_is_0_whatever_the_rounding() -> None:
    table = side_table(one=([0.1, 0.3, 0.7], [0.7, 0.1, 0.3]), two=([0.1] * 7, [0.1] * 3))
    assert WEAT().of(table) == pytest.approx(0, abs=1e-12)
    same = WEAT().report(side_table(one=([0.1] * 7, [0.1] * 7), two=([0.3] * 4, [0.3] * 4)))
    assert same["value"] == same["low"] == same["high"] == 0


# The draws


def test_draws_keep_the_sides_and_are_paired() -> None:
    x, y, z = [0.3, 0.1, 0.2, 0.6], [-0.1, 0.0, 0.05], [0.2, 0.5, 0.9, 0.4]
    table = side_table(one=(x, y), two=(z, x))
    generator, slow = np.random.default_rng(3), np.zeros(2000)
    for first, second in ((x, y), (z, x)):
        a, b = (generator.integers(0, len(side), (2000, len(side))) for side in (first, second))
        for number in range(2000):
            one, other = (np.array(side)[places[number]] for side, places in ((first, a), (second, b)))
            slow[number] += abs(float(effect_size(one, other))) / 2
    value = WEAT().of(table)
    expected = np.clip(slow - slow.mean() + value, 0, 2)
    assert WEAT().draws(table, seed=3) == pytest.approx(expected, abs=1e-12)
    shuffled = table.sample(frac=1, random_state=0)
    assert WEAT().draws(shuffled, seed=3) == pytest.approx(WEAT().draws(table, seed=3))


@pytest.mark.parametrize("shift", [0.0, 0.5, 3.0])
def test_the_interval_holds_the_value_even_near_the_ideal(shift: float) -> None:
    """Plain draws of |d| would all lie above the value of an even model."""
    for seed in range(5):
        draw = np.random.default_rng(seed)
        tests = {f"t{n}": (list(draw.normal(shift, 1, 8)), list(draw.normal(0, 1, 8))) for n in range(4)}
        report = WEAT().report(side_table(**tests))
        assert 0 <= report["low"] < report["value"] < report["high"] <= 2


# On a model


def plain_vector(lm: LM, text: str) -> np.ndarray:
    """The mean last hidden state of one text by the plainest forward pass."""
    ids = torch.tensor([lm.tokenizer(text).input_ids])
    with torch.no_grad():
        return lm.model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0].double().mean(0).numpy()


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_contextual_weat_is_what_one_word_at_a_time_gives(family: str, tmp_path: Path) -> None:
    lm = tiny_lm(family)
    rows = WordSets(tests=("gender-career", "race-asian")).take()
    table = WEAT().score(lm, rows, quiet_run(tmp_path))
    for test in ("gender-career", "race-asian"):
        sets = {
            part: [plain_vector(lm, row.text) for row in rows if row.group == test and row.condition == part]
            for part in SETS
        }
        x, y = (slow_associations(sets, side) for side in ("targ1", "targ2"))
        part = table[table["group"] == test]
        assert part.loc[part["condition"] == "targ1", "association"].tolist() == pytest.approx(x, abs=1e-6)
        assert part.loc[part["condition"] == "targ2", "association"].tolist() == pytest.approx(y, abs=1e-6)
        assert WEAT().of(part) == pytest.approx(abs(slow_effect(x, y)), abs=1e-4)
    targets = [row.id for row in rows if row.condition.startswith("targ")]
    assert table["id"].tolist() == targets


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_started_word_stands_behind_the_start_token_and_is_read_without_it(family: str, tmp_path: Path) -> None:
    """With one start token whether the tokenizer gives one or not, and with the space a word has inside a text."""
    lm = tiny_lm(family)
    found = scoring.vectors(lm, ["nurse", "she"], quiet_run(tmp_path), "weat", started=True)
    for vector, word in zip(found, ("nurse", "she"), strict=True):
        ids = [lm.start, *lm.tokenizer(f" {word}", add_special_tokens=False).input_ids]
        with torch.no_grad():
            states = lm.model.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0, 1:]
        assert vector == pytest.approx(states.mean(0).double().numpy(), abs=1e-5)


def test_static_weat_reads_the_embeddings_of_a_word_inside_a_text(lm: LM, tmp_path: Path) -> None:
    rows = WordSets(tests=("gender-science",)).take()
    table = WEAT(space="static").score(lm, rows, quiet_run(tmp_path))
    weights = lm.model.state_dict()["model.embed_tokens.weight"].double().numpy()

    def embedded(word: str) -> np.ndarray:
        return weights[lm.tokenizer(f" {word}", add_special_tokens=False).input_ids].mean(0)

    sets = {part: [embedded(row.text) for row in rows if row.condition == part] for part in SETS}
    for side in ("targ1", "targ2"):
        found = table.loc[table["condition"] == side, "association"].tolist()
        assert found == pytest.approx(slow_associations(sets, side), abs=1e-9)
    contextual = WEAT().score(lm, rows, quiet_run(tmp_path))
    assert WEAT().of(table) != pytest.approx(WEAT().of(contextual), abs=1e-3)


@pytest.mark.parametrize("metric", [WEAT(), WEAT(space="started"), WEAT(space="static"), SEAT()])
def test_scores_do_not_depend_on_the_batch(
    metric: WEAT | SEAT, lm: LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        Text(**{**vars(row), "text": f"This is about the word {row.text}."}) if isinstance(metric, SEAT) else row
        for row in WordSets(axes=("age",)).take()
    ]
    tables = []
    for tokens in (1, 60, 10_000):
        monkeypatch.setattr(scoring, "BATCH_TOKENS", {"cpu": tokens})
        tables.append(metric.score(lm, rows, quiet_run(tmp_path)))
    for other in tables[1:]:
        pd.testing.assert_frame_equal(tables[0], other, atol=1e-6, rtol=1e-5)
    assert 0 < metric.of(tables[0]) < 2
    assert metric.of(tables[0]) == pytest.approx(metric.of(tables[2]), abs=1e-4)


# What cannot be measured


def test_a_test_cut_short_is_left_out_and_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shared, "vectors", toy_vectors)
    rows = [row for row in toy_rows(("whole", "cut")) if row.id != "cut-targ2-1"]
    table = WEAT().score(None, rows, run := quiet_run(tmp_path))  # pyright: ignore[reportArgumentType]
    assert set(table["group"]) == {"whole"}
    assert "weat: left out cut, which has too few words" in (run.folder / "log.jsonl").read_text()
    with pytest.raises(Refusal, match=r"seat: no test has 2 targets on each side .*\(of cut\); raise --limit"):
        SEAT().score(None, [row for row in rows if row.group == "cut"], run)  # pyright: ignore[reportArgumentType]


def test_rows_of_no_set_and_vectors_without_direction_are_refused(tmp_path: Path) -> None:
    rows = [*toy_rows(), Text(id="odd", group="toy", text="odd")]
    with pytest.raises(Refusal, match=r"weat: row odd has the condition ''; .* targ1, targ2, attr1, attr2"):
        WEAT().score(None, rows, quiet_run(tmp_path))  # pyright: ignore[reportArgumentType]
    with pytest.raises(Refusal, match="weat: the vector of 'two' is zero"):
        unit_length(np.array([[1.0, 2.0], [0.0, 0.0]]), ["one", "two"], "weat")
    assert np.linalg.norm(unit_length(np.array([[3.0, 4.0]]), ["one"], "weat")) == pytest.approx(1)


def test_attributes_of_unequal_number_weigh_alike() -> None:
    w = np.array([[1.0, 0.0]])
    first, second = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, -1.0]])
    assert associations(w, first, second) == pytest.approx([1 - 1 / 4])


# The datasets


def write_test(folder: Path, name: str, size: int = 3) -> None:
    (folder / "seat").mkdir(exist_ok=True)
    content = {part: {"category": part, "examples": [f"{part} {n}" for n in range(size)]} for part in SETS}
    content["attr2"]["examples"].append("one more")
    (folder / "seat" / f"{name}.jsonl").write_text(json.dumps(content), encoding="utf-8")


def test_a_file_becomes_rows_set_by_set_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path))
    write_test(tmp_path, "weat10")
    rows = WordTests(axes=("age",)).take()
    assert [row.condition for row in rows] == [*SETS * 3, "attr2"]
    assert rows[5] == Text(id="weat10-targ2-1", axis="age", group="weat10", condition="targ2", text="targ2 1")
    assert len({row.id for row in rows}) == 13
    write_test(tmp_path, "sent-weat7b")
    assert {row.axis for row in SentenceTests(tests=("sent-weat7b",)).take()} == {"gender"}


def test_what_is_not_there_or_broken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path))
    with pytest.raises(Absent, match=r"sent-weat6\.jsonl .* EVENHAND_DATA .* word_sets, which comes with evenhand"):
        SentenceTests().take()
    write_test(tmp_path, "weat10")
    path = tmp_path / "seat" / "weat10.jsonl"
    path.write_text(path.read_text().replace('"attr1"', '"attr3"'))
    with pytest.raises(Refusal, match=r"weat10\.jsonl: attr1 has no list of texts called examples"):
        WordTests(axes=("age",)).take()
    path.write_text("{")
    with pytest.raises(Refusal, match=r"weat10\.jsonl is not valid JSON"):
        WordTests(axes=("age",)).take()
    with pytest.raises(
        Refusal, match="no association test about 'religion' here; choose from gender, race, age, other"
    ):
        WordTests(axes=("religion",)).take()
    with pytest.raises(Refusal, match="no association test 'weat11'; choose from weat6,"):
        WordTests(tests=("weat11",)).take()


def test_word_sets_are_plain_and_disjoint() -> None:
    for words in map(str.split, WORDS.values()):
        assert len(words) >= 8
        assert len(set(words)) == len(words)
        assert all(word.isalpha() for word in words)
    rows = WordSets().take()
    assert {row.axis for row in rows} == {"gender", "race", "religion", "age"}
    for test in {row.group for row in rows}:
        words = [row.text for row in rows if row.group == test]
        assert len(set(words)) == len(words), test
        targets = [sum(row.condition == side for row in rows if row.group == test) for side in ("targ1", "targ2")]
        assert targets[0] == targets[1], test


def test_any_beginning_can_be_measured(lm: LM, tmp_path: Path) -> None:
    for limit in (8, 13, 47, 99):
        table = WEAT().score(lm, WordSets().take(limit=limit), quiet_run(tmp_path))
        assert 0 <= WEAT().of(table) <= 2
        assert len(table) >= 4


def test_the_published_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(published()))
    sizes = {}
    for data in (WordTests(), SentenceTests(), WordTests(axes=("other",)), SentenceTests(axes=("other",))):
        for row in data.take():
            sizes.setdefault(row.group, dict.fromkeys(SETS, 0))[row.condition] += 1
    assert len(sizes) == 14 + 18 + 5 + 5
    assert tuple(sizes["weat6"].values()) == (8, 8, 8, 8)
    assert tuple(sizes["weat3"].values()) == (32, 32, 25, 25)
    assert tuple(sizes["sent-weat6"].values()) == (64, 64, 101, 112)
    assert tuple(sizes["sent-weat6b"].values())[:2] == (80, 80)
    assert tuple(sizes["sent-weat7"].values()) == (72, 72, 80, 80)
    assert all(each["targ1"] == each["targ2"] for each in sizes.values())


def test_our_word_lists_are_not_the_published_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(published()))
    theirs: dict[tuple[str, str], set[str]] = {}
    for row in [*WordTests().take(), *WordTests(axes=("other",)).take()]:
        theirs.setdefault((row.group, row.condition), set()).add(row.text.lower())
    for words in map(str.split, WORDS.values()):
        for name, each in theirs.items():
            assert len(each & set(map(str.lower, words))) <= 3, (name, words)
