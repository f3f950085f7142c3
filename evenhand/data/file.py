"""A user's own rows from a JSON Lines, CSV or Parquet file; a broken line or a missing column is named."""

import csv
import json
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow.parquet

from evenhand.config import Refusal, options
from evenhand.data._base import Dataset, Source
from evenhand.data._rows import KINDS, Row
from evenhand.words import AXES

__all__ = ["File"]

MANY = ("words", "options", "labels")


@options
class File(Dataset):
    """Any file with one row an example; columns are found by name and may be renamed (--set data.text=bio)."""

    kind: ClassVar = Row
    source: ClassVar = Source(citation="the user's own file")
    splits: ClassVar = ("train", "dev", "test")

    path: str = ""
    """The file: .jsonl, .csv, .tsv or .parquet."""
    rows_are: Literal["Text", "Pair", "Choice", "Prompt", "Labelled"] = "Text"
    """The kind of row the file holds; a metric or method sets it to what it reads."""
    axis: Literal["gender", "race", "religion", "age"] = "gender"
    """The axis of rows that name none; gives prompts their words."""
    text: str = "text"
    """The column with the text or prompt."""
    words: str = "words"
    """The column with the words compared (a list, or separated by |); without it the axis' words."""
    hint: str = "hint"
    """The column with the word a prompt gives away."""
    subject: str = "subject"
    """The column that says whom a prompt is about."""
    group: str = "group"
    """The column results are split by."""
    unit: str = "unit"
    """The column that says which rows are drawn together in a bootstrap."""
    condition: str = "condition"
    """The column that distinguishes rows inside a group (stereo, ambiguous, targ1, ...)."""
    more: str = "more"
    """The column with a pair's more stereotyping text."""
    less: str = "less"
    """The column with a pair's other text."""
    context: str = "context"
    """The column with what stands before the options."""
    options: str = "options"
    """The column with the options (a list, or separated by |)."""
    answer: str = "answer"
    """The column with the right option's place, counted from 0."""
    stereotyped: str = "stereotyped"
    """The column with the stereotyped option's place."""
    other: str = "other"
    """The column with the place of the option that takes no side."""
    labels: str = "labels"
    """The column with the labels (a list, or separated by |)."""

    def rows(self, split: str) -> Iterator[Row]:
        """Every row of the file, whatever the split."""
        path = Path(self.path)
        if not path.is_file():
            raise Refusal(
                f"There is no file {self.path}; --data takes a dataset's name or a .jsonl, .csv or .parquet file."
            )
        found = False
        try:
            for number, record in read_records(path):
                found = True
                yield self.row(path, number, record)
        except UnicodeDecodeError:
            raise Refusal(f"{path.name} is not UTF-8 text; save it as UTF-8.") from None
        if not found:
            raise Refusal(f"{path} has no rows; give a file with at least one example.")

    def row(self, path: Path, number: int, record: dict[str, Any]) -> Row:
        """One record as a row of the kind asked for."""
        kind = KINDS[self.rows_are]
        values: dict[str, Any] = {}
        for field in fields(kind):
            column = field.name if field.name in ("id", "axis") else getattr(self, field.name)
            if record.get(column) not in (None, ""):
                values[field.name] = as_tuple(record[column]) if field.name in MANY else record[column]
            elif field.name == "words":
                values["words"] = AXES[self.axis].words
            elif field.name == "id":
                values["id"] = f"row-{number}"
            elif field.default is MISSING:
                raise Refusal(
                    f'{path.name}, row {number}: no column "{column}" (columns: {", ".join(map(str, record))}). '
                    f"Name it with --set data.{field.name}=COLUMN."
                )
        for field in fields(kind):
            if field.name in values and field.type in (str, "str"):
                values[field.name] = str(values[field.name])
            if field.name in values and field.type in (int, "int"):
                values[field.name] = whole_number(values[field.name], f"{path.name}, row {number}, {field.name}")
        # Only prompts take their words from the axis; any other row that names none belongs to none.
        axis = {"axis": self.axis} if self.rows_are == "Prompt" else {}
        return kind(**{**axis, **values})


def whole_number(value: Any, where: str) -> int:
    """An index, which a CSV file holds as text."""
    try:
        return int(value)
    except (TypeError, ValueError):
        raise Refusal(f"{where}: {value!r} is not a whole number; write the option's place, counted from 0.") from None


def as_tuple(value: Any) -> tuple[str, ...]:
    """A list as it is, a text cut at |, anything else alone."""
    if isinstance(value, str):
        value = value.split("|")
    return tuple(str(item).strip() for item in (value if isinstance(value, list | tuple) else [value]))


def read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered records of a file, by its ending."""
    ending = path.suffix.lower()
    if ending in (".jsonl", ".json"):
        yield from read_json_lines(path)
    elif ending in (".csv", ".tsv"):
        with open(path, encoding="utf-8-sig", newline="") as file:
            for number, record in enumerate(csv.DictReader(file, delimiter="\t" if ending == ".tsv" else ","), 1):
                if None in record:
                    raise Refusal(
                        f"{path.name}, row {number}: more cells than columns; quote cells that contain the separator."
                    )
                yield number, record
    elif ending == ".parquet":
        try:
            yield from enumerate(pyarrow.parquet.read_table(path).to_pylist(), 1)
        except (OSError, ValueError) as error:
            raise Refusal(f"{path.name} is not a Parquet file: {' '.join(str(error).split())[:120]}.") from None
    else:
        raise Refusal(f"{path.name}: evenhand reads .jsonl, .csv, .tsv and .parquet files; convert it to one of them.")


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """One JSON object a line; blank lines are passed over."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise Refusal(
                    f"{path.name}, row {number}: not valid JSON ({error.msg}); mend or delete the line."
                ) from None
            if not isinstance(record, dict):
                raise Refusal(f"{path.name}, row {number}: not a JSON object; write one {{...}} a line.")
            yield number, record
