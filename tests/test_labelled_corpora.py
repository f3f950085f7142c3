"""Corpora with labels, and SNLI: columns as upstream and the hub have them, splits apart, refusals with the remedy."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpora import (
    apart,
    bios_folder,
    hate_record,
    hatecheck_records,
    jigsaw_record,
    real_folder,
    snli_folder,
    write_csv,
)

from evenhand.config import Absent, Refusal
from evenhand.data import bias_in_bios, jigsaw
from evenhand.data._base import Dataset
from evenhand.data.bias_in_bios import BiasInBios
from evenhand.data.bug import BUG
from evenhand.data.bug_openings import BUGOpenings
from evenhand.data.hate_speech import HateSpeech
from evenhand.data.hatecheck import HateCheck
from evenhand.data.jigsaw import Jigsaw
from evenhand.data.snli import SNLI

SPLITS = ("train", "dev", "test")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (BUG(), r"balanced_BUG\.csv is in no folder bug.*https://github\.com/SLAB-NLP/BUG"),
        (BUG(part="gold"), r"gold_BUG\.csv is in no folder bug"),
        (BUGOpenings(), r"balanced_BUG\.csv is in no folder bug"),
        (Jigsaw(), r"neither jigsaw/train\.csv nor jigsaw/all_data\.csv.*kaggle.*data\.comments=toxic"),
        (Jigsaw(comments="toxic"), r"no jigsaw_toxic/test\.csv"),
        (BiasInBios(), r"no bias_in_bios/test\.parquet.*or go online"),
        (SNLI(), r"no snli_devtest/s1\.dev and s1\.test"),
        (HateSpeech(), r"no measuring_hate_speech/measuring-hate-speech\.parquet"),
        (HateCheck(), r"no hatecheck/test_suite_cases\.csv"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Dataset) else "",
)
def test_what_is_absent_says_where_to_get_it(data: Dataset, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenhand.data._base.ask_hub", lambda: False)
    with pytest.raises(Absent, match=message):
        data.take("test")


@pytest.mark.parametrize(
    ("data", "file"),
    [
        (BiasInBios(), "bias_in_bios/test.csv"),
        (Jigsaw(), "jigsaw/train.csv"),
        (Jigsaw(comments="toxic"), "jigsaw_toxic/test.csv"),
        (SNLI(), "snli_devtest/s1.test"),
        (HateSpeech(), "measuring_hate_speech/all.csv"),
        (HateCheck(), "hatecheck/test_suite_cases.csv"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_is_not_utf8_is_refused(data: Dataset, file: str, folder: Path) -> None:
    snli_folder(folder)
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_bytes("Käse,0\n".encode("latin-1"))
    with pytest.raises(Refusal, match=rf"^{Path(file).name} is not UTF-8 text; save it as UTF-8\.$"):
        data.take("test")


# Bias in Bios


def test_bias_in_bios_names_the_numbered_professions(folder: Path) -> None:
    bios_folder(folder)
    professions = bias_in_bios.PROFESSIONS
    assert list(professions) == sorted(professions)
    assert len(set(professions)) == 28
    for split, group in (("train", "female"), ("dev", "female"), ("test", "male")):
        rows = sorted(BiasInBios().take(split), key=lambda row: int(row.id.split("-")[1]))
        assert [row.labels for row in rows] == [(name,) for name in professions]
        assert {row.group for row in rows} == {group}
        assert rows[0].text == "She works in town 0."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"profession": 28}, r"test\.jsonl, row 1: .*profession 28 is not 0 to 27.*LabHC/bias_in_bios"),
        ({"gender": "x"}, r"row 1: gender is 'x' and no number"),
        ({"hard_text": ""}, r"row 1: hard_text is empty"),
        ("gender", r'row 1: no column "gender" \(columns: hard_text, profession\); take LabHC/bias_in_bios'),
    ],
)
def test_wrong_biographies_are_refused(change: Any, message: str, folder: Path) -> None:
    record: dict[str, Any] = {"hard_text": "She works.", "profession": 3, "gender": 1}
    if isinstance(change, str):
        del record[change]
    else:
        record |= change
    (folder / "bias_in_bios").mkdir()
    (folder / "bias_in_bios/test.jsonl").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(Refusal, match=message):
        BiasInBios().take("test")


def hub(monkeypatch: pytest.MonkeyPatch, module: str, table: Callable[[str], Any]) -> None:
    """Let the hub have this table for each of its splits."""
    monkeypatch.delenv("EVENHAND_DATA", raising=False)
    monkeypatch.setattr(f"evenhand.data.{module}.from_hub", lambda source, config, split, local: table(split))


def test_the_hub_columns_give_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [{"hard_text": "He sings.", "profession": 5, "gender": 0}]
    hub(monkeypatch, "bias_in_bios", lambda split: records)
    (row,) = BiasInBios().take("dev")
    assert (row.labels, row.group, row.text) == (("composer",), "male", "He sings.")
    hub(monkeypatch, "hate_speech", lambda split: [hate_record(4, 0.7, "black")] * 2 if split == "train" else [])
    (row,) = (row for split in SPLITS for row in HateSpeech().rows(split))
    assert (row.labels, row.group) == (("hateful",), "black")
    hub(monkeypatch, "hatecheck", lambda split: [{**hatecheck_records()[2], "target_ident": None}])
    (row,) = (row for split in ("train", "test") for row in HateCheck().rows(split))
    assert (row.labels, row.group, row.axis) == (("non-hateful",), "", "")
    premises = {
        "train": ["A cat.", "A cat .", "A dog."],
        "validation": ["A hen.", "A fox."],
        "test": ["a dog", "A hen"],
    }
    hub(monkeypatch, "snli", lambda split: {"premise": premises[split]})
    assert {split: [row.text for row in SNLI().take(split)] for split in SPLITS} == {
        "train": ["A cat."],
        "dev": ["A fox."],
        "test": [row.text for row in SNLI().take("test")],
    }
    assert {row.text for row in SNLI().take("test")} == {"a dog", "A hen"}


# Jigsaw


def test_jigsaw_takes_the_identity_most_readers_saw(folder: Path) -> None:
    records = [
        jigsaw_record(1, "one", 0.5, female=0.5),
        jigsaw_record(2, "two", 0.49, female=0.5, muslim=0.9),
        jigsaw_record(3, "three", 0.9, white=0.49),
        jigsaw_record(4, "four", 0.9, **dict.fromkeys(jigsaw.AXIS_OF.keys() & jigsaw_record(0, "", 0), "")),
        jigsaw_record(5, "Two!", 0.9, black=1.0),
    ]
    write_csv(folder / "jigsaw/train.csv", records)
    found = {row.text: (row.labels[0], row.group, row.axis) for split in SPLITS for row in Jigsaw().rows(split)}
    assert found == {
        "one": ("toxic", "female", "gender"),
        "two": ("civil", "muslim", "religion"),
        "three": ("toxic", "", ""),
    }


def test_jigsaw_reads_the_other_file_s_name_of_the_score(folder: Path) -> None:
    record = jigsaw_record(1, "one", 0.7, black=1)
    record["toxicity"] = record.pop("target")
    write_csv(folder / "jigsaw/all_data.csv", [record])
    (row,) = (row for split in SPLITS for row in Jigsaw().rows(split))
    assert (row.labels, row.group, row.axis) == (("toxic",), "black", "race")


@pytest.mark.parametrize("name", ["comment_text", "target", "muslim"])
def test_jigsaw_without_a_column_is_refused(name: str, folder: Path) -> None:
    record = jigsaw_record(1, "one", 0.7)
    del record[name]
    write_csv(folder / "jigsaw/train.csv", [record])
    with pytest.raises(Refusal, match=rf'train\.csv: no column "{name}" \(columns: .*take the file from https://www'):
        Jigsaw().take("train")


def test_jigsaw_scores_must_be_numbers(folder: Path) -> None:
    write_csv(folder / "jigsaw/train.csv", [jigsaw_record(1, "one", 0.7), jigsaw_record(2, "two", 0.7, black="yes")])
    with pytest.raises(Refusal, match=r"train\.csv, row 2: black is 'yes' and no number; write the share of readers"):
        Jigsaw().take("train")


def test_the_older_comments_have_no_header(folder: Path) -> None:
    (folder / "jigsaw_toxic").mkdir()
    path = folder / "jigsaw_toxic/test.csv"
    path.write_text('"Well done, all",0\nGo away,1\n', encoding="utf-8")
    rows = [row for split in SPLITS for row in Jigsaw(comments="toxic").rows(split)]
    assert {row.text: row.labels[0] for row in rows} == {"Well done, all": "civil", "Go away": "toxic"}
    path.write_text("text,label\n", encoding="utf-8")
    with pytest.raises(Refusal, match=r"test\.csv, row 1: not a comment and 0 or 1; write those two cells"):
        Jigsaw(comments="toxic").take("train")


def test_the_real_older_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(real_folder("jigsaw_toxic/test.csv")))
    found = apart(Jigsaw(comments="toxic"))
    labels = Counter(row.labels[0] for rows in found.values() for row in rows)
    assert sum(labels.values()) == 12155
    assert labels["toxic"] == pytest.approx(labels["civil"], rel=0.01)


# SNLI


def test_snli_gives_each_premise_once(folder: Path) -> None:
    snli_folder(folder)
    found = apart(SNLI())
    assert len(found["train"]) + len(found["dev"]) == len(found["test"]) == 150
    assert all(row.text.startswith("A dev cat") for split in ("train", "dev") for row in found[split])
    assert all(re.fullmatch(r"A test cat sleeps on mat \d+, alone\.", row.text) for row in found["test"])
    (folder / "snli_devtest/s1.train").write_text("A test cat sleeps on mat 3 , alone .\nA bird .\n", encoding="utf-8")
    assert [row.text for row in SNLI().take("train")] == ["A bird."]
    assert len(SNLI().take("dev")) == 150


def test_the_real_snli(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(real_folder("snli_devtest/s1.dev")))
    assert {split: len(rows) for split, rows in apart(SNLI()).items()} == {"train": 2981, "dev": 336, "test": 3323}


# Hate speech


def test_hate_speech_counts_annotators_and_keeps_a_comment_once(folder: Path) -> None:
    records = [
        *(hate_record(1, 0.6, races) for races in ("black white", "black", "white black")),
        *(hate_record(2, 0.5, races) for races in ("asian", "")),
        *(hate_record(3, 2.0, races) for races in ("asian", "", "")),
        hate_record(4, -1.0, "white"),
    ]
    write_csv(folder / "measuring_hate_speech/all.csv", records)
    found = {row.id: (row.labels[0], row.group) for split in SPLITS for row in HateSpeech().rows(split)}
    assert found == {
        "comment-1": ("hateful", "black"),
        "comment-2": ("non-hateful", "asian"),
        "comment-4": ("non-hateful", "white"),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("target_race_white", r'all\.csv, row 1: no column "target_race_white".*take ucberkeley-dlab'),
        ({"hate_speech_score": "high"}, r"row 1: hate_speech_score is 'high' and no number"),
        ({"text": " "}, r"row 1: text is empty"),
    ],
)
def test_wrong_hate_speech_is_refused(change: Any, message: str, folder: Path) -> None:
    record = hate_record(1, 0.6, "black")
    if isinstance(change, str):
        del record[change]
    else:
        record |= change
    write_csv(folder / "measuring_hate_speech/all.csv", [record])
    with pytest.raises(Refusal, match=message):
        HateSpeech().take("train")


# HateCheck


def test_hatecheck_keeps_a_template_in_one_split(folder: Path) -> None:
    write_csv(folder / "hatecheck/test_suite_cases.csv", hatecheck_records())
    found = apart(HateCheck())
    assert sum(map(len, found.values())) == 120
    assert not {row.unit for row in found["train"]} & {row.unit for row in found["test"]}
    row = next(row for rows in found.values() for row in rows if row.id == "case-4")
    assert (row.group, row.axis, row.labels, row.unit) == ("immigrants", "origin", ("hateful",), "template-1")
    assert row.text == "I have met immigrants on day 1."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label_gold": "bad"}, r"row 1: .*label_gold 'bad' is neither hateful nor non-hateful.*hatecheck-data"),
        ({"target_ident": "bakers"}, r"target_ident 'bakers' is no known group"),
        ("templ_id", r'row 1: no column "templ_id".*take test_suite_cases\.csv from'),
    ],
)
def test_wrong_hatecheck_is_refused(change: Any, message: str, folder: Path) -> None:
    record = hatecheck_records()[0]
    if isinstance(change, str):
        del record[change]
    else:
        record |= change
    write_csv(folder / "hatecheck/test_suite_cases.csv", [record])
    with pytest.raises(Refusal, match=message):
        HateCheck().take("train")


def test_the_real_hatecheck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(real_folder("hatecheck/test_suite_cases.csv")))
    found = apart(HateCheck())
    assert {split: len(rows) for split, rows in found.items()} == {"train": 2618, "test": 1110}
    assert not {row.unit for row in found["train"]} & {row.unit for row in found["test"]}
    assert Counter(row.labels[0] for rows in found.values() for row in rows) == {"hateful": 2563, "non-hateful": 1165}
    assert min(Counter(row.group for row in found["test"] if row.group).values()) > 130
