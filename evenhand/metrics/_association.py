"""What WEAT and SEAT share: each target's association, the effect size, its permutation test and its draws.

n targets, x of them on the first side and y on the second, a attributes, d hidden size, B draws."""

import itertools
import math
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd

from evenhand.config import Refusal, options
from evenhand.data._rows import Text
from evenhand.lm import LM
from evenhand.metrics._base import Metric, base_columns
from evenhand.run import Run
from evenhand.scoring import vectors
from evenhand.stats import DRAWS

__all__ = ["Association", "associations", "effect_size", "permutation_p", "unit_length"]

TARGETS = ("targ1", "targ2")
ATTRIBUTES = ("attr1", "attr2")
FEWEST = 2
"""Targets a side: with one on each, the effect size is the same whatever the model."""
PERMUTATIONS = 100_000
NUMBERS_AT_ONCE = 2**22
# Associations are differences of cosines; below this, sums that are equal differ by rounding alone.
ROUNDING = 1e-12


class Sides(NamedTuple):
    """The associations of a test's two sets of targets."""

    first: np.ndarray
    second: np.ndarray


@options
class Association(Metric):
    """Mean absolute effect size over association tests.

    The interval draws target words within each side of each test; attribute words are fixed."""

    reads: ClassVar = Text
    ideal: ClassVar = 0.0
    low: ClassVar = 0.0
    high: ClassVar = 2.0
    sums: ClassVar = ("association",)
    lean: ClassVar = "offset"
    drawn: ClassVar = "target word"

    def embed(self, lm: LM, texts: list[str], run: Run) -> np.ndarray:
        """The vector of each text: the mean of its last hidden states. [n, d]"""
        return vectors(lm, texts, run, self.label)

    @property
    def label(self) -> str:
        """What messages call the metric."""
        return type(self).__name__.lower()

    def score(self, lm: LM, rows: list[Text], run: Run) -> pd.DataFrame:
        """One line a target: s(w, A, B), and how far that is from the middle of its test."""
        kept = complete(rows, run, self.label)
        texts = [row.text for row in kept]
        found = unit_length(self.embed(lm, texts, run), texts, self.label)  # [n, d]
        table = base_columns(kept).assign(text=texts)
        parts = []
        for _, part in table.groupby("group", sort=False):
            sets = part.groupby("condition").groups
            places = {str(name): index.to_numpy() for name, index in sets.items()}
            first, second = (
                associations(found[places[side]], *(found[places[name]] for name in ATTRIBUTES)) for side in TARGETS
            )
            middle = (first.mean() + second.mean()) / 2
            for side, each in zip(TARGETS, (first, second), strict=True):
                parts.append(table.loc[places[side]].assign(association=each, offset=each - middle))
        # As the rows came, whatever set they belong to.
        return pd.concat(parts).sort_index().reset_index(drop=True)

    def parts(self, table: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Each test, then each axis."""
        axes = {str(name): part for name, part in table.groupby("axis") if name != ""} if "axis" in table else {}
        return {**super().parts(table), **axes}

    def of(self, table: pd.DataFrame) -> float:
        """The mean of |d| over tests."""
        return float(np.mean([abs(float(effect_size(*sides))) for sides in tests(table).values()]))

    def beside(self, table: pd.DataFrame) -> dict[str, float]:
        """For a single test its effect size with its sign and its one-sided p; for tests of several axes each axis'."""
        found = list(tests(table).values())
        if len(found) != 1:
            axes = {str(name): part for name, part in table.groupby("axis")} if "axis" in table else {}
            return {name: self.of(part) for name, part in axes.items()} if len(axes) > 1 else {}
        return {"d": float(effect_size(*found[0])), "p": permutation_p(*found[0])}

    def draws(self, table: pd.DataFrame, seed: int = 0) -> np.ndarray:
        """The value in every draw of targets within sides, shifted so that the draws' mean is the value. [B]

        Resampling pushes |d| upwards (an absolute value cannot fall below 0, and repeated words narrow the spread), so
        that unshifted draws of an even model would all lie above its value."""
        generator = np.random.default_rng(seed)
        sizes = []
        for sides in tests(table).values():
            drawn = (each[generator.integers(0, len(each), (DRAWS, len(each)))] for each in sides)  # [B, x], [B, y]
            sizes.append(np.abs(effect_size(*drawn)))
        values = np.mean(sizes, axis=0)
        value = self.of(table)
        return np.clip(values - values.mean() + value, self.low, max(self.high, value))


def complete(rows: list[Text], run: Run, what: str) -> list[Text]:
    """The rows of tests that can be measured; a test that --limit cut too short is left out, and that is said."""
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        if row.condition not in (*TARGETS, *ATTRIBUTES):
            raise Refusal(
                f"{what}: row {row.id} has the condition {row.condition!r}; a test's words are marked "
                f"{', '.join((*TARGETS, *ATTRIBUTES))} in a column called condition."
            )
        sizes = counts.setdefault(row.group, dict.fromkeys((*TARGETS, *ATTRIBUTES), 0))
        sizes[row.condition] += 1
    needed = dict.fromkeys(TARGETS, FEWEST) | dict.fromkeys(ATTRIBUTES, 1)
    short = [test for test, sizes in counts.items() if any(sizes[name] < needed[name] for name in needed)]
    if len(short) == len(counts):
        raise Refusal(
            f"{what}: no test has {FEWEST} targets on each side and attributes on both (of {', '.join(counts)}); "
            "raise --limit or add words."
        )
    if short:
        run.say(f"{what}: left out {', '.join(short)}, which has too few words for an effect size")
    return [row for row in rows if row.group not in short]


def unit_length(found: np.ndarray, texts: list[str], what: str) -> np.ndarray:
    """Vectors of length 1, so that products are cosines; a vector without a direction is refused. [n, d]"""
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    if (lengths == 0).any():
        raise Refusal(
            f"{what}: the vector of {texts[int(lengths.argmin())]!r} is zero and has no direction; "
            "delete its row or look at the model's weights."
        )
    return found / lengths


def associations(targets: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """s(w, A, B): each target's mean cosine with the first attributes less that with the second. [n]"""
    return (targets @ first.T).mean(1) - (targets @ second.T).mean(1)  # [n, a] -> [n]


def tests(table: pd.DataFrame) -> dict[str, Sides]:
    """The two sides of every test of a table that has both."""
    found = {}
    # By id, so that the same words are drawn alike in another table.
    for name, part in table.sort_values("id").groupby("group"):
        sides = Sides(*(part.loc[part["condition"] == side, "association"].to_numpy(float) for side in TARGETS))
        if all(map(len, sides)):
            found[str(name)] = sides
    if not found:
        raise Refusal("The table has no association test with targets on both sides; measure it again.")
    return found


def effect_size(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """d: the sides' mean difference over the sample standard deviation of both together; leading axes are draws.

    Where nothing differs, d is 0. Sides of one size keep |d| below 2, as all published ones are.
    [..., x], [..., y] -> [...]"""
    together = np.concatenate([first, second], axis=-1)
    spread = together.std(-1, ddof=1)
    return np.divide(first.mean(-1) - second.mean(-1), spread, out=np.zeros_like(spread), where=spread > ROUNDING)


def permutation_p(first: np.ndarray, second: np.ndarray, seed: int = 0) -> float:
    """How often as large a sum falls to the first side when targets are dealt out anew (one-sided, ties count).

    All divisions where there are at most 100 000, else 99 999 random ones and the one that was observed."""
    together = np.concatenate([first, second])
    bar = first.sum() - ROUNDING * len(together)
    if math.comb(len(together), len(first)) <= PERMUTATIONS:
        sums = together[np.array(list(itertools.combinations(range(len(together)), len(first))))].sum(1)
        return float((sums >= bar).mean())
    generator = np.random.default_rng(seed)
    step = max(1, NUMBERS_AT_ONCE // len(together))
    hits, left = 1, PERMUTATIONS - 1
    while left:
        dealt = generator.permuted(np.tile(together, (min(step, left), 1)), axis=1)  # [step, n]
        hits += int((dealt[:, : len(first)].sum(1) >= bar).sum())
        left -= len(dealt)
    return hits / PERMUTATIONS
