"""Intervals hold what they promise: over many simulated tables, about 95 % of them contain the true value."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from evenhand.data._rows import Labelled
from evenhand.metrics.bbq import BBQ, CONDITIONS
from evenhand.metrics.crows_pairs import CrowSPairs
from evenhand.metrics.label_f1 import LabelF1
from evenhand.metrics.stereoset import StereoSet
from evenhand.metrics.winogender import Winogender
from evenhand.stats import interval

TABLES = 300
Simulated = Callable[[np.random.Generator], pd.DataFrame]


def share(metric: object, simulate: Simulated, truth: float) -> float:
    """How often the interval of a simulated table contains the truth."""
    found = 0
    for seed in range(TABLES):
        low, high = interval(metric.draws(simulate(np.random.default_rng(seed))))  # pyright: ignore
        found += low <= truth <= high
    return found / TABLES


def named(size: int, **columns: np.ndarray) -> pd.DataFrame:
    """A table with everything that is grouped and drawn by."""
    ids = [f"row-{number}" for number in range(size)]
    return pd.DataFrame({"id": ids, "group": "", "condition": "", "unit": ids, **columns})


def test_crows_pairs_rows_drawn_one_by_one() -> None:
    def simulate(draw: np.random.Generator) -> pd.DataFrame:
        hit = (draw.random(200) < 0.62).astype(float)
        rest = dict.fromkeys(("tie", "stereo_hit", "stereo", "antistereo_hit", "antistereo"), np.zeros(200))
        return named(200, hit=hit, **rest)

    assert 0.92 < share(CrowSPairs(), simulate, 62) < 0.98


def terms(draw: np.random.Generator) -> pd.DataFrame:
    """Eighty terms of twenty items each; every term has a preference of its own, so items of one are alike."""
    own = np.repeat(draw.beta(2, 1.5, 80), 20)
    size = len(own)
    table = named(size, stereotyped=(draw.random(size) < own).astype(float), related=np.ones(size))
    return table.assign(unit=np.repeat([f"term-{number}" for number in range(80)], 20))


def test_stereoset_terms_are_drawn_whole() -> None:
    truth = 100 * 2 / 3.5
    assert 0.92 < share(StereoSet(), terms, truth) < 0.98
    # Items drawn one by one would promise too much: that is what the unit is for.
    assert share(StereoSet(), lambda draw: terms(draw).assign(unit=lambda table: table["id"]), truth) < 0.7


def test_bbq_templates_are_drawn_whole() -> None:
    def simulate(draw: np.random.Generator) -> pd.DataFrame:
        lean = np.repeat(draw.beta(3, 2, 50), 16)
        size = len(lean)
        known = draw.random(size) < 0.4
        biased = ~known & (draw.random(size) < lean)
        zero = np.zeros(size)
        columns = {f"{name}_{condition}": zero for condition in CONDITIONS for name in ("right", "wrong")}
        columns |= {f"{name}_{condition}": zero for condition in CONDITIONS for name in ("stereotyped", "contrary")}
        columns |= {
            "right_ambiguous": known.astype(float),
            "wrong_ambiguous": (~known).astype(float),
            "stereotyped_ambiguous": biased.astype(float),
            "contrary_ambiguous": (~known & ~biased).astype(float),
        }
        table = named(size, **columns, unanswered=zero, without_target=zero)
        return table.assign(unit=np.repeat([f"template-{number}" for number in range(50)], 16))

    assert 0.91 < share(BBQ(), simulate, 0.6 * (2 * 0.6 - 1)) < 0.98


def test_winogender_is_a_difference_of_shares() -> None:
    def simulate(draw: np.random.Generator) -> pd.DataFrame:
        male = np.arange(240) % 2 == 0
        right = draw.random(240) < np.where(male, 0.7, 0.6)
        columns = {name: np.zeros(240) for name in (*Winogender.sums, *Winogender.extra_sums)}
        columns |= {
            "right_male": (male & right).astype(float),
            "wrong_male": (male & ~right).astype(float),
            "right_female": (~male & right).astype(float),
            "wrong_female": (~male & ~right).astype(float),
        }
        return named(240, **columns)

    assert 0.92 < share(Winogender(), simulate, 0.1) < 0.98


def test_label_f1_is_no_mean_and_still_holds() -> None:
    labels = np.array(["a", "b", "c"])

    def simulate(draw: np.random.Generator, size: int = 200) -> pd.DataFrame:
        gold = draw.choice(3, size, p=[0.6, 0.3, 0.1])
        guess = np.where(draw.random(size) < 0.7, gold, draw.choice(3, size))
        rows = [Labelled(id=str(number), text="x", labels=(str(labels[each]),)) for number, each in enumerate(gold)]
        return LabelF1().from_predictions(rows, [(str(labels[each]),) for each in guess])

    truth = LabelF1().of(simulate(np.random.default_rng(10**6), 100_000))
    assert 0.91 < share(LabelF1(), simulate, truth) < 0.98


@pytest.mark.parametrize("metric", [CrowSPairs(), StereoSet(), BBQ(), LabelF1()], ids=lambda each: type(each).__name__)
def test_the_same_table_gives_the_same_interval(metric: CrowSPairs) -> None:
    size = 30
    draw = np.random.default_rng(0)
    columns = {name: draw.integers(0, 2, size).astype(float) for name in {*metric.sums, *metric.extra_sums}}
    table = named(size, **columns, **{"tp a": np.ones(size), "fp a": np.zeros(size), "fn a": np.zeros(size)})
    np.testing.assert_array_equal(metric.draws(table), metric.draws(table.copy()))
