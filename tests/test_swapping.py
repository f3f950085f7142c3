"""Texts with their gendered words exchanged, and the augmentation that is made of them."""

from pathlib import Path

import pytest
from tiny import quiet_run

from evenhand.data._rows import Text
from evenhand.methods.cda import CDA
from evenhand.methods.debias_tuning import FEMALE, MALE
from evenhand.run import Run
from evenhand.swapping import PAIRS, swapped
from evenhand.words import FEMALE_WORDS, MALE_WORDS


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return quiet_run(tmp_path / "run")


def rows(texts: list[str]) -> list[Text]:
    return [Text(id=str(number), axis="gender", text=text) for number, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He gave her his book.", "She gave him her book."),
        ("Her book is on her desk.", "His book is on his desk."),
        ("I saw her.", "I saw him."),
        ("I told her that she won", "I told him that he won"),
        ("I gave her the key and asked her to wait", "I gave him the key and asked him to wait"),
        ("The book is hers, not his.", "The book is his, not hers."),
        ("She is HER own boss", "He is HIS own boss"),
        ("his or her work, and his/her work", "her or his work, and her/his work"),
        ("him/her", "her/him"),
        ("Mr. Smith and Mrs. Jones met Ms. Lee", "Mrs. Smith and Mr. Jones met Mr. Lee"),
        ("The women's coach, a father-in-law, hurt himself", "The men's coach, a mother-in-law, hurt herself"),
        ("KING and Queen; actors, WIVES", "QUEEN and King; actresses, HUSBANDS"),
        ("he'll say she's in-depth; her in-depth work", "she'll say he's in-depth; his in-depth work"),
        (
            "The theme of the other chemist is human; mankind, shepherd",
            "The theme of the other chemist is human; mankind, shepherd",
        ),
        ("", ""),
    ],
)
def test_swapped(text: str, expected: str) -> None:
    assert swapped(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "She and her brother saw him.",
        "HE is a King, his wife a Queen",
        "Boys like their aunts",
        "The nurse smiled because he had found the key.",
        "The teacher called the office and his sister laughed",
    ],
)
def test_swapping_twice_gives_the_text_back(text: str) -> None:
    assert swapped(swapped(text)) == text
    assert swapped(text) != text


def test_every_listed_word_has_a_counterpart_and_no_word_two_pairs() -> None:
    words = [word for pair in PAIRS for word in pair]
    assert len(words) == len(set(words))
    assert {*MALE_WORDS, *FEMALE_WORDS} <= set(words)
    assert not MALE & FEMALE
    for male, female in PAIRS:
        if male not in ("him", "his"):
            assert swapped(male) == female
            assert swapped(f" {female.upper()}.") == f" {male.upper()}." or female in ("her", "hers")


def test_cda_takes_a_text_or_its_twin_and_the_seed_decides(tmp_path: Path) -> None:
    texts = [f"She is {number}" for number in range(200)]
    one, again, other = (CDA().texts(rows(texts), quiet_run(tmp_path, seed)) for seed in (0, 0, 1))
    assert one == again != other
    assert all(chosen in (text, swapped(text)) for chosen, text in zip(one, texts, strict=True))
    assert 70 < sum(chosen == text for chosen, text in zip(one, texts, strict=True)) < 130
    # What is drawn for a row does not depend on the others.
    assert CDA().texts(rows(texts)[50:], quiet_run(tmp_path)) == one[50:]


def test_cda_with_both_has_every_gendered_text_twice(run: Run) -> None:
    assert CDA(both=True).texts(rows(["He sat.", "It rained."]), run) == ["He sat.", "It rained.", "She sat."]
