"""SEAT (May et al. 2019): WEAT's words put into sentences that say nothing else, as sent-bias publishes them."""

from collections.abc import Iterator
from typing import ClassVar

from evenhand.config import options
from evenhand.data._base import Dataset, Source
from evenhand.data._rows import Text
from evenhand.data.weat import TESTS as WORD_TESTS
from evenhand.data.weat import AxisName, by_turns, chosen, read_sets

__all__ = ["SEAT"]

# Each test of words has one of sentences; those about religion exist as sentences only.
TESTS: dict[AxisName, tuple[str, ...]] = {
    "gender": tuple(f"sent-{name}" for name in WORD_TESTS["gender"]),
    "race": tuple(f"sent-{name}" for name in WORD_TESTS["race"]),
    "religion": ("sent-religion1", "sent-religion1b", "sent-religion2", "sent-religion2b"),
    "age": tuple(f"sent-{name}" for name in WORD_TESTS["age"]),
    "other": tuple(f"sent-{name}" for name in WORD_TESTS["other"]),
}


@options
class SEAT(Dataset):
    """Sentences of the association tests: one row a sentence, its group the test, its condition one of four sets."""

    kind: ClassVar = Text
    source: ClassVar = Source(
        licence="CC BY-NC 4.0", citation="May et al. 2019; religion: bias-bench (Meade et al. 2022)"
    )

    axes: tuple[AxisName, ...] = ()
    """The axes whose tests are taken; empty: gender, race, religion and age."""
    tests: tuple[str, ...] = ()
    """The tests taken, by name (sent-weat6b, ...), whatever their axis; empty: all of the axes."""

    def rows(self, split: str) -> Iterator[Text]:
        """Test after test, in each the four sets by turns, so that a cut leaves whole tests and one shorter one."""
        for axis, name in chosen(TESTS, self.axes, self.tests):
            yield from by_turns(name, axis, read_sets(name))
