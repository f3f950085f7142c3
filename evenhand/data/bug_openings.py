"""Beginnings of BUG's held-out sentences that name no gender: what GAS has a model continue after training on BUG."""

import itertools
import re
from collections.abc import Iterator
from typing import ClassVar

from evenhand.config import options
from evenhand.data._base import Dataset
from evenhand.data._corpora import letters
from evenhand.data._rows import Text
from evenhand.data.bug import BUG
from evenhand.words import GENDER_WORDS

__all__ = ["BUGOpenings"]

COUNT = 200
WORDS = 5
GENDERED = re.compile(rf"\b(?:{'|'.join(GENDER_WORDS)}|himself|herself)\b", re.IGNORECASE)
# Five words of a running sentence: no brackets, numbers or marks of quotation, which papers' abstracts are full of.
PLAIN = re.compile(r"[A-Z][\w'’-]*(?: [\w'’-]*[^\W\d][\w'’-]*,?){4}")


@options
class BUGOpenings(Dataset):
    """200 beginnings of five words from BUG's test split without any of GAS's 28 words.

    Names of people stay, as in the published procedure, and may tell a gender."""

    kind: ClassVar = Text
    source: ClassVar = BUG.source

    def rows(self, split: str) -> Iterator[Text]:
        """The first that will do, each beginning once; group and condition are those of its sentence."""
        yield from itertools.islice(beginnings(), COUNT)


def beginnings() -> Iterator[Text]:
    """Every beginning that will do, in the order of BUG's test split."""
    seen = set()
    for row in BUG().rows("test"):
        words = row.text.split()
        text = " ".join(words[:WORDS])
        key = letters(text)
        if len(words) > WORDS and PLAIN.fullmatch(text) and not GENDERED.search(text) and key not in seen:
            seen.add(key)
            yield Text(id=row.id, axis=row.axis, group=row.group, condition=row.condition, text=text)
