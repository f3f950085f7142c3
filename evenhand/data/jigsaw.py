"""Jigsaw's comments, toxic or civil: those with identities (Unintended Bias), or the older ones without.

Kaggle gives the files only after a login, so they are read from EVENHAND_DATA: jigsaw/train.csv or jigsaw/all_data.csv,
and jigsaw_toxic/test.csv (a text and 0 or 1 in each line, no header)."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from evenhand.config import Absent, Refusal, options
from evenhand.data._base import Dataset, Source, fair_order, upstream_file
from evenhand.data._corpora import letters, number_in, placed_records, require_columns, split_of
from evenhand.data._rows import Labelled

__all__ = ["Jigsaw"]

FILES = ("jigsaw/train.csv", "jigsaw/all_data.csv")
TOXIC_FILE = "jigsaw_toxic/test.csv"
ADDRESS = "https://www.kaggle.com/c/jigsaw-unintended-bias-in-toxicity-classification/data"
THRESHOLD = 0.5
"""Half of those asked, for toxicity as for an identity."""
IDENTITIES: dict[str, tuple[str, ...]] = {
    "gender": ("male", "female", "transgender", "other_gender"),
    "orientation": ("heterosexual", "homosexual_gay_or_lesbian", "bisexual", "other_sexual_orientation"),
    "religion": ("christian", "jewish", "muslim", "hindu", "buddhist", "atheist", "other_religion"),
    "race": ("black", "white", "asian", "latino", "other_race_or_ethnicity"),
    "disability": (
        "physical_disability",
        "intellectual_or_learning_disability",
        "psychiatric_or_mental_illness",
        "other_disability",
    ),
}
NEEDED = ("male", "female", "christian", "jewish", "muslim", "black", "white")
AXIS_OF = {name: axis for axis, names in IDENTITIES.items() for name in names}


@options
class Jigsaw(Dataset):
    """Comments, toxic or civil as half of the readers say; the group is the identity most readers saw mentioned."""

    kind: ClassVar = Labelled
    source: ClassVar = Source(licence="CC0 (Unintended Bias)", citation="Borkan et al. 2019; Jigsaw on Kaggle")
    splits: ClassVar = ("train", "dev", "test")

    comments: Literal["identities", "toxic"] = "identities"
    """Those whose identities were asked about (Unintended Bias), or the older toxic comments, which have no groups."""

    def rows(self, split: str) -> Iterator[Labelled]:
        """Each comment once, in the split that its letters say."""
        seen: set[str] = set()
        found = []
        for row in toxic_comments() if self.comments == "toxic" else identity_comments():
            key = letters(row.text)
            if key and key not in seen and split_of(key) == split:
                found.append(row)
                seen.add(key)
        yield from fair_order(found)


def identity_comments() -> Iterator[Labelled]:
    """The comments whose identities were asked about; of the others nobody knows the group."""
    path = next(filter(None, map(upstream_file, FILES)), None)
    if path is None:
        raise Absent(
            f"The folder that EVENHAND_DATA names has neither {' nor '.join(FILES)}; put one there from {ADDRESS}, or "
            f"take the older comments with --set data.comments=toxic ({TOXIC_FILE})."
        )
    remedy = f"take the file from {ADDRESS}"
    for number, (where, record) in enumerate(placed_records(path), 1):
        score = "toxicity" if "toxicity" in record and "target" not in record else "target"
        if number == 1:
            require_columns(path.name, record, ("comment_text", score, *NEEDED), remedy)
        if record["male"] not in (None, ""):
            yield comment(record, number_in(record, score, where, remedy), number, where)


def comment(record: dict[str, Any], score: float, number: int, where: str) -> Labelled:
    """A comment under its most mentioned identity, if at least half saw one."""
    remedy = "write the share of readers, 0 to 1"
    shares = {name: number_in(record, name, where, remedy) for name in AXIS_OF if record.get(name) not in (None, "")}
    name = max(shares, key=lambda each: shares[each])
    known = shares[name] >= THRESHOLD
    return Labelled(
        id=str(record.get("id") or number),
        axis=AXIS_OF[name] if known else "",
        group=name if known else "",
        text=record["comment_text"],
        labels=("toxic",) if score >= THRESHOLD else ("civil",),
    )


def toxic_comments() -> Iterator[Labelled]:
    """The older comments, labelled 0 or 1."""
    path = upstream_file(TOXIC_FILE)
    if path is None:
        raise Absent(
            f"The folder that EVENHAND_DATA names has no {TOXIC_FILE}; put it there, a comment and 0 or 1 a line."
        )
    for number, line in enumerate(read_lines(path), 1):
        if len(line) != 2 or line[1] not in ("0", "1"):
            raise Refusal(f"{path.name}, row {number}: not a comment and 0 or 1; write those two cells and no header.")
        yield Labelled(id=f"toxic-{number}", text=line[0], labels=("toxic",) if line[1] == "1" else ("civil",))


def read_lines(path: Path) -> Iterator[list[str]]:
    """The lines of a CSV file."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            yield from csv.reader(file)
    except UnicodeDecodeError:
        raise Refusal(f"{path.name} is not UTF-8 text; save it as UTF-8.") from None
