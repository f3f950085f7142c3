"""SEAT (May et al. 2019): WEAT on sentences that say nothing but the word."""

from typing import ClassVar

from evenhand.config import options
from evenhand.metrics._association import Association

__all__ = ["SEAT"]


@options
class SEAT(Association):
    """Mean absolute effect size |d| of sentence association tests: 0 is even-handed, 2 the largest there is.

    A word stands in several sentences of a file that does not name the word, so sentences are drawn one by one and the
    interval is narrower than one over words would be."""

    data: ClassVar = "seat"
    headline: ClassVar = "association of sentences with groups"
    meaning: ClassVar = (
        "Whether the model places sentences about one group nearer to, say, career and those about another nearer to "
        "family: 0 is no difference, 0.8 is called large, 2 is the most."
    )
