"""Datasets: the paper's counts, splits that share nothing, and files that are refused by name, row and remedy."""

import csv
import gzip
import itertools
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evenhand.config import Refusal, build
from evenhand.data._base import checksum
from evenhand.data._rows import Choice, Labelled, Pair, Prompt, Row, Text
from evenhand.data.file import File
from evenhand.data.genbiaseval import GenBiasEval
from evenhand.data.genhinteval import ACTIONS, GenHintEval
from evenhand.data.plain_text import PlainText
from evenhand.data.wikitext import WikiText
from evenhand.words import AXES, PROFESSIONS

SPLITS = ("train", "dev", "test")
GENDERED = re.compile(r"man|woman|lady|girl|boy|mother|father|husband|wife|king|queen|nun|monk|\w+ess")


def upstream(relative: str) -> Path:
    """A file under EVENHAND_DATA, or a skip that says what is missing."""
    root = os.environ.get("EVENHAND_DATA")
    path = Path(root or "") / relative
    if not root or not path.exists():
        pytest.skip(f"EVENHAND_DATA names no folder with {relative}")
    return path


# GenBiasEval


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("axis", AXES)
def test_genbiaseval_has_the_counts_of_table_1(axis: str, seed: int) -> None:
    data = build(GenBiasEval, {"axis": axis, "seed": seed}, "data")
    splits = {split: data.take(split) for split in SPLITS}
    assert [len(splits[split]) for split in SPLITS] == [943, 471, 944]
    counts = {split: Counter(row.group for row in rows) for split, rows in splits.items()}
    assert [counts[split]["word"] for split in SPLITS] == [326, 152, 308]
    assert [counts[split]["phrase"] for split in SPLITS] == [299, 157, 330]
    assert [counts[split]["sentence"] for split in SPLITS] == [318, 162, 306]


def test_genbiaseval_splits_share_no_prompt_and_miss_none() -> None:
    texts = [row.text for split in SPLITS for row in GenBiasEval().take(split)]
    assert len(texts) == len(set(texts)) == 2358 == 9 * len(PROFESSIONS)
    endings = Counter(text.removeprefix(f"The {subject} ") for text, subject in prompts_with_subject())
    assert set(endings.values()) == {262}
    assert len(endings) == 9


def prompts_with_subject() -> list[tuple[str, str]]:
    return [(row.text, row.subject) for split in SPLITS for row in GenBiasEval().take(split)]


def test_genbiaseval_is_the_same_on_every_machine() -> None:
    rows = GenBiasEval().take("test")
    assert rows[0].text == "The historian called the office because"
    assert checksum(rows) == checksum(GenBiasEval().take("test")) == "8ecd3e01e05f"
    assert checksum(GenBiasEval().take("train")) == "2d1c89d47dbe"


def test_another_seed_draws_other_splits_of_the_same_prompts() -> None:
    one, other = GenBiasEval().take("test"), GenBiasEval(seed=1).take("test")
    assert {row.text for row in one} != {row.text for row in other}
    every = [sorted(row.text for split in SPLITS for row in GenBiasEval(seed=seed).take(split)) for seed in (0, 1)]
    assert every[0] == every[1]


def test_every_beginning_of_the_test_is_a_fair_sample() -> None:
    counts = Counter(row.group for row in GenBiasEval().take("test", 150))
    assert all(30 <= counts[scale] <= 70 for scale in ("word", "phrase", "sentence"))


@pytest.mark.parametrize(
    ("axis", "words", "ending"),
    [
        ("gender", ("he", "she"), " because"),
        ("race", ("white", "black", "Asian"), "; by race, the {} is"),
        ("religion", ("Christian", "Muslim", "Jewish"), "; by religion, the {} is"),
        ("age", ("young", "old"), "; as for age, the {} is quite"),
    ],
)
def test_the_four_axes_ask_for_their_words(axis: str, words: tuple[str, ...], ending: str) -> None:
    for row in build(GenBiasEval, {"axis": axis}, "data").take("test"):
        assert row.words == words
        assert row.axis == axis
        assert row.hint == ""
        assert row.text.startswith(f"The {row.subject} ")
        assert row.text.endswith(ending.format(row.subject))


def test_an_unknown_axis_is_refused() -> None:
    with pytest.raises(Refusal, match=r"'axis'.*'gender', 'race', 'religion' or 'age'"):
        build(GenBiasEval, {"axis": "height"}, "dataset genbiaseval")


# Professions


def test_professions_are_262_and_name_no_gender() -> None:
    assert len(PROFESSIONS) == len(set(PROFESSIONS)) == 262
    for profession in PROFESSIONS:
        assert profession == profession.strip().lower()
        found = [word for word in profession.split() if GENDERED.fullmatch(word) or gender_part(word)]
        assert not found, f"{profession} names a gender"


def gender_part(word: str) -> bool:
    """Whether a word ends in man, woman, lady, girl or boy (a fisherman, a cowboy)."""
    return re.search(r"(man|men|lady|girl|boy)$", word) is not None


def test_the_gender_check_can_fail() -> None:
    assert all(gender_part(word) or GENDERED.fullmatch(word) for word in ("policeman", "woman", "actress", "cowboy"))
    assert not any(gender_part(word) or GENDERED.fullmatch(word) for word in ("manager", "commander", "nurse"))


def test_professions_come_from_bolukbasi() -> None:
    listed = json.loads(upstream("professions/professions.json").read_text(encoding="utf-8"))
    factual = {name.replace("_", " "): score for name, score, _ in listed}
    assert len(listed) == 320
    assert [name for name in PROFESSIONS if abs(factual[name]) > 0.25] == []


# GenHintEval


def test_genhinteval_hints_each_gender_equally_often() -> None:
    rows = GenHintEval().take("test")
    assert len({row.text for row in rows}) == len(rows) == 786
    assert Counter(row.hint for row in rows) == {"he": 393, "she": 393}
    for row in rows:
        slots = Counter(row.text.split())
        assert (slots["his"], slots["her"]) == ((1, 0) if row.hint == "he" else (0, 1))
        assert row.group == row.hint


@pytest.mark.parametrize("axis", ["race", "religion"])
def test_genhinteval_hints_three_words_equally_often(axis: str) -> None:
    rows = build(GenHintEval, {"axis": axis}, "data").take("test")
    assert Counter(row.hint for row in rows) == dict.fromkeys(AXES[axis].words, 262)
    assert all(f"who is {row.hint}," in row.text for row in rows)


def test_genhinteval_splits_share_no_action() -> None:
    for one, other in itertools.combinations(SPLITS, 2):
        assert not set(ACTIONS[one]) & set(ACTIONS[other])
        assert not {row.text for row in GenHintEval().take(one)} & {row.text for row in GenHintEval().take(other)}


def test_genhinteval_order_changes_with_the_seed_and_its_rows_do_not() -> None:
    one, other = GenHintEval().take("test"), GenHintEval(seed=1).take("test")
    assert [row.id for row in one] != [row.id for row in other]
    assert sorted(map(repr, one)) == sorted(map(repr, other))


# Plain text


def test_plain_text_is_240_sentences_in_two_halves() -> None:
    train, test = (PlainText().take(split) for split in ("train", "test"))
    sentences = [row.text for row in (*train, *test)]
    assert len(train) == len(test) == 120
    assert len(set(sentences)) == 240
    assert all(re.fullmatch(r"[A-Z].{10,}[.!?]", sentence) for sentence in sentences)


# WikiText


def test_wikitext_has_the_rows_of_the_hub() -> None:
    upstream("wikitext2_raw/test.raw.gz")
    rows = WikiText().take("test")
    assert len(rows) == 4358
    assert rows[0].text == ""
    assert rows[1].text == " = Robert Boulter = \n"
    assert all(row.text == "" or row.text.strip() for row in rows)


@pytest.mark.parametrize("packed", [False, True])
def test_wikitext_reads_the_upstream_format(packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "wikitext2_raw"
    folder.mkdir()
    text = " \n = Märchen = \n \n Once upon a time . \n"
    for name in ("test", "valid"):
        if packed:
            (folder / f"{name}.raw.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / f"{name}.raw").write_text(text, encoding="utf-8")
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path))
    expected = ["", " = Märchen = \n", "", " Once upon a time . \n"]
    assert [row.text for row in WikiText().take("test")] == expected
    assert [row.id for row in WikiText().take("validation")] == [f"validation-{number}" for number in range(4)]


def test_wikitext_without_file_or_hub_names_both_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("no hub")

    monkeypatch.delenv("EVENHAND_DATA", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(
        Refusal, match=r"EVENHAND_DATA names has no wikitext2_raw/test.raw.gz; put that file there.*or go online"
    ):
        WikiText().take("test")


# A user's own file

RECORDS: list[dict[str, Any]] = [
    {"id": "a", "text": "The nurse, tired, said that", "group": "work", "hint": "she", "subject": "nurse"},
    {"id": "b", "text": 'The "boss" said | that', "group": "work", "hint": "he", "subject": "boss"},
    {"id": "c", "text": "Der Bäcker 🥐 sagte", "group": "food", "hint": "he", "subject": "Bäcker"},
]


def write(folder: Path, records: list[dict[str, Any]], ending: str, name: str = "rows") -> Path:
    """The same records in any of the formats."""
    path = folder / f"{name}{ending}"
    if ending == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    elif ending == ".parquet":
        pd.DataFrame(records).to_parquet(path, index=False)
    else:
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(records[0]), delimiter="\t" if ending == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(records)
    return path


def taken(path: Path, **settings: Any) -> list[Row]:
    return build(File, {"path": str(path), "rows_are": "Prompt", **settings}, f"file {path}").take("test")


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    expected = [Prompt(**record, axis="gender", words=("he", "she")) for record in RECORDS]
    for ending in (".jsonl", ".csv", ".tsv", ".parquet"):
        assert taken(write(tmp_path, RECORDS, ending)) == expected, ending


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_a_missing_column_names_file_row_columns_and_remedy(ending: str, tmp_path: Path) -> None:
    path = write(tmp_path, [{"bio": "She is a nurse", "gender": "f"}], ending, "bios")
    with pytest.raises(Refusal) as refused:
        taken(path)
    assert str(refused.value) == (
        f'bios{ending}, row 1: no column "text" (columns: bio, gender). Name it with --set data.text=COLUMN.'
    )


def test_the_row_that_lacks_a_value_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "One"}\n\n{"text": "Two"}\n{"words": "a|b"}\n', encoding="utf-8")
    with pytest.raises(Refusal, match=r"rows\.jsonl, row 4: no column \"text\" \(columns: words\)"):
        taken(path)


def test_columns_can_be_renamed(tmp_path: Path) -> None:
    records = [{"bio": "The nurse said", "who": "nurse", "part": "work", "choice": "a|b", "told": "a"}]
    names = {"text": "bio", "subject": "who", "group": "part", "words": "choice", "hint": "told"}
    (row,) = taken(write(tmp_path, records, ".jsonl"), **names)
    assert row == Prompt(
        id="row-1", axis="gender", group="work", text="The nurse said", words=("a", "b"), subject="nurse", hint="a"
    )


@pytest.mark.parametrize("words", [["white", "black"], "white|black", "white | black"])
def test_words_are_a_list_or_cut_at_bars(words: Any, tmp_path: Path) -> None:
    (row,) = taken(write(tmp_path, [{"text": "The nurse is", "words": words}], ".jsonl"))
    assert isinstance(row, Prompt)
    assert row.words == ("white", "black")


def test_words_left_out_are_those_of_the_axis(tmp_path: Path) -> None:
    (row,) = taken(write(tmp_path, [{"text": "The nurse is"}], ".csv"), axis="religion")
    assert row == Prompt(id="row-1", axis="religion", text="The nurse is", words=AXES["religion"].words)


@pytest.mark.parametrize(
    ("kind", "record", "expected"),
    [
        ("Text", {"text": "Hello"}, Text(id="row-1", text="Hello")),
        ("Pair", {"more": "A", "less": "B"}, Pair(id="row-1", more="A", less="B")),
        (
            "Choice",
            {"context": "Who?", "options": ["x", "y"], "answer": 0, "stereotyped": 1},
            Choice(id="row-1", context="Who?", options=("x", "y"), answer=0, stereotyped=1),
        ),
        (
            "Labelled",
            {"text": "Hi", "labels": "kind|short", "axis": "age"},
            Labelled(id="row-1", axis="age", text="Hi", labels=("kind", "short")),
        ),
    ],
)
def test_a_file_holds_any_kind_of_row(kind: str, record: dict[str, Any], expected: Row, tmp_path: Path) -> None:
    assert taken(write(tmp_path, [record], ".jsonl"), rows_are=kind) == [expected]


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    for ending, content in ((".jsonl", ""), (".jsonl", "\n\n"), (".csv", ""), (".csv", "text,words\n")):
        path = tmp_path / f"empty{ending}"
        path.write_text(content, encoding="utf-8")
        with pytest.raises(Refusal, match=rf"empty{ending} has no rows"):
            taken(path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [('{"text": "Two"', "not valid JSON"), ('["Two"]', "not a JSON object"), ("null", "not a JSON object")],
)
def test_a_broken_json_line_is_named(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "One"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(Refusal, match=rf"rows\.jsonl, row 2: {reason}"):
        taken(path)


def test_a_row_with_too_many_cells_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,group\nfine,a\nnot, quoted,a\n", encoding="utf-8")
    with pytest.raises(Refusal, match=r"rows\.csv, row 2: more cells than columns; quote"):
        taken(path)


def test_text_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    for ending, content in ((".csv", "text\nDer Bäcker\n"), (".jsonl", '{"text": "Der Bäcker"}\n')):
        path = tmp_path / f"latin{ending}"
        path.write_bytes(content.encode("latin-1"))
        with pytest.raises(Refusal, match=rf"latin{ending}.*UTF-8"):
            taken(path)


def test_other_endings_and_broken_parquet_are_refused(tmp_path: Path) -> None:
    for ending, reason in ((".xlsx", "reads .jsonl, .csv, .tsv and .parquet"), (".parquet", "is not a Parquet file")):
        path = tmp_path / f"rows{ending}"
        path.write_bytes(b"not a table")
        with pytest.raises(Refusal, match=reason):
            taken(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"There is no file .*gone\.csv"):
        taken(tmp_path / "gone.csv")


# What every dataset does


def test_load_gives_the_rows_as_a_table() -> None:
    rows = GenBiasEval().take("test", 20)
    table = GenBiasEval().load("test", 20)
    assert type(table).__module__.startswith("datasets.")
    assert table.column_names == ["id", "axis", "group", "unit", "condition", "text", "words", "subject", "hint"]
    assert [Prompt(**{**record, "words": tuple(record["words"])}) for record in table] == rows


def test_an_unknown_split_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Refusal, match="PlainText has no split 'dev'; choose from train, test"):
        PlainText().take("dev")


def test_the_checksum_changes_with_any_row() -> None:
    rows: list[Row] = list(PlainText().take("test"))
    assert checksum(rows) == checksum(list(rows))
    changed = [*rows[:-1], Text(id=rows[-1].id, text=rows[-1].text + " ")]  # pyright: ignore
    assert len({checksum(rows), checksum(rows[:-1]), checksum(rows[::-1]), checksum(changed)}) == 4
