"""What a dataset is: rows of one kind, by split, with their source; and the readers of local and hub files."""

import hashlib
import itertools
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from evenhand.config import Absent, Refusal, options
from evenhand.data._rows import Row
from evenhand.hub import ask_hub

if TYPE_CHECKING:
    import datasets

__all__ = ["Dataset", "Source", "checksum", "fair_order", "file_checksum", "from_hub", "upstream_file"]

R = TypeVar("R", bound=Row)


class Source(NamedTuple):
    """Where a dataset comes from and what may be done with it."""

    hub: str = ""
    revision: str = ""
    licence: str = ""
    citation: str = ""


@options
class Dataset:
    """Rows of one kind, by split."""

    kind: ClassVar[type[Row]]
    source: ClassVar[Source]
    splits: ClassVar[tuple[str, ...]] = ("test",)

    def rows(self, split: str) -> Iterator[Row]:
        """The rows of a split, in an order of which every beginning is a fair sample."""
        raise NotImplementedError

    def take(self, split: str = "test", limit: int | None = None) -> list[Row]:
        """The first rows of a split, or a refusal where the split is unknown or empty."""
        if split not in self.splits:
            raise Refusal(f"{type(self).__name__} has no split {split!r}; choose from {', '.join(self.splits)}.")
        rows = list(itertools.islice(self.rows(split), limit))
        if not rows:
            raise Refusal(f"{type(self).__name__} gave no rows for {split!r}: the file is empty.")
        return rows

    def load(self, split: str = "test", limit: int | None = None) -> "datasets.Dataset":
        """The same rows as a table of the `datasets` library."""
        import datasets

        return datasets.Dataset.from_list([asdict(row) for row in self.take(split, limit)])


def checksum(rows: list[Row]) -> str:
    """Twelve hexadecimal digits that change when any row changes."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr(row).encode())
    return digest.hexdigest()[:12]


def file_checksum(path: Path) -> str:
    """The same for a whole file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def upstream_file(relative: str) -> Path | None:
    """A file in its upstream format under the folder that EVENHAND_DATA names, if it is there."""
    root = os.environ.get("EVENHAND_DATA")
    path = Path(root) / relative if root else None
    return path if path is not None and path.exists() else None


def from_hub(source: Source, config: str | None, split: str, local: str) -> "datasets.Dataset":
    """A table of the hub, or a refusal that says which file would do instead."""
    import datasets

    ask_hub()
    try:
        return datasets.load_dataset(source.hub, config, split=split, revision=source.revision or None)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetNotFoundError) as error:
        raise Absent(
            f"{source.hub} is not to be had from the hub here, and the folder that EVENHAND_DATA names has no {local}; "
            "put that file there in its upstream format, or go online."
        ) from error


def fair_order(rows: Iterable[R]) -> list[R]:
    """Units in an order drawn once and for all, the rows of a unit together: every beginning is a fair sample."""
    units: dict[str, list[R]] = {}
    for row in rows:
        units.setdefault(row.unit or row.id, []).append(row)
    names = sorted(units)
    random.Random("fair order").shuffle(names)
    return [row for name in names for row in units[name]]
