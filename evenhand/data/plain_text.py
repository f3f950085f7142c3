"""Plain facts in ordinary sentences, written for evenhand: perplexity and retention without any download."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from evenhand.config import options
from evenhand.data._base import Dataset, Source
from evenhand.data._rows import Text

__all__ = ["PlainText"]


@options
class PlainText(Dataset):
    """240 sentences of plain facts, half to train on and half to measure."""

    kind: ClassVar = Text
    source: ClassVar = Source(licence="Apache-2.0", citation="written for evenhand")
    splits: ClassVar = ("train", "test")

    def rows(self, split: str) -> Iterator[Text]:
        """120 sentences: the odd or the even lines of the file."""
        lines = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
        for number, line in list(enumerate(lines))[self.splits.index(split) :: 2]:
            yield Text(id=f"fact-{number}", text=line)
