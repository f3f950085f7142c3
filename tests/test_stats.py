"""Intervals and verdicts against scipy, against simulation, and by hand."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from scipy.stats import bootstrap, false_discovery_control

from evenhand.config import options
from evenhand.data._rows import Text
from evenhand.metrics._base import Metric
from evenhand.stats import adjust, compare_draws, interval, resample

SIMULATIONS = 300


@options
class Mean(Metric):
    """The mean of a column."""

    reads: ClassVar = Text
    data: ClassVar = "plain_text"
    ideal: ClassVar = 0.0
    low: ClassVar = -np.inf
    high: ClassVar = np.inf
    headline: ClassVar = "mean"
    sums: ClassVar = ("x",)

    def value(self, totals: Mapping[str, Any], count: Any) -> Any:
        return totals["x"] / count


@options
class MeanBySubject(Mean):
    """The mean of a column whose rows belong to subjects."""

    unit: ClassVar = "subject"


def table(x: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"id": [f"row-{number:04}" for number in range(len(x))], "group": "", "x": x})


def test_draws_of_a_mean_agree_with_scipy() -> None:
    x = np.random.default_rng(1).exponential(size=200)
    ours = interval(Mean().draws(table(x)))
    theirs = bootstrap((x,), np.mean, n_resamples=20_000, method="percentile", rng=2).confidence_interval
    # A quantile of 2000 draws has a standard error of about 6 % of the interval's half width.
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.25 * (theirs.high - theirs.low) / 2)
    assert ours[0] < x.mean() < ours[1]


def test_draws_of_a_ratio_agree_with_a_loop() -> None:
    """The totals of a draw are those of the rows it takes, as a plain loop adds them up."""
    x = np.random.default_rng(3).normal(size=30)
    weights = resample(np.eye(30), draws=2000, seed=0).astype(int)
    slow = [np.repeat(x, weights[draw]).mean() for draw in range(50)]
    assert Mean().draws(table(x))[:50] == pytest.approx(slow, abs=1e-12)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    generator = np.random.default_rng(4)
    covered = 0
    for _ in range(SIMULATIONS):
        low, high = interval(Mean().draws(table(generator.normal(0.3, 1, size=40))))
        covered += low <= 0.3 <= high
    assert 0.90 <= covered / SIMULATIONS <= 0.985


def test_p_values_are_even_where_nothing_changes() -> None:
    generator = np.random.default_rng(5)
    p = []
    for _ in range(SIMULATIONS):
        before = generator.normal(0.5, 1, size=40)
        after = before + generator.normal(0, 0.3, size=40)
        p.append(Mean().compare(table(before), table(after)).p)
    below = np.mean(np.array(p) < 0.05)
    assert 0.01 <= below <= 0.12
    assert 0.35 <= np.mean(np.array(p) < 0.5) <= 0.65


def test_a_clear_change_is_clear_only_when_paired() -> None:
    generator = np.random.default_rng(6)
    before = generator.normal(1.0, 1, size=200)
    after = before - 0.05 + generator.normal(0, 0.05, size=200)
    change = Mean().compare(table(before), table(after))
    assert change.p < 0.002
    assert change.nearer
    assert change.low < change.delta < change.high < 0
    # Unpaired, the same change drowns in the spread of the rows.
    apart = compare_draws(
        before.mean(), after.mean(), Mean().draws(table(before)), Mean().draws(table(after), seed=1), 0.0
    )
    assert apart.p > 0.05


def test_no_change_has_p_one() -> None:
    x = table(np.random.default_rng(7).normal(size=20))
    change = Mean().compare(x, x)
    assert (change.delta, change.low, change.high, change.p, change.nearer) == (0, 0, 0, 1, False)


@pytest.mark.parametrize(
    ("ideal", "before", "after", "nearer"),
    [
        (50.0, 65.0, 52.0, True),
        (50.0, 52.0, 65.0, False),
        (50.0, 35.0, 48.0, True),  # nearer 50 though higher
        (50.0, 60.0, 45.0, True),  # nearer on the other side
        (0.0, 0.2, 0.1, True),
        (0.0, -0.2, 0.1, True),
        (0.0, 0.1, 0.2, False),
        (1.0, 0.6, 0.9, True),
        (1.0, 30.0, 33.0, False),
    ],
)
def test_better_is_nearer_the_ideal(ideal: float, before: float, after: float, nearer: bool) -> None:
    noise = np.random.default_rng(8).normal(0, 0.001, size=(2, 2000))
    change = compare_draws(before, after, before + noise[0], after + noise[1], ideal)
    assert change.nearer is nearer
    assert change.delta == pytest.approx(after - before)
    assert change.p < 0.01


def test_crossing_the_ideal_to_the_same_distance_is_no_change() -> None:
    noise = np.random.default_rng(9).normal(0, 0.5, size=(2, 2000))
    assert compare_draws(45, 55, 45 + noise[0], 55 + noise[1], 50.0).p > 0.3


def test_adjusted_p_values_are_scipys_and_never_lower() -> None:
    generator = np.random.default_rng(10)
    for count in (1, 2, 3, 8):
        p = {f"metric-{number}": float(value) for number, value in enumerate(generator.uniform(0, 0.2, size=count))}
        adjusted = adjust(p)
        assert list(adjusted) == list(p)
        assert list(adjusted.values()) == pytest.approx(false_discovery_control(list(p.values()), method="by"))
        assert all(adjusted[name] >= p[name] for name in p)
    assert adjust({"only": 0.04}) == {"only": 0.04}
    assert adjust({}) == {}


def test_a_draw_takes_as_many_units_as_there_are() -> None:
    weights = resample(np.eye(37), draws=500, seed=1)
    assert weights.shape == (500, 37)
    assert (weights.sum(1) == 37).all()
    assert weights.mean(0) == pytest.approx(1, abs=0.2)
    assert (weights == resample(np.eye(37), draws=500, seed=1)).all()
    assert (weights != resample(np.eye(37), draws=500, seed=2)).any()


def test_rows_of_one_subject_are_drawn_together() -> None:
    """Forty copies of each of five rows say no more than the five rows do."""
    five = np.random.default_rng(11).normal(size=5)
    copies = table(np.repeat(five, 40)).assign(subject=np.repeat([f"s{number}" for number in range(5)], 40))
    small = table(five).assign(subject=[f"s{number}" for number in range(5)])
    assert MeanBySubject().draws(copies) == pytest.approx(MeanBySubject().draws(small), abs=1e-12)
    wide, narrow = MeanBySubject().draws(copies).std(), Mean().draws(copies).std()
    assert wide == pytest.approx(narrow * np.sqrt(40), rel=0.1)


def test_draws_do_not_depend_on_the_order_of_rows() -> None:
    x = table(np.random.default_rng(12).normal(size=50))
    shuffled = x.sample(frac=1, random_state=1)
    assert not x["id"].equals(shuffled["id"].reset_index(drop=True))
    assert Mean().draws(x) == pytest.approx(Mean().draws(shuffled), abs=1e-12)
