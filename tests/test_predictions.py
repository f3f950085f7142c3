"""Scoring files of predictions: published ones give the published numbers, wrong ones a sentence."""

import json
import os
from pathlib import Path

import pytest

from evenhand import api, catalog
from evenhand.config import Refusal
from evenhand.data.labelled_sentences import LabelledSentences

GPT2 = {
    "": (83.6521, 57.0308, 71.8893),
    "intrasentence": (91.1149, 61.9315, 69.3722),
    "intersentence": (76.2646, 52.2785, 72.7892),
    "intrasentence gender": (93.2779, 62.6678, 69.6454),
    "intrasentence religion": (88.4598, 58.0230, 74.2655),
}


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real data, or a skip that says what is missing."""
    root = Path(os.environ.get("EVENHAND_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not (root / "oracles").exists():
        pytest.skip("published predictions: needs EVENHAND_DATA with oracles/")
    monkeypatch.setenv("EVENHAND_DATA", str(root))
    return root


def test_gpt2s_published_predictions_give_its_published_scores(real: Path) -> None:
    entry = api.score("stereoset", real / "oracles" / "stereoset" / "predictions_gpt2.json")
    for name, (lms, score, icat) in GPT2.items():
        part = entry["groups"][name] if name else entry
        assert (part["extra"]["lms"], part["value"], part["extra"]["icat"]) == pytest.approx(
            (lms, score, icat), abs=5e-5
        )
        assert part["low"] < part["value"] < part["high"]
    assert (entry["n"], entry["units"], entry["unit"]) == (4229, 79, "term")
    assert entry["data"]["name"] == "predictions_gpt2.json"


def test_unifiedqas_published_answers_give_its_published_scores(real: Path) -> None:
    file = real / "oracles" / "bbq" / "unifiedqa_preds_Age.jsonl"
    entry = api.score("bbq", file, bbq={"answers": "unifiedqa-t5-11b_pred_race"})
    found = (entry["extra"]["accuracy_ambiguous"], entry["extra"]["accuracy_disambiguated"], entry["value"])
    assert found == pytest.approx((0.5467, 0.9348, 0.2978), abs=5e-5)
    assert entry["unit"] == "template"
    with pytest.raises(Refusal, match=r"row 1: no column 'answer'.*--set bbq.answers=COLUMN.*pred_race"):
        api.score("bbq", file)


@pytest.mark.parametrize("name", ["label_f1", "tpr_gap"])
def test_a_classifiers_own_predictions(name: str, tmp_path: Path) -> None:
    rows = LabelledSentences().take("test")
    right = [{"id": row.id, "labels": list(row.labels)} for row in rows]
    file = tmp_path / "predictions.jsonl"
    file.write_text("\n".join(map(json.dumps, right)), encoding="utf-8")
    assert api.score(name, file)["value"] == catalog.load("metrics", name).ideal
    wrong = [line | {"labels": ["nothing of the kind"]} for line in right]
    file.write_text("\n".join(map(json.dumps, [*right[:60], *wrong[60:]])), encoding="utf-8")
    assert api.score("label_f1", file)["value"] < 1
    file.write_text("\n".join(map(json.dumps, right[1:])), encoding="utf-8")
    with pytest.raises(Refusal, match=f"no prediction for row {rows[0].id}; add it"):
        api.score(name, file)
    file.write_text('{"id": "1", "label": "x"}', encoding="utf-8")
    with pytest.raises(Refusal, match="row 1: it needs the columns id and labels"):
        api.score(name, file)


def test_what_cannot_be_scored_from_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="There is no file"):
        api.score("label_f1", tmp_path / "none.jsonl")
    (tmp_path / "x.json").write_text("{}", encoding="utf-8")
    with pytest.raises(Refusal, match="GAS cannot be scored from a file; measure a model instead"):
        api.score("gas", tmp_path / "x.json")
