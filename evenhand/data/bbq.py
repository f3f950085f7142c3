"""BBQ: questions about two people with a context that leaves the answer open, or settles it.

From EVENHAND_DATA in the upstream format (bbq/Age.jsonl, ...; the targets in bbq/additional_metadata.csv), else from
the hub, which has no targets."""

import csv
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from evenhand.config import Absent, Refusal, closest, options
from evenhand.data._base import Dataset, Source, fair_order, from_hub, upstream_file
from evenhand.data._rows import Choice

__all__ = ["BBQ"]

CATEGORIES = (
    "Age",
    "Disability_status",
    "Gender_identity",
    "Nationality",
    "Physical_appearance",
    "Race_ethnicity",
    "Race_x_SES",
    "Race_x_gender",
    "Religion",
    "SES",
    "Sexual_orientation",
)
ANSWERS = ("ans0", "ans1", "ans2")
COLUMNS = (
    *("example_id", "question_index", "question_polarity", "context_condition", "answer_info"),
    *("additional_metadata", "context", "question", *ANSWERS, "label"),
)
CONDITIONS = {"ambig": "ambiguous", "disambig": "disambiguated"}
TARGETS = "bbq/additional_metadata.csv"
ALIASES = {
    **dict.fromkeys(("man", "men", "boy", "boys"), "m"),
    **dict.fromkeys(("woman", "women", "girl", "girls"), "f"),
    **dict.fromkeys(("transgender women", "transgender men", "trans_f", "trans_m"), "trans"),
    **dict.fromkeys(("black", "black/african american"), "african american"),
}
"""Names that BBQ uses for one group, in lower case."""

# Where a row stands, and its target by (question_index, example_id).
Places = Mapping[tuple[str, str], str]


@options
class BBQ(Dataset):
    """BBQ, three answers to each question; the stereotyped one is what the bias would answer to this very question."""

    kind: ClassVar = Choice
    source: ClassVar = Source("heegyu/bbq", "main", "CC BY 4.0", "Parrish et al. 2022, arXiv:2110.08193")

    categories: tuple[str, ...] = ()
    """The categories to read (Age, SES, ...); empty: all whose file is there, or all eleven from the hub."""
    targets: Literal["metadata", "groups"] = "metadata"
    """Whence the stereotyped answer: the official target_loc, or the row's own list of stereotyped groups."""

    def rows(self, split: str) -> Iterator[Choice]:
        """The four questions of one scene stay together; scenes come in an order drawn once."""
        unknown = [name for name in self.categories if name not in CATEGORIES]
        if unknown:
            raise Refusal(
                f"BBQ has no category {unknown[0]!r}{closest(unknown[0], CATEGORIES)}; "
                f"choose from {', '.join(CATEGORIES)}."
            )
        here = tuple(name for name in CATEGORIES if upstream_file(f"bbq/{name}.jsonl"))
        names = self.categories or here or CATEGORIES
        targets = read_targets(names) if self.targets == "metadata" else {name: {} for name in names}
        yield from by_scene(row for name in names for row in category_rows(name, targets[name]))


def by_scene(rows: Iterable[Choice]) -> list[Choice]:
    """Scenes in a fair order: a template has up to hundreds of scenes, so that whole templates would be no sample."""
    units: dict[str, str] = {}
    scenes = []
    for row in rows:
        units[row.id] = row.unit
        category, _, number = row.id.rpartition("-")
        scenes.append(dataclasses.replace(row, unit=f"{category}-{int(number) // 4}"))
    return [dataclasses.replace(row, unit=units[row.id]) for row in fair_order(scenes)]


def read_targets(names: Iterable[str]) -> dict[str, dict[tuple[str, str], str]]:
    """The official place of the answer that the bias would give, by category, question_index and example_id."""
    path = upstream_file(TARGETS)
    if path is None:
        raise Absent(
            f"The folder that EVENHAND_DATA names has no {TARGETS}, which says which answer is the stereotyped one; "
            "put it there from github.com/nyu-mll/BBQ, or infer the answers with --set data.targets=groups."
        )
    found: dict[str, dict[tuple[str, str], str]] = {name: {} for name in names}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                if row["category"] in found:
                    found[row["category"]][row["question_index"], row["example_id"]] = row["target_loc"]
            except KeyError as error:
                raise Refusal(f"{TARGETS} has no column {error}; take the file of github.com/nyu-mll/BBQ.") from None
    return found


def category_rows(name: str, targets: Places) -> Iterator[Choice]:
    """The rows of a category in the order of its file."""
    file = f"bbq/{name}.jsonl"
    path = upstream_file(file)
    lines = read_lines(path, file) if path else from_hub(BBQ.source, name, "test", file)
    for number, line in enumerate(lines, 1):
        yield choice(name, line, f"{file}, row {number}", targets)  # pyright: ignore[reportArgumentType]


def answered_questions(path: Path) -> Iterator[tuple[Choice, dict[str, Any]]]:
    """The questions of a file of answers, which repeats the upstream lines; official targets where they are here."""
    lines = list(read_lines(path, path.name))
    names = {str(line.get("category")) for line in lines}
    targets = read_targets(names) if upstream_file(TARGETS) else {name: {} for name in names}
    for number, line in enumerate(lines, 1):
        category = str(line.get("category"))
        yield choice(category, line, f"{path.name}, row {number}", targets[category]), line


def read_lines(path: Path, file: str) -> Iterator[dict[str, Any]]:
    """The lines of a JSON-lines file."""
    with path.open(encoding="utf-8") as opened:
        for number, line in enumerate(opened, 1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise Refusal(f"{file}, row {number}: no JSON ({error.msg}); take the upstream file.") from None


def choice(category: str, line: Mapping[str, Any], where: str, targets: Places) -> Choice:
    """One question with its three answers."""
    missing = [column for column in COLUMNS if line.get(column) in (None, "")]
    if missing:
        raise Refusal(f"{where}: no {missing[0]!r}; take the upstream file, or delete the row.")
    unknown = [place for place, key in enumerate(ANSWERS) if line["answer_info"][key][-1] == "unknown"]
    if len(unknown) != 1 or line["label"] not in range(3) or line["context_condition"] not in CONDITIONS:
        raise Refusal(f"{where}: it needs one unknown answer, a label of 0 to 2 and ambig or disambig; delete the row.")
    index, number = str(line["question_index"]), str(line["example_id"])
    target = targets.get((index, number), "NA")
    official = int(target) if target in ("0", "1", "2") and int(target) != unknown[0] else -1
    return Choice(
        id=f"{category}-{number}",
        axis=category.lower(),
        group=category,
        unit=f"{category}-{index}",
        condition=CONDITIONS[line["context_condition"]],
        context=f"{line['context']}\n{line['question']}",
        options=tuple(line[key] for key in ANSWERS),
        answer=line["label"],
        # The target_loc of a non-negative question is already the other person's answer.
        stereotyped=official if official >= 0 else by_groups(line, unknown[0]),
        other=unknown[0],
    )


def by_groups(line: Mapping[str, Any], unknown: int) -> int:
    """The stereotyped group's answer to a negative question, the other person's to any other; -1 where it is unclear
    which of the two that is."""
    groups = set().union(*map(names_of, line["additional_metadata"]["stereotyped_groups"]))
    people = [place for place in range(3) if place != unknown]
    mentioned = [place for place in people if groups & set().union(*map(names_of, line["answer_info"][ANSWERS[place]]))]
    if len(mentioned) != 1:
        return -1
    return mentioned[0] if line["question_polarity"] == "neg" else sum(people) - mentioned[0]


def names_of(group: str) -> set[str]:
    """A group's name in lower case and what else it is called: `low SES` is `lowSES`, `M-Black` is `Black`."""
    name = group.strip().lower()
    bare = name.removeprefix("m-").removeprefix("f-")
    return {ALIASES.get(each, each).replace(" ", "") for each in (name, bare)}
