"""Every upstream dataset as a handful of rows of our own in its own format, where EVENHAND_DATA would have it."""

import gzip
import itertools
from pathlib import Path

from corpora import corpora_folder
from test_association import write_test
from test_bbq import bbq_folder
from test_crows_pairs import records
from test_crows_pairs import write as write_pairs
from test_generation import facts_file
from test_stereoset import content
from test_stereoset import written as write_items
from test_wino import winobias_folder, winogender_folder

from evenhand.data.seat import TESTS as SENTENCES
from evenhand.data.weat import TESTS as WORDS

__all__ = ["write_upstream"]


def write_upstream(folder: Path) -> Path:
    """At least eight rows of each dataset."""
    (folder / "wikitext2_raw").mkdir()
    for split in ("train", "valid", "test"):
        packed = gzip.compress("".join(f" {split} {number} . \n \n" for number in range(4)).encode())
        (folder / "wikitext2_raw" / f"{split}.raw.gz").write_bytes(packed)
    write_pairs(folder, [{**each, "": number} for number, each in enumerate(2 * records())])
    whole = content()
    for task, items in whole["data"].items():
        again = [{**item, "id": f"again-{item['id']}", "target": "another term"} for item in items]
        whole["data"][task] = items + again
    write_items(folder, whole)
    bbq_folder(folder)
    winogender_folder(folder)
    winobias_folder(folder)
    for name in itertools.chain(*WORDS.values(), *SENTENCES.values()):
        write_test(folder, name, 4)
    facts_file(folder, "P36", *((f"Country {letter}", f"Town {letter}") for letter in "ABCDEFGH"))
    corpora_folder(folder)
    return folder
