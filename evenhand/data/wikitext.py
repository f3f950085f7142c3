"""WikiText-2 (raw), the usual text for perplexity: from EVENHAND_DATA in the upstream format, else from the hub."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from evenhand.config import options
from evenhand.data._base import Dataset, Source, from_hub, upstream_file
from evenhand.data._rows import Text

__all__ = ["WikiText"]

FILES = {"train": "train", "validation": "valid", "test": "test"}


@options
class WikiText(Dataset):
    """Lines of Wikipedia articles; blank lines are kept, because the joined text is what is scored."""

    kind: ClassVar = Text
    source: ClassVar = Source("Salesforce/wikitext", "main", "CC BY-SA 3.0", "Merity et al. 2016")
    splits: ClassVar = ("train", "validation", "test")

    def rows(self, split: str) -> Iterator[Text]:
        """One row a line, as the hub's `wikitext-2-raw-v1` has them."""
        local = upstream_file(f"wikitext2_raw/{FILES[split]}.raw.gz") or upstream_file(
            f"wikitext2_raw/{FILES[split]}.raw"
        )
        for number, line in enumerate(read_lines(local) if local else hub_lines(split)):
            yield Text(id=f"{split}-{number}", text=line if line.strip() else "")


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a raw file, their line ends kept."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        yield from file


def hub_lines(split: str) -> Iterator[str]:
    """The same lines from the hub."""
    yield from from_hub(WikiText.source, "wikitext-2-raw-v1", split, "wikitext2_raw/test.raw.gz")["text"]
