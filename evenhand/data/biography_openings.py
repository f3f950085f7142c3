"""Beginnings of biographies that tell no name and no gender: what GAS has a model continue after training on them."""

import random
from collections.abc import Iterator
from typing import ClassVar

from evenhand.config import options
from evenhand.data._base import Dataset, fair_order
from evenhand.data._rows import Text
from evenhand.data.biographies import FIELDS, OPENINGS, Biographies, facts

__all__ = ["BiographyOpenings"]

COUNT = 200


@options
class BiographyOpenings(Dataset):
    """200 beginnings such as "After 12 years at a small clinic in Oslo,": no name, no gender, none trained on."""

    kind: ClassVar = Text
    source: ClassVar = Biographies.source

    def rows(self, split: str) -> Iterator[Text]:
        """Each field of work and each kind of beginning in turn; the field is the group."""
        trained = {row.text.partition(",")[0] + "," for row in Biographies().rows("train")}
        drawn = random.Random("biography openings")
        made: dict[str, Text] = {}
        while len(made) < COUNT:
            number = len(made)
            field = list(FIELDS)[number % len(FIELDS)]
            opening = list(OPENINGS.values())[number % len(OPENINGS)]
            text = opening.format(**facts(FIELDS[field], drawn))
            if text not in made and text not in trained:
                made[text] = Text(id=f"beginning-{number}", axis="gender", group=field, text=text)
        yield from fair_order(made.values())
