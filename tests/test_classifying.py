"""Classifiers fit a few rows with each method, load again as they were, and their files score the same anywhere."""

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import quiet_run, tiny_folder
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from evenhand import api, cli
from evenhand.classifying import Classifying, Lesson, fit_classifier, load, prepared, scored, terms
from evenhand.config import Refusal
from evenhand.data._rows import Labelled
from evenhand.metrics._labels import Prediction

WORK = {"nurse": "cares for the sick", "driver": "drives the bus"}
WHEN = ("today", "every night", "in town", "alone")
ROWS = [
    Labelled(id=f"{label}-{who}-{when}", group=who, text=f"{who} {work} {when}", labels=(label,))
    for label, work in WORK.items()
    for who in ("he", "she")
    for when in WHEN
]
QUICK: dict[str, Any] = {"epochs": 12, "batch": 16, "rate": 1e-2, "words": ("gender",), "alpha": 0.1}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny encoder as a transformers folder."""
    return str(tiny_folder(tmp_path_factory.mktemp("models") / "bert", "bert"))


def changed(rows: list[Labelled], **fields: Any) -> list[Labelled]:
    """The same rows but for these fields."""
    return [dataclasses.replace(row, **fields) for row in rows]


@pytest.mark.parametrize("method", ["vanilla", "crawd", "adversarial"])
def test_a_classifier_fits_and_everything_it_leaves_says_the_same(method: Any, bert: str, tmp_path: Path) -> None:
    """16 rows are learnt; file, table, saved model and results agree."""
    out = tmp_path / "run"
    results = fit_classifier(bert, ROWS, ROWS, out, Classifying(method=method, **QUICK), quiet=True)
    assert results["accuracy"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert (results["macro_f1"]["value"], results["scores"]["tpr_gap"]["value"]) == (1.0, 0.0)
    assert json.loads((out / "results.json").read_text("utf-8")) == results
    assert (out / "report.html").exists()
    assert not out.with_name("run.part").exists()

    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps(dataclasses.asdict(row)) for row in ROWS), encoding="utf-8")
    for name in ("label_f1", "tpr_gap"):
        found = api.score(name, out / "predictions.jsonl", str(rows))
        assert {**found, "data": None} == {**results["scores"][name], "data": None}

    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text("utf-8").splitlines()]
    assert [line["id"] for line in lines] == [row.id for row in ROWS]
    model = AutoModelForSequenceClassification.from_pretrained(out / "model")
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    assert not hasattr(model, "adversary")
    assert model.config.words == (["he", "she"] if method == "crawd" else [])
    with torch.no_grad():
        for row, line in zip(ROWS, lines, strict=True):
            shares = model(torch.tensor([tokenizer(row.text).input_ids])).logits[0].softmax(-1)
            told = {model.config.id2label[place]: share for place, share in enumerate(shares.tolist())}
            assert told == pytest.approx(line["probabilities"], abs=1e-5)
    width = model.classifier.in_features // 2
    assert bool(model.classifier.weight[:, width:].any()) == (method == "crawd")  # else a plain head on H_x
    assert bool(model.block.reference_mask.any()) == (method == "crawd")


def test_wrong_predictions_have_intervals_and_a_gap(tmp_path: Path) -> None:
    """One of 16 is wrong: a man who drives and was taken for a nurse."""
    test = [*ROWS[:8], dataclasses.replace(ROWS[0], id="wrong", labels=("driver",)), *ROWS[9:]]
    predictions = [Prediction(row.labels if row.id != "wrong" else ("nurse",), {}) for row in test]
    results = scored(test, predictions, quiet_run(tmp_path))
    assert results["accuracy"]["value"] == 15 / 16
    assert results["accuracy"]["low"] < 15 / 16 < results["accuracy"]["high"] == 1
    gaps = results["scores"]["tpr_gap"]
    assert gaps["extra"]["gap driver"] == -1 / 4
    assert gaps["value"] == pytest.approx((1 / 16 / 2) ** 0.5)


def test_the_adversary_turns_the_gradient_round(bert: str) -> None:
    """The body gets -alpha times the adversary's gradient, the adversary its own; a row about nobody adds nothing."""
    found = {}
    for alpha in (0.0, 1.0, 3.0):
        torch.manual_seed(0)
        settings = Classifying(method="adversarial", alpha=alpha)
        lm = load(bert, ["driver", "nurse"], settings)
        lm.model.eval()
        encoded = lm.tokenizer([row.text for row in ROWS]).input_ids
        lesson = Lesson(encoded, [0] * 16, [0, 1] * 4 + [-1] * 8, None)
        with prepared(lm.model, 2, settings) as pooled:
            loss = terms(lm, lesson, list(range(16)), pooled, settings)["adversary"]
            loss.backward()
            few = terms(lm, lesson, list(range(8)), pooled, settings)["adversary"]
            assert few.item() == pytest.approx(loss.item(), rel=1e-4)
            assert set(terms(lm, lesson, [15], pooled, settings)) == {"cross_entropy"}
            own = lm.model.adversary[0].weight.grad.clone()
        assert not hasattr(lm.model, "adversary")
        assert not lm.model.dropout._forward_pre_hooks
        body = lm.model.body.get_input_embeddings().weight.grad
        found[alpha] = (own, body.clone())
    torch.testing.assert_close(found[1.0][0], found[3.0][0])
    assert found[1.0][0].any()
    assert not found[0.0][1].any()
    torch.testing.assert_close(3 * found[1.0][1], found[3.0][1], rtol=1e-4, atol=1e-6)


def test_what_cannot_be_trained_is_refused_before_anything_is_made(bert: str, tmp_path: Path) -> None:
    one = [row for row in ROWS if row.labels == ("nurse",)]
    nobody = changed(ROWS, group="")
    for rows, test, method, message in (
        (one, ROWS, "vanilla", r"have 1 label\(s\); choosing needs two"),
        ([], ROWS, "vanilla", r"have 0 label\(s\)"),
        (ROWS, [], "vanilla", "no test rows"),
        (changed(ROWS, labels=("a", "b")), ROWS, "vanilla", "has 2 labels"),
        (nobody, ROWS, "adversarial", "two groups of people"),
    ):
        with pytest.raises(Refusal, match=message):
            fit_classifier(bert, rows, test, tmp_path / "run", Classifying(method=method))  # pyright: ignore
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Refusal, match="There is no model 'nobody/nothing'"):
        fit_classifier("nobody/nothing", ROWS, ROWS, tmp_path / "run", quiet=True)


def test_rows_without_groups_are_scored_but_for_the_gap(bert: str, tmp_path: Path) -> None:
    """And an interrupted run goes on with the model it had."""
    nobody = changed(ROWS, group="")
    settings = Classifying(**QUICK | {"epochs": 1})
    results = fit_classifier(bert, nobody, nobody, tmp_path / "run", settings, quiet=True)
    assert list(results["scores"]) == ["label_f1"]
    assert "compares groups of people, and these rows have 0" in results["failed"]["tpr_gap"]
    with pytest.raises(Refusal, match="exists already"):
        fit_classifier(bert, nobody, nobody, tmp_path / "run", settings, quiet=True)

    (tmp_path / "run" / "results.json").unlink()
    (tmp_path / "run").rename(tmp_path / "run.part")
    before = (tmp_path / "run.part" / "predictions.jsonl").read_text("utf-8")
    again = fit_classifier(bert, nobody, nobody, tmp_path / "run", settings, quiet=True)
    assert again == results  # the seconds of the training too: it was not trained again
    assert (tmp_path / "run" / "predictions.jsonl").read_text("utf-8") == before


def test_the_example_of_the_page_runs(inside: Path, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of docs/classifiers.md, with a tiny decoder for its encoder and few rows; then its commands."""
    page = (Path(__file__).parents[1] / "docs" / "classifiers.md").read_text("utf-8")
    code = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0]
    assert code.count('MODEL = "') == code.count('take("train")') == 1
    code = re.sub(r'MODEL = ".*"', f"MODEL = {tiny!r}", code).replace('take("train")', 'take("train", 64)')
    exec(code, {})
    assert (inside / "runs" / "crawd" / "model" / "model.safetensors").exists()
    lines = re.findall(r"^evenhand .*$", page, flags=re.MULTILINE)
    assert [line.split()[1] for line in lines] == ["score", "score", "compare"]
    for line in lines:
        monkeypatch.setattr("sys.argv", shlex.split(line))
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code, line
