"""HateCheck: sentences written to test hate speech detection, most of them about each of seven groups in turn.

From EVENHAND_DATA in the upstream format (hatecheck/test_suite_cases.csv), else from the hub."""

from collections.abc import Iterator
from typing import Any, ClassVar

from evenhand.config import Refusal, options
from evenhand.data._base import Dataset, Source, fair_order, from_hub, upstream_file
from evenhand.data._corpora import place, placed_records, require_columns
from evenhand.data._rows import Labelled

__all__ = ["HateCheck"]

FILE = "hatecheck/test_suite_cases.csv"
COLUMNS = ("case_id", "test_case", "label_gold", "target_ident", "templ_id", "functionality")
LABELS = ("hateful", "non-hateful")
AXIS_OF = {
    "women": "gender",
    "trans people": "gender",
    "gay people": "orientation",
    "black people": "race",
    "disabled people": "disability",
    "Muslims": "religion",
    "immigrants": "origin",
}
TRAIN = 0.7
"""The share of templates for training."""
REMEDY = "take test_suite_cases.csv from https://github.com/paul-rottger/hatecheck-data"


@options
class HateCheck(Dataset):
    """HateCheck's 3,728 sentences, hateful or not; the group is whom they are about, and splits share no template."""

    kind: ClassVar = Labelled
    source: ClassVar = Source("Paul/hatecheck", "main", "CC BY 4.0", "Röttger et al. 2021, arXiv:2012.15606")
    splits: ClassVar = ("train", "test")

    def rows(self, split: str) -> Iterator[Labelled]:
        """A template's sentences are drawn together; the condition is what they test."""
        rows = (case(record, where) for where, record in records())
        yield from fair_order(row for row in rows if (place(row.unit) < TRAIN) == (split == "train"))


def records() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each record with the place it is from, which a refusal names."""
    path = upstream_file(FILE)
    if path is not None:
        yield from placed_records(path)
        return
    table: Any = from_hub(HateCheck.source, None, "test", FILE)
    for number, record in enumerate(table, 1):
        yield f"{HateCheck.source.hub}, row {number}", record


def case(record: dict[str, Any], where: str) -> Labelled:
    """A record as a row, or a refusal that names it; some sentences are about nobody."""
    require_columns(where, record, COLUMNS, REMEDY)
    text, label, group = (record[name] or "" for name in ("test_case", "label_gold", "target_ident"))
    if not text.strip() or label not in LABELS or (group and group not in AXIS_OF):
        raise Refusal(
            f"{where}: test_case is empty, label_gold {label!r} is neither {' nor '.join(LABELS)}, or target_ident "
            f"{group!r} is no known group; {REMEDY}."
        )
    return Labelled(
        id=f"case-{record['case_id']}",
        axis=AXIS_OF.get(group, ""),
        group=group,
        unit=f"template-{record['templ_id']}",
        condition=record["functionality"],
        text=text.strip(),
        labels=(label,),
    )
