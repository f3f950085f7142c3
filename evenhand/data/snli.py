"""SNLI's premises, which describe everyday pictures: plain text to train on without losing the language.

From EVENHAND_DATA (snli_devtest/s1.train, s1.dev and s1.test, a premise a line), else from the hub."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from evenhand.config import Refusal, options
from evenhand.data._base import Dataset, Source, fair_order, from_hub, upstream_file
from evenhand.data._corpora import letters, spaced, split_of
from evenhand.data._rows import Text

__all__ = ["SNLI"]

FOLDER = "snli_devtest"
HUB_SPLITS = {"train": "train", "dev": "validation", "test": "test"}


@options
class SNLI(Dataset):
    """Premises of SNLI, each once: captions of everyday pictures.

    Where only the files s1.dev and s1.test are there, train is nine tenths of s1.dev's premises and dev the rest."""

    kind: ClassVar = Text
    source: ClassVar = Source("stanfordnlp/snli", "main", "CC BY-SA 4.0", "Bowman et al. 2015")
    splits: ClassVar = ("train", "dev", "test")

    def rows(self, split: str) -> Iterator[Text]:
        """The premises of a split that no later split has."""
        later = SNLI.splits[SNLI.splits.index(split) + 1 :]
        seen = {letters(text) for other in later for text in premises(other)}
        found = []
        for text in premises(split):
            key = letters(text)
            if key and key not in seen:
                seen.add(key)
                found.append(Text(id=f"{split}-{len(found)}", text=text))
        yield from fair_order(found)


def premises(split: str) -> Iterator[str]:
    """The premises of a split as they come, each several times."""
    local = {name: upstream_file(f"{FOLDER}/s1.{name}") for name in SNLI.splits}
    if local["test"] is None or local["dev"] is None:
        yield from from_hub(SNLI.source, None, HUB_SPLITS[split], f"{FOLDER}/s1.dev and s1.test")["premise"]
    elif local["train"] is None and split != "test":
        texts = read_lines(local["dev"])
        yield from (text for text in texts if (split_of(letters(text)) == "dev") == (split == "dev"))
    else:
        yield from read_lines(local[split] or local["dev"])


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file, whose words stand apart from their signs, as people write them."""
    try:
        with open(path, encoding="utf-8") as file:
            yield from map(spaced, file)
    except UnicodeDecodeError:
        raise Refusal(f"{path.name} is not UTF-8 text; save it as UTF-8.") from None
