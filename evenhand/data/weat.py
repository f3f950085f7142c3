"""WEAT's word lists (Caliskan et al. 2017) as sent-bias publishes them: one file a test, four sets in each."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from evenhand.config import Absent, Refusal, options
from evenhand.data._base import Dataset, Source, upstream_file
from evenhand.data._rows import Text

__all__ = ["WEAT"]

AxisName = Literal["gender", "race", "religion", "age", "other"]

SETS = ("targ1", "targ2", "attr1", "attr2")
# The grouping of bias-bench; "other" is about flowers, instruments and diseases, or outside its grouping.
TESTS: dict[AxisName, tuple[str, ...]] = {
    "gender": ("weat6", "weat6b", "weat7", "weat7b", "weat8", "weat8b"),
    "race": (
        "weat3",
        "weat3b",
        "weat4",
        "weat5",
        "weat5b",
        "angry_black_woman_stereotype",
        "angry_black_woman_stereotype_b",
    ),
    "age": ("weat10",),
    "other": (
        "weat1",
        "weat2",
        "weat9",
        "heilman_double_bind_competent_one_word",
        "heilman_double_bind_likable_one_word",
    ),
}


@options
class WEAT(Dataset):
    """Words of the association tests: one row a word, its group the test, its condition one of the test's four sets."""

    kind: ClassVar = Text
    source: ClassVar = Source(licence="CC BY-NC 4.0", citation="Caliskan et al. 2017; files of May et al. 2019")

    axes: tuple[AxisName, ...] = ()
    """The axes whose tests are taken; empty: gender, race and age."""
    tests: tuple[str, ...] = ()
    """The tests taken, by name (weat6b, weat7, ...), whatever their axis; empty: all of the axes."""

    def rows(self, split: str) -> Iterator[Text]:
        """Test after test, in each the four sets by turns, so that a cut leaves whole tests and one shorter one."""
        for axis, name in chosen(TESTS, self.axes, self.tests):
            yield from by_turns(name, axis, read_sets(name))


def chosen(
    known: Mapping[AxisName, Sequence[str]], axes: Sequence[AxisName], tests: Sequence[str]
) -> list[tuple[AxisName, str]]:
    """The tests asked for with their axes; a test or an axis that is not there is refused with the choices."""
    everything = [(axis, name) for axis, names in known.items() for name in names]
    names = [name for _, name in everything]
    for name in tests:
        if name not in names:
            raise Refusal(f"There is no association test {name!r}; choose from {', '.join(names)}.")
    for axis in axes:
        if axis not in known:
            raise Refusal(f"There is no association test about {axis!r} here; choose from {', '.join(known)}.")
    if tests:
        return [(axis, name) for axis, name in everything if name in tests]
    return [(axis, name) for axis, name in everything if (axis in axes if axes else axis != "other")]


def by_turns(name: str, axis: str, sets: Mapping[str, Sequence[str]]) -> Iterator[Text]:
    """The first of each of the four sets, the second of each, and so on: any beginning has a little of every set."""
    for number, each in enumerate(itertools.zip_longest(*(sets[part] for part in SETS))):
        for part, text in zip(SETS, each, strict=True):
            if text is not None:
                yield Text(id=f"{name}-{part}-{number}", axis=axis, group=name, condition=part, text=text)


def read_sets(name: str) -> dict[str, list[str]]:
    """The four sets of a test from its file, or a refusal that says what is missing."""
    path = upstream_file(f"seat/{name}.jsonl")
    if path is None:
        raise Absent(
            f"{name}.jsonl is in no folder seat of the folder that EVENHAND_DATA names, and the hub has none; put "
            "sent-bias's tests there, or measure word_sets, which comes with evenhand."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise Refusal(f"{path.name} is not valid JSON; take the file from sent-bias again.") from None
    return {part: examples(path, content, part) for part in SETS}


def examples(path: Path, content: Any, part: str) -> list[str]:
    """The examples of one set."""
    held = content.get(part) if isinstance(content, dict) else None
    found = held.get("examples") if isinstance(held, dict) else None
    if not isinstance(found, list) or not found or not all(isinstance(each, str) and each.strip() for each in found):
        raise Refusal(
            f"{path.name}: {part} has no list of texts called examples; a test is one JSON object with "
            f"{', '.join(SETS)}."
        )
    return found
