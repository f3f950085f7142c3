"""What a dataset is: rows of one kind, by split, with their source; and the readers of local and hub files."""

import hashlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from evenhand.config import Refusal, options
from evenhand.data._rows import Row

if TYPE_CHECKING:
    import datasets

__all__ = ["Dataset", "Source", "checksum", "upstream_file"]


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


def upstream_file(relative: str) -> Path | None:
    """A file in its upstream format under the folder that EVENHAND_DATA names, if it is there."""
    root = os.environ.get("EVENHAND_DATA")
    path = Path(root) / relative if root else None
    return path if path is not None and path.exists() else None
