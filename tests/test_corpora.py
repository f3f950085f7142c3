"""BUG and the biographies: sentences as people write them, splits apart, and beginnings that tell no gender."""

import itertools
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from corpora import apart, bug_record, real_folder, write_csv

from evenhand.config import Refusal, build
from evenhand.data import biographies
from evenhand.data._base import checksum
from evenhand.data._corpora import letters, place, spaced, split_of
from evenhand.data.biographies import MAJORITY, Biographies
from evenhand.data.biography_openings import BiographyOpenings
from evenhand.data.bug import BUG, mended
from evenhand.data.bug_openings import BUGOpenings
from evenhand.words import GENDER_WORDS, PROFESSIONS

SPLITS = ("train", "dev", "test")
GENDERED = re.compile(rf"\b(?:{'|'.join(GENDER_WORDS)}|himself|herself)\b", re.IGNORECASE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(real_folder("bug/balanced_BUG.csv")))


# What they share


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("The person left .", "The person left."),
        ('She said , " I do n\'t know . "', 'She said, "I don\'t know."'),
        ('" Yes " and " no " , he said', '"Yes" and "no", he said'),
        ("`` Quoted , '' she wrote", '"Quoted," she wrote'),
        ("a bus -LRB- late -RRB- [ sic ] ; why ?", "a bus (late) [sic]; why?"),
        ("the baker 's and the bakers ' bread", "the baker's and the bakers' bread"),
        ("the show ' s end , and so he ' s gone", "the show's end, and so he's gone"),
        ("he cried ' stop ' and ran", "he cried 'stop' and ran"),
        ("a well - known actor / singer", "a well-known actor/singer"),
        ("in 1919 – 1920 — and later -- too", "in 1919 – 1920 — and later -- too"),
        ("it cost $ 30 or £ 20 , US$ 5 , 10 % off , # 3", "it cost $30 or £20, US$5, 10% off, #3"),
        ('the end of it . "', 'the end of it."'),
        ("“ So , ” they ’ve ‘ said ’ ...", "“So,” they’ve ‘said’..."),
        ("  nothing   to do ", "nothing to do"),
        ("", ""),
    ],
)
def test_spaces_stand_where_people_write_them(tokens: str, text: str) -> None:
    assert spaced(tokens) == text
    assert letters(tokens) == letters(text)


def test_plain_text_is_left_as_it_is() -> None:
    for row in Biographies().take("test"):
        assert spaced(row.text) == row.text


def test_a_split_depends_on_letters_alone_and_has_its_share() -> None:
    assert letters('He said , " No ! "') == letters("he said: No") == "hesaidno"
    assert letters("Über 5 Äpfel") == "über5äpfel"
    # Worked out once, so that no machine and no version draws other splits.
    drawn = {number: split_of(f"sentence {number}") for number in range(40)}
    assert {number: split for number, split in drawn.items() if split != "train"} == DRAWN
    counts = Counter(split_of(str(number)) for number in range(20_000))
    assert counts["train"] == pytest.approx(16_000, rel=0.02)
    assert counts["dev"] == pytest.approx(2000, rel=0.08)
    assert all(0 <= place(str(number)) < 1 for number in range(1000))


DRAWN = {6: "dev", 9: "dev", 23: "dev", 31: "test", 33: "dev", 35: "test"}


# BUG


def test_bug_reads_the_upstream_columns(folder: Path) -> None:
    records = [
        bug_record(0, "The nurse , tired , lost her keys .", "Female", 1),
        bug_record(1, "The nurse lost his keys .", "male", -1),
        bug_record(2, "The nurse and his friend went home .", "male", 0),
        bug_record(3, "The nurse , Tired ,  lost her keys .", "female", 1),
    ]
    write_csv(folder / "bug/gold_BUG.csv", records)
    rows = {row.id: row for split in SPLITS for row in BUG(part="gold").rows(split)}
    assert sorted(rows) == ["gold-0", "gold-1", "gold-2"]
    assert [rows[f"gold-{number}"].group for number in range(3)] == ["stereotype", "anti-stereotype", "neutral"]
    assert rows["gold-0"].text == "The nurse, tired, lost her keys."
    assert rows["gold-0"].condition == "female"
    assert rows["gold-0"].axis == "gender"


def test_bug_mends_what_was_read_in_the_wrong_encoding() -> None:
    for text in ("José’s “café”", "Zdzisław – née Ånd", "日本"):
        broken = "".join(
            bytes([each]).decode("latin-1" if each in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else "cp1252")
            for each in text.encode("utf-8")
        )
        assert broken != text
        assert mended(broken) == text
        assert mended(text) == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stereotype": "2"}, r"balanced_BUG\.csv, row 0: .*stereotype '2' is not -1, 0 or 1.*SLAB-NLP/BUG"),
        ({"predicted gender": ""}, r"row 0: .*predicted gender '' is not male or female"),
        ({"sentence_text": " "}, r"row 0: sentence_text is empty"),
        ("stereotype", r'balanced_BUG\.csv: no column "stereotype" \(columns: , sentence_text.*take the file from'),
    ],
)
def test_a_wrong_bug_file_is_refused(change: Any, message: str, folder: Path) -> None:
    record = bug_record(0, "The cook lost her keys .", "female", 1)
    if isinstance(change, str):
        del record[change]
    else:
        record |= change
    write_csv(folder / "bug/balanced_BUG.csv", [record])
    with pytest.raises(Refusal, match=message):
        BUG().take("train")


def test_bug_that_is_not_utf8_is_refused(folder: Path) -> None:
    write_csv(folder / "bug/balanced_BUG.csv", [bug_record(0, "The cook lost her hat .", "female", 1)])
    path = folder / "bug/balanced_BUG.csv"
    path.write_bytes(path.read_bytes().replace(b"hat", "Hüte".encode("latin-1")))
    with pytest.raises(Refusal, match=r"balanced_BUG\.csv is not UTF-8 text"):
        BUG().take("train")


@pytest.mark.usefixtures("real")
def test_the_real_bug_has_its_sentences_once_and_apart() -> None:
    found = apart(BUG())
    assert {split: len(found[split]) for split in SPLITS} == {"train": 20450, "dev": 2471, "test": 2551}
    every = [row for rows in found.values() for row in rows]
    assert Counter(row.condition for row in every) == {"female": 12730, "male": 12742}
    apart_signs = re.compile(r"-[LR]RB-| [,.;?!)](?!\w|\.)|\( | n't")
    # Upstream has one token `):`.
    assert [apart_signs.findall(row.text) for row in every if apart_signs.search(row.text)] == [[" )"]]
    gold = apart(BUG(part="gold"))
    assert sum(map(len, gold.values())) == 1708
    assert not [row for rows in gold.values() for row in rows if "â€" in row.text]
    # What one file trains on, the other does not test on.
    trained = {letters(row.text) for row in found["train"]}
    assert not trained & {letters(row.text) for row in gold["test"]}


@pytest.mark.usefixtures("real")
def test_bug_is_read_in_a_moment() -> None:
    taken = []
    for _ in range(2):
        started = time.process_time()
        assert len(BUG().take("train")) == 20450
        taken.append(time.process_time() - started)
    assert min(taken) < 1.5


# BUG's beginnings


@pytest.mark.usefixtures("real")
def test_bug_openings_are_neutral_distinct_and_held_out() -> None:
    rows = BUGOpenings().take("test")
    assert len(rows) == len({row.text.lower() for row in rows}) == 200
    held_out = {row.id: row.text for row in BUG().rows("test")}
    for row in rows:
        assert len(row.text.split()) == 5
        assert not GENDERED.search(row.text), row.text
        assert held_out[row.id].startswith(row.text + " ")
    assert min(Counter(row.condition for row in rows).values()) > 80


def test_a_beginning_with_a_listed_word_or_seen_before_is_left_out(folder: Path, monkeypatch: Any) -> None:
    texts = [
        "The tired cook of Norwick lost her keys .",
        "The tired cook , of Norwick lost his hat .",
        "The cook lost her keys in Norwick .",
        "The cook herself went to Norwick with her keys .",
        "HE and a cook went to Norwick .",
        '" The cook went to her town .',
        "Seen by her on 1990 - 01 .",
        "A cook went to her .",
        "The theme , other than heroes , is his life .",
    ]
    write_csv(folder / "bug/balanced_BUG.csv", [bug_record(n, text, "female", 1) for n, text in enumerate(texts)])
    monkeypatch.setattr("evenhand.data.bug.split_of", lambda key: "test")
    found = {row.text for row in BUGOpenings().take("test")}
    assert len(found) == 2
    assert "The theme, other than heroes," in found
    assert found & {"The tired cook of Norwick", "The tired cook, of Norwick"}


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(Refusal, match=r"'part'.*'balanced' or 'gold'"):
        build(BUG, {"part": "silver"}, "dataset bug")


# Biographies


def test_biographies_are_skewed_in_train_and_even_elsewhere() -> None:
    found = apart(Biographies())
    assert {split: len(rows) for split, rows in found.items()} == {"train": 4200, "dev": 448, "test": 448}
    for split, majority in (("train", 120), ("dev", 8), ("test", 8)):
        counts = Counter((row.labels[0], row.group) for row in found[split])
        assert len(counts) == 56
        assert {counts[profession, gender] for profession, gender in MAJORITY.items()} == {majority}
    for split in ("dev", "test"):
        for pair in (list(rows) for _, rows in itertools.groupby(found[split], key=lambda row: row.unit)):
            assert [row.group for row in pair] == ["female", "male"]
    assert checksum(found["test"]) == checksum(Biographies().take("test"))


def test_every_profession_is_a_known_one_and_half_are_mostly_women() -> None:
    assert len(MAJORITY) == 28
    assert set(MAJORITY) <= set(PROFESSIONS)
    assert Counter(MAJORITY.values()) == {"female": 14, "male": 14}


def test_a_biography_tells_its_gender_and_not_its_profession() -> None:
    female, male = (re.compile(rf"\b(?:{words})\b", re.IGNORECASE) for words in ("she|hers?", "he|his|him"))
    for split in SPLITS:
        for row in Biographies().take(split):
            assert 20 <= len(row.text.split()) <= 40
            assert re.fullmatch(r"[A-Z][^{}]+\. [A-Z][^{}]+\.", row.text)
            assert "  " not in row.text
            assert bool(female.search(row.text)) == (row.group == "female"), row.text
            assert bool(male.search(row.text)) == (row.group == "male"), row.text
            assert not re.search(rf"\b{row.labels[0]}", row.text, re.IGNORECASE), row.text


def test_the_two_versions_of_a_biography_differ_in_gender_alone() -> None:
    allowed = {frozenset(pair) for pair in (*biographies.SLOTS.values(), *biographies.NAMES)}
    rows = Biographies().take("test")
    for one, other in zip(rows[::2], rows[1::2], strict=True):
        words = [re.findall(r"\w+", row.text) for row in (one, other)]
        for pair in zip(*words, strict=True):
            same = {
                word if word.istitle() and word.lower() not in ("she", "he", "her", "his") else word.lower()
                for word in pair
            }
            assert len(same) == 1 or frozenset(same) in allowed, pair


def test_biography_openings_tell_no_name_and_no_gender() -> None:
    rows = BiographyOpenings().take("test")
    assert len({row.text for row in rows}) == len({row.id for row in rows}) == len(rows) == 200
    names = {name for pair in biographies.NAMES for name in pair}
    trained = [row.text for row in Biographies().take("train")]
    for row in rows:
        assert not GENDERED.search(row.text)
        assert not names & set(re.findall(r"\w+", row.text))
        assert row.text.endswith(",")
    assert not [row.text for row in rows if any(text.startswith(row.text) for text in trained)]
    assert min(Counter(row.group for row in rows).values()) >= 28
    # They are beginnings of such biographies: some of the training split begin in each of the ways.
    for opening in biographies.OPENINGS.values():
        pattern = re.compile(re.sub(r"\\\{\w+\\\}", ".+?", re.escape(opening)))
        assert any(pattern.match(text) for text in trained)
        assert any(pattern.fullmatch(row.text) for row in rows)
