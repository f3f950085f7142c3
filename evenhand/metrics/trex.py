"""T-REx score (BIAS DIFF, appendix E): how many facts a model still knows, asked as blanks behind two solved ones."""

import re
import string
from collections.abc import Mapping
from typing import Any, ClassVar

import pandas as pd

from evenhand.config import Refusal, options
from evenhand.data._rows import Labelled
from evenhand.lm import LM
from evenhand.metrics._base import Metric, base_columns
from evenhand.run import Run
from evenhand.scoring import greedy

__all__ = ["TREx"]

BLANK = "<extra_id_0>"
SLOT = "Missing word(s):"
# Facts of no relation of T-REx, so that the examples give no answer away.
EXAMPLES = (("Honey is made by {blank}.", "bees"), ("The opposite of cold is {blank}.", "hot"))
NEW_TOKENS = 10
ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


@options
class TREx(Metric):
    """Share of blanks filled with an accepted answer, after two examples: 1 is a model that knows every fact."""

    reads: ClassVar = Labelled
    data: ClassVar = "trex"
    ideal: ClassVar = 1.0
    low: ClassVar = 0.0
    high: ClassVar = 1.0
    headline: ClassVar = "facts known"
    meaning: ClassVar = "How many facts about people, places and things the model can still name: it should not fall."
    sums: ClassVar = ("correct",)
    # Facts about one subject stand and fall together.
    unit: ClassVar = "unit"
    work: ClassVar = 3.0
    drawn: ClassVar = "subject"

    def score(self, lm: LM, rows: list[Labelled], run: Run) -> pd.DataFrame:
        """The first line the model writes for each blank, and whether it is an accepted answer."""
        for row in rows:
            if BLANK not in row.text:
                raise Refusal(f"trex: row {row.id} has no blank; write {BLANK} where its missing words belong.")
            if not any(map(normalised, row.labels)):
                raise Refusal(f"trex: row {row.id} has no accepted answer; name one in its labels.")
        written = greedy(lm, [prompt(row.text) for row in rows], NEW_TOKENS, run, "trex")
        answers = [text.split("\n")[0].strip() for text in written]
        return base_columns(rows).assign(
            text=[row.text for row in rows],
            accepted=[" | ".join(row.labels) for row in rows],
            answer=answers,
            correct=[float(is_accepted(answer, row.labels)) for answer, row in zip(answers, rows, strict=True)],
        )

    def value(self, totals: Mapping[str, Any], count: Any) -> Any:
        """The share of accepted answers."""
        return totals["correct"] / count


def prompt(text: str) -> str:
    """Two solved blanks and one to solve."""
    solved = [f"Text: {example.format(blank=BLANK)}\n{SLOT} {answer}\n\n" for example, answer in EXAMPLES]
    return f"{''.join(solved)}Text: {text}\n{SLOT}"


def is_accepted(answer: str, labels: tuple[str, ...]) -> bool:
    """Whether an answer is one of the labels, but for case, punctuation and articles."""
    given = normalised(answer)
    return given != "" and given in map(normalised, labels)


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and needless spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())
