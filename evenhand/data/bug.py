"""BUG: real sentences in which a pronoun stands for a profession, from EVENHAND_DATA in the upstream format."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from evenhand.config import Absent, Refusal, options
from evenhand.data._base import Dataset, Source, fair_order, upstream_file
from evenhand.data._corpora import letters, require_columns, spaced, split_of
from evenhand.data._rows import Text

__all__ = ["BUG"]

GROUPS = {"1": "stereotype", "-1": "anti-stereotype", "0": "neutral"}
COLUMNS = ("sentence_text", "stereotype", "predicted gender")
ADDRESS = "https://github.com/SLAB-NLP/BUG"
# Bytes that Windows-1252 leaves without a character.
UNUSED = "\x81\x8d\x8f\x90\x9d"
# The first byte of a character in UTF-8 and one that goes on with it, as Windows-1252 shows them.
MISREAD = re.compile("[Â-ô][\x80-¿€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]")


@options
class BUG(Dataset):
    """Real sentences with a profession and its pronoun, grouped by whether they follow or contradict the stereotype."""

    kind: ClassVar = Text
    # No copy on the hub is known to be the authors'.
    source: ClassVar = Source(licence="MIT", citation="Levy et al. 2021, arXiv:2109.03858; github.com/SLAB-NLP/BUG")
    splits: ClassVar = ("train", "dev", "test")

    part: Literal["balanced", "gold"] = "balanced"
    """The 25,504 sentences, half of them about women and half against the stereotype, or the 1,717 checked by hand."""

    def rows(self, split: str) -> Iterator[Text]:
        """Each sentence once; a sentence's letters decide its split, so that no split knows another's sentences."""
        file = f"{self.part}_BUG.csv"
        path = upstream_file(f"bug/{file}")
        if path is None:
            raise Absent(
                f"{file} is in no folder bug of the folder that EVENHAND_DATA names, and the hub has no copy known to "
                f"be the authors'; put the file there from the folder data of {ADDRESS}."
            )
        seen: set[str] = set()
        found = []
        for sentence in read_sentences(path):
            key = letters(sentence.text)
            if key not in seen and split_of(key) == split:
                found.append(row(sentence, self.part))
            seen.add(key)
        yield from fair_order(found)


class Sentence(NamedTuple):
    """What is read of a line."""

    number: int
    text: str
    group: str
    gender: str


def row(sentence: Sentence, part: str) -> Text:
    """A sentence as people would write it."""
    return Text(
        id=f"{part}-{sentence.number}",
        axis="gender",
        group=sentence.group,
        condition=sentence.gender,
        text=spaced(sentence.text),
    )


def read_sentences(path: Path) -> Iterator[Sentence]:
    """The lines of a file, or a refusal that names the one that is wrong."""
    remedy = f"take the file from the folder data of {ADDRESS}"
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            header = next(lines, [])
            require_columns(path.name, header, COLUMNS, remedy)
            places = [header.index(name) for name in COLUMNS]
            for number, line in enumerate(lines):
                text, stereotype, gender = (line[place] if place < len(line) else "" for place in places)
                gender = gender.lower()
                if not text.strip() or stereotype not in GROUPS or gender not in ("male", "female"):
                    raise Refusal(
                        f"{path.name}, row {number}: sentence_text is empty, stereotype {stereotype!r} is not -1, 0 "
                        f"or 1, or predicted gender {gender!r} is not male or female; {remedy}."
                    )
                yield Sentence(number, mended(text), GROUPS[stereotype], gender)
    except UnicodeDecodeError:
        raise Refusal(f"{path.name} is not UTF-8 text; {remedy}.") from None


def mended(text: str) -> str:
    """UTF-8 that somebody read as Windows-1252, as in gold_BUG.csv, put right; any other text as it is."""
    if not MISREAD.search(text):
        return text
    try:
        return b"".join(each.encode("latin-1" if each in UNUSED else "cp1252") for each in text).decode("utf-8")
    except UnicodeError:
        return text
