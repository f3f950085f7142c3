"""Bias in Bios: biographies whose first sentence, which names the profession, is gone; the profession is the label.

From EVENHAND_DATA (bias_in_bios/train, dev and test as .parquet, .csv or .jsonl with the hub's columns), else from the
hub."""

from collections.abc import Iterator
from typing import Any, ClassVar

from evenhand.config import Refusal, options
from evenhand.data._base import Dataset, Source, fair_order, from_hub, upstream_file
from evenhand.data._corpora import number_in, placed_records, require_columns
from evenhand.data._rows import Labelled

__all__ = ["BiasInBios"]

COLUMNS = ("hard_text", "profession", "gender")
ENDINGS = (".parquet", ".csv", ".jsonl")
GENDERS = ("male", "female")
# The hub numbers them in this order.
PROFESSIONS = (
    *("accountant", "architect", "attorney", "chiropractor", "comedian", "composer", "dentist", "dietitian", "dj"),
    *("filmmaker", "interior_designer", "journalist", "model", "nurse", "painter", "paralegal", "pastor"),
    *("personal_trainer", "photographer", "physician", "poet", "professor", "psychologist", "rapper"),
    *("software_engineer", "surgeon", "teacher", "yoga_teacher"),
)
REMEDY = "take LabHC/bias_in_bios from the hub"


@options
class BiasInBios(Dataset):
    """Biographies without the sentence that names the profession, which is the label; the group is the gender."""

    kind: ClassVar = Labelled
    source: ClassVar = Source(
        "LabHC/bias_in_bios", "main", "MIT", "De-Arteaga et al. 2019; split of Ravfogel et al. 2020"
    )
    splits: ClassVar = ("train", "dev", "test")

    def rows(self, split: str) -> Iterator[Labelled]:
        """The upstream splits (257,478, 39,642 and 99,069 biographies)."""
        yield from fair_order(biography(record, split, where) for where, record in records(split))


def records(split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each record with the place it is from, which a refusal names."""
    found = (upstream_file(f"bias_in_bios/{split}{ending}") for ending in ENDINGS)
    path = next((each for each in found if each is not None), None)
    if path is not None:
        yield from placed_records(path)
        return
    table: Any = from_hub(BiasInBios.source, None, split, f"bias_in_bios/{split}.parquet")
    for number, record in enumerate(table, 1):
        yield f"{BiasInBios.source.hub}, row {number}", record


def biography(record: dict[str, Any], split: str, where: str) -> Labelled:
    """A record as a row, or a refusal that names it."""
    require_columns(where, record, COLUMNS, REMEDY)
    profession, gender = (int(number_in(record, name, where, REMEDY)) for name in ("profession", "gender"))
    if not 0 <= profession < len(PROFESSIONS) or gender not in (0, 1) or not record["hard_text"]:
        raise Refusal(
            f"{where}: hard_text is empty, profession {profession} is not 0 to 27, or gender {gender} is not 0 or 1; "
            f"{REMEDY}."
        )
    return Labelled(
        id=f"{split}-{where.rpartition(' ')[2]}",
        axis="gender",
        group=GENDERS[gender],
        text=record["hard_text"],
        labels=(PROFESSIONS[profession],),
    )
