"""label_f1 and tpr_gap against scikit-learn, a plain loop over transformers, and worked numbers."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from sklearn.preprocessing import MultiLabelBinarizer
from tiny import quiet_run, tiny_lm

from evenhand import scoring
from evenhand.config import Refusal
from evenhand.data._rows import Labelled
from evenhand.data.labelled_sentences import LabelledSentences
from evenhand.lm import LM
from evenhand.metrics._labels import decode, predict, prompt_of
from evenhand.metrics.label_f1 import LabelF1
from evenhand.metrics.tpr_gap import TPRGap
from evenhand.stats import resample

LABELS = ["anger", "joy", "contain", "very joy"]


def row(number: int, labels: tuple[str, ...], group: str = "") -> Labelled:
    return Labelled(id=f"r{number:03}", text=f"Text {number}.", labels=labels, group=group)


def random_rows(seed: int, several: bool, size: int = 60) -> tuple[list[Labelled], list[tuple[str, ...]]]:
    """Random gold and predicted sets; single labels, or none to three."""
    draw = np.random.default_rng(seed)

    def labels() -> tuple[str, ...]:
        count = int(draw.integers(0, 4)) if several else 1
        return tuple(str(each) for each in draw.choice(LABELS, count, replace=False))

    # Every label is there at least once, so that both sides mean the same classes.
    rows = [row(n, (LABELS[n],) if n < len(LABELS) else labels()) for n in range(size)]
    return rows, [labels() for _ in rows]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("several", [False, True])
def test_f1_equals_scikit_learn(seed: int, several: bool) -> None:
    rows, guesses = random_rows(seed, several)
    numbers = LabelF1().summarise(LabelF1().from_predictions(rows, guesses))
    names = sorted(LABELS)
    binarizer = MultiLabelBinarizer(classes=names)
    gold, guess = binarizer.fit_transform([each.labels for each in rows]), binarizer.transform(guesses)
    if not several:
        gold, guess = [each.labels[0] for each in rows], [each[0] for each in guesses]
    places = names if not several else list(range(len(names)))
    for average, value in (("weighted", numbers.value), ("macro", numbers.extra["macro_f1"])):
        expected = f1_score(gold, guess, labels=places, average=average, zero_division=0)
        assert value == pytest.approx(expected, abs=1e-12)
    assert numbers.extra["accuracy"] == pytest.approx(accuracy_score(gold, guess), abs=1e-12)


def test_an_answer_that_is_no_label_is_wrong_but_no_class() -> None:
    rows = [row(0, ("a",)), row(1, ("a",)), row(2, ("b",)), row(3, ("b",))]
    guesses = [("a",), ("nonsense",), ("b",), ()]
    numbers = LabelF1().summarise(LabelF1().from_predictions(rows, guesses))
    gold, guess = ["a", "a", "b", "b"], ["a", "-", "b", "-"]
    assert numbers.value == pytest.approx(f1_score(gold, guess, labels=["a", "b"], average="weighted", zero_division=0))
    assert numbers.value == pytest.approx(2 / 3)
    assert numbers.extra == pytest.approx({"macro_f1": 2 / 3, "accuracy": 0.5, "unanswered": 0.5})
    # A row without labels is answered by saying none; a label more makes the set wrong, not the label.
    several = [row(0, ()), row(1, ("a",)), row(2, ("b", "a"))]
    numbers = LabelF1().summarise(LabelF1().from_predictions(several, [(), ("a", "odd"), ("a", "b")]))
    assert numbers.value == 1
    assert numbers.extra == pytest.approx({"macro_f1": 1, "accuracy": 2 / 3, "unanswered": 0})


def test_f1_of_every_draw_equals_the_table_drawn_so() -> None:
    rows, guesses = random_rows(3, several=True, size=30)
    metric = LabelF1()
    table = metric.from_predictions(rows, guesses)
    drawn, taken = metric.draws(table), resample(np.eye(30)).astype(int)
    assert metric.report(table)["low"] <= metric.of(table) <= metric.report(table)["high"]
    for number in (0, 7, 1999):
        again = table.loc[np.repeat(np.arange(30), taken[number])]
        assert drawn[number] == pytest.approx(metric.of(again), abs=1e-12)


def test_predictions_of_another_shape_are_refused() -> None:
    with pytest.raises(Refusal, match="1 rows and 2 predictions"):
        LabelF1().from_predictions([row(0, ("a",))], [("a",), ("b",)])
    with pytest.raises(Refusal, match="give a tuple of labels"):
        TPRGap().from_predictions([row(0, ("a",), "x"), row(1, ("a",), "y")], ["a", "b"])


def test_one_label_is_chosen_or_every_label_above_an_even_share() -> None:
    scores = np.log([0.1, 0.45, 0.35, 0.1])
    assert decode("abcd", scores, several=False).labels == ("b",)
    assert decode("abcd", scores, several=True).labels == ("b", "c")
    assert decode("abcd", scores, several=True).shares == pytest.approx({"a": 0.1, "b": 0.45, "c": 0.35, "d": 0.1})
    assert decode("abcd", np.zeros(4), several=True).labels == ("a",)


def mean_loglikelihoods(lm: LM, prompt: str, labels: list[str]) -> list[float]:
    """One forward pass a label, nothing shared."""
    means = []
    for label in labels:
        before = lm.tokenizer(prompt).input_ids
        ids = lm.tokenizer(f"{prompt} {label}").input_ids
        with torch.inference_mode():
            logp = lm.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        means.append(
            sum(float(logp[place - 1, ids[place]]) for place in range(len(before), len(ids))) / (len(ids) - len(before))
        )
    return means


def test_the_models_choice_is_the_likeliest_label_whatever_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = tiny_lm("llama")
    rows = LabelledSentences().take("test", 10)
    labels = sorted({label for each in rows for label in each.labels})
    tables = []
    for tokens in (1, 100_000):
        monkeypatch.setattr(scoring, "BATCH_TOKENS", {"cpu": tokens})
        tables.append(LabelF1().score(lm, rows, quiet_run(tmp_path)))
    np.testing.assert_allclose(tables[0]["p_right"], tables[1]["p_right"], atol=1e-6)
    assert tables[0]["predicted"].tolist() == tables[1]["predicted"].tolist()
    for each, guess in zip(rows, tables[0]["predicted"], strict=True):
        means = mean_loglikelihoods(lm, prompt_of(each.text, labels), labels)
        assert guess == labels[int(np.argmax(means))]
    shares = predict(lm, rows, quiet_run(tmp_path), "test")[0].shares
    weights = np.exp(mean_loglikelihoods(lm, prompt_of(rows[0].text, labels), labels))
    assert list(shares.values()) == pytest.approx(weights / weights.sum(), rel=1e-4)
    with pytest.raises(Refusal, match="choosing needs two"):
        predict(lm, [rows[0]], quiet_run(tmp_path), "label_f1")


def counted(cells: dict[tuple[str, str], tuple[int, int]]) -> tuple[list[Labelled], list[tuple[str, ...]]]:
    """Rows and predictions with so many hits of so many rows in each (group, label)."""
    rows, guesses = [], []
    for (group, label), (hits, size) in cells.items():
        for number in range(size):
            rows.append(row(len(rows), (label,), group))
            guesses.append((label,) if number < hits else ("no label",))
    return rows, guesses


def test_the_gap_of_two_groups_by_hand() -> None:
    cells = {("m", "a"): (8, 10), ("f", "a"): (5, 10), ("m", "b"): (2, 4), ("f", "b"): (3, 4), ("m", "c"): (1, 9)}
    rows, guesses = counted(cells)
    metric = TPRGap()
    numbers = metric.summarise(metric.from_predictions(rows, guesses))
    # Label c has no row of group f and is left out.
    assert numbers.value == pytest.approx(np.sqrt((0.3**2 + 0.25**2) / 2))
    assert numbers.groups == {}
    assert numbers.extra["gap a"] == pytest.approx(0.5 - 0.8)
    assert numbers.extra["gap b"] == pytest.approx(0.25)
    assert numbers.extra["gap c"] == 0
    assert numbers.extra["tpr f"] == pytest.approx(8 / 14)
    assert numbers.extra["tpr m"] == pytest.approx(11 / 23)
    deviations = [0.15, -0.15, -0.125, 0.125]
    assert numbers.extra["against_overall"] == pytest.approx(np.sqrt(np.mean(np.square(deviations))))


def test_the_gap_of_three_groups_is_largest_minus_smallest() -> None:
    cells = {("x", "a"): (9, 10), ("y", "a"): (4, 10), ("z", "a"): (6, 10), ("x", "b"): (1, 2), ("z", "b"): (1, 1)}
    rows, guesses = counted(cells)
    metric = TPRGap()
    numbers = metric.summarise(metric.from_predictions([*rows, row(99, ("a",))], [*guesses, ()]))
    assert numbers.value == pytest.approx(np.sqrt((0.5**2 + 0.5**2) / 2))
    assert numbers.extra["gap a"] == numbers.extra["gap b"] == 0.5


def test_gaps_are_in_range_even_where_groups_vanish_from_a_draw() -> None:
    metric = TPRGap()
    for seed in range(5):
        draw = np.random.default_rng(seed)
        rows = [row(n, (str(draw.choice(["a", "b"])),), str(draw.choice(["m", "f"]))) for n in range(8)]
        rows += [row(8, ("a",), "m"), row(9, ("a",), "f")]
        table = metric.from_predictions(rows, [tuple(draw.choice(["a", "b"], 1)) for _ in rows])
        drawn, report = metric.draws(table), metric.report(table)
        assert np.isfinite(drawn).all()
        assert 0 <= drawn.min() <= drawn.max() <= 1
        assert report["low"] <= report["value"] <= report["high"]
    # As often right for both: no gap, whatever the rate; always right: no doubt either.
    even = counted({("m", "a"): (10, 20), ("f", "a"): (10, 20)})
    report = metric.report(metric.from_predictions(*even))
    assert (report["value"], report["low"]) == (0, 0)
    assert report["high"] > 0.1
    perfect = metric.report(metric.from_predictions(*counted({("m", "a"): (9, 9), ("f", "a"): (5, 5)})))
    assert perfect["value"] == perfect["low"] == perfect["high"] == 0


def test_a_gap_needs_two_groups(tmp_path: Path) -> None:
    rows = [row(0, ("a",), "m"), row(1, ("b",), "m")]
    with pytest.raises(Refusal, match=r"these rows have 1; .*data.group=COLUMN"):
        TPRGap().score(tiny_lm("llama"), rows, quiet_run(tmp_path))


def test_the_models_gap_is_that_of_its_predictions(tmp_path: Path) -> None:
    lm = tiny_lm("gpt2")
    rows = LabelledSentences().take("test")
    table = TPRGap().score(lm, rows, quiet_run(tmp_path))
    assert table["predicted"].tolist() == LabelF1().score(lm, rows, quiet_run(tmp_path))["predicted"].tolist()
    gaps = []
    for label in {each.labels[0] for each in rows}:
        hits = {
            group: np.mean(
                [
                    guess == label
                    for each, guess in zip(rows, table["predicted"], strict=True)
                    if (each.group, each.labels[0]) == (group, label)
                ]
            )
            for group in ("female", "male")
        }
        gaps.append(hits["female"] - hits["male"])
    assert TPRGap().of(table) == pytest.approx(np.sqrt(np.mean(np.square(gaps))))
    # A sentence and its other version are drawn together.
    assert len(TPRGap().units(table)) == len(rows) / 2


@pytest.mark.parametrize(("split", "size"), [("train", 72), ("test", 120)])
def test_the_sentences_are_balanced(split: str, size: int) -> None:
    rows = LabelledSentences().take(split)
    assert len(rows) == size == len({each.text for each in rows})
    cells = Counter((each.group, each.labels) for each in rows)
    assert len(cells) == 8
    assert len(set(cells.values())) == 1
    units = Counter(each.unit for each in rows)
    assert set(units.values()) == {2}
    for each in rows:
        words = set(each.text.lower().replace(".", "").replace(",", "").split())
        other = {"he", "his", "him"} if each.group == "female" else {"she", "her", "hers"}
        assert not words & other
        assert "{" not in each.text
        assert each.text[0].isupper()
    other_split = {"train": "test", "test": "train"}[split]
    assert not {each.text for each in rows} & {each.text for each in LabelledSentences().take(other_split)}
