"""CrowS-Pairs: from EVENHAND_DATA in the upstream format, else from the hub."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from evenhand.config import Refusal, options
from evenhand.data._base import Dataset, Source, fair_order, from_hub, upstream_file
from evenhand.data._rows import Pair

__all__ = ["CrowSPairs"]

FILE = "crows_pairs/crows_pairs_anonymized.csv"
COLUMNS = ("sent_more", "sent_less", "stereo_antistereo", "bias_type")
DIRECTIONS = ("stereo", "antistereo")


@options
class CrowSPairs(Dataset):
    """Pairs of sentences that differ in whom they are about; the first is the more stereotyping one."""

    kind: ClassVar = Pair
    source: ClassVar = Source("nyu-mll/crows_pairs", "main", "CC BY-SA 4.0", "Nangia et al. 2020")

    def rows(self, split: str) -> Iterator[Pair]:
        """One row a pair; `antistereo`: the pair as written contradicts a stereotype about the disadvantaged group."""
        local = upstream_file(FILE)
        where = local.name if local else CrowSPairs.source.hub
        records = read_records(local) if local else hub_records()
        yield from fair_order(pair_of(record, number, where) for number, record in enumerate(records))


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of the upstream file."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)
    except UnicodeDecodeError:
        raise Refusal(f"{path.name} is not UTF-8 text; fetch it anew from nyu-mll/crows-pairs.") from None


def hub_records() -> Iterator[dict[str, Any]]:
    """The same records from the hub, where two columns are numbers of named classes."""
    table = from_hub(CrowSPairs.source, None, "test", FILE)
    names = {column: feature.names for column, feature in table.features.items() if hasattr(feature, "names")}
    for record in table:
        yield {column: names[column][value] if column in names else value for column, value in dict(record).items()}


def pair_of(record: dict[str, Any], number: int, where: str) -> Pair:
    """A record as a row, or a refusal that says what it lacks."""
    for name in COLUMNS:
        if not record.get(name):
            raise Refusal(
                f"{where}, row {number}: no {name} (columns: {', '.join(map(str, record))}); "
                "put the upstream crows_pairs_anonymized.csv there."
            )
    more, less, direction, kind = (record[name] for name in COLUMNS)
    if direction not in DIRECTIONS:
        raise Refusal(f"{where}, row {number}: stereo_antistereo is {direction!r}; write stereo or antistereo.")
    # The upstream file's index has no name; the hub calls it id.
    index = record.get("", record.get("id", number))
    return Pair(id=f"crows-{index}", axis=kind, group=kind, condition=direction, more=more, less=less)
