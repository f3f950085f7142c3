"""The words and numbers of the report and of the terminal: headlines, gauges, examples, tables."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from report_page import write_records

from evenhand.page.cards import gauge
from evenhand.page.examples import biased, changed
from evenhand.page.folder import read
from evenhand.page.plain import amount, chance, duration, number, percent
from evenhand.page.story import headline
from evenhand.tables import scores_table


def marks(score: dict[str, Any]) -> dict[str, float]:
    """Where a gauge puts things."""
    text = str(gauge(score))
    found = {
        "ideal": r'd="M([\d.]+) ',
        "value": r'cx="([\d.]+)"',
        "low": r'x="([\d.]+)" y="8"',
        "wide": r'y="8" width="([\d.]+)',
    }
    return {name: float(re.findall(pattern, text)[0]) for name, pattern in found.items()}


def test_a_gauge_places_value_interval_and_ideal_on_the_whole_scale() -> None:
    score = {"value": 0.5, "low": 0.25, "high": 0.75, "ideal": 0, "range": [-1, 1]}
    assert marks(score) == {"ideal": 150.0, "value": 221.0, "low": 185.5, "wide": 71.0}
    assert marks(score | {"value": 3.0})["value"] == 292.0  # never outside the scale
    assert "ideal 0</text>" in gauge(score)
    assert ">−1</text>" in gauge(score)
    assert ">0</text>" not in gauge(score | {"range": [0, 1]})  # the ideal's label takes the place of the end's
    for lacking in ({"range": [1, None]}, {"range": None}, {"value": None}, {"range": [0, 0]}):
        assert gauge(score | lacking) == ""


def sentence(folder: Path, verdicts: dict[str, str], before: dict[str, float], after: dict[str, float]) -> str:
    """The headline of a debias run with these scores."""
    ideals = {"afgb": 0, "ub": 1, "perplexity": 1, "crows_pairs": 50}
    states = {
        name: {metric: {"value": value, "ideal": ideals[metric]} for metric, value in values.items()}
        for name, values in (("before", before), ("after", after))
    }
    results = {**states, "verdicts": {metric: {"verdict": verdict} for metric, verdict in verdicts.items()}}
    return headline(read(write_records(folder, results, command="debias"))).replace("\u00a0", " ")


def test_headline_says_what_happened(tmp_path: Path) -> None:
    before = {"perplexity": 20.0, "afgb": 0.5, "ub": 0.979}
    good = sentence(
        tmp_path,
        {"afgb": "improved", "ub": "inconclusive", "perplexity": "inconclusive"},
        before,
        {"perplexity": 20.06, "afgb": 0.08, "ub": 0.98},
    )
    assert good == (
        "The gap between the compared words fell by 84 %; "
        "hints are followed as before (UB 0.980); perplexity rose by 0.3 %."
    )
    bad = sentence(
        tmp_path,
        {"afgb": "inconclusive", "ub": "regressed", "crows_pairs": "regressed"},
        before | {"crows_pairs": 55.0},
        {"perplexity": 20.0, "afgb": 0.49, "ub": 0.6, "crows_pairs": 70.0},
    )
    assert bad == (
        "The gap between the compared words did not change measurably (0.500 before, 0.490 after); "
        "hints are followed less strongly (UB 0.979 before, 0.600 after); "
        "perplexity stayed the same; CrowS-Pairs got worse."
    )


def test_headline_counts_the_hints_that_are_followed(tmp_path: Path) -> None:
    score = {"value": 0.1, "ideal": 1}
    folder = write_records(tmp_path, {"scores": {"ub": score}})
    (folder / "tables").mkdir()
    p = {"p_he": [0.3, 0.2, 0.1, 0.4], "p_she": [0.1, 0.3, 0.2, 0.1]}
    pd.DataFrame({"axis": "gender", "hint": ["he", "she", "he", "he"], **p}).to_parquet(folder / "tables/ub.parquet")
    assert headline(read(folder)).replace("\u00a0", " ") == "Hints are followed (75 %)."


def test_headline_warns_when_the_words_are_avoided(tmp_path: Path) -> None:
    states = {
        state: {"afgb": {"value": value, "ideal": 0, "extra": {"mass": mass}}}
        for state, value, mass in (("before", 0.4, 0.6), ("after", 0.1, 0.15))
    }
    folder = write_records(tmp_path, {**states, "verdicts": {"afgb": {"verdict": "improved"}}}, command="debias")
    assert headline(read(folder)).endswith("the words themselves became less likely (0.600 before, 0.150 after).")


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (number(-0.2), "−0.200"),
        (number(-0.00001, 3, sign=True), "0.000"),
        (number(0.0000123), "1.2e−05"),
        (number(12345.6), "12,346"),
        (number(float("nan")), "–"),
        (percent(0.003), "0.3 %"),
        (percent(0.843), "84 %"),
        (percent(1.0), "100 %"),
        (percent(0.9951), "99.5 %"),
        (chance(0.0004), "< 0.001"),
        (duration(7210), "2 h 0 min"),
        (duration(3.21), "3.2 s"),
        (amount(134515008), "134.5 M"),
    ],
)
def test_numbers_are_written_for_people(made: str, wanted: str) -> None:
    assert made.replace("\u00a0", " ") == wanted


def test_examples_are_those_that_moved_most() -> None:
    ids = [f"row-{n}" for n in range(50)]
    before = pd.DataFrame({"id": ids, "group": "word", "text": ids, "p_he": 0.5, "p_she": 0.2})
    after = before.assign(p_he=0.5 - np.arange(50) / 100).sample(frac=1, random_state=0)
    rows = changed({"before": before, "after": after})
    assert [row.text for row in rows] == [f"row-{n}" for n in range(49, 39, -1)]
    assert rows[0].numbers == [("he", ["0.500", "0.010"]), ("she", ["0.200", "0.200"])]


def test_most_biased_examples_are_ranked_by_size_before_and_told_after() -> None:
    ids = [f"row-{n}" for n in range(30)]
    lean = np.where(np.arange(30) % 2, 1, -1) * np.arange(30) / 10
    before = pd.DataFrame({"id": ids, "group": "age", "condition": "ambiguous", "text": ids, "far_off": lean})
    after = before.assign(far_off=0.25).sample(frac=1, random_state=0)
    assert [e.numbers for e in biased({"measured": before}, "far_off")[:2]] == [
        [("far off", ["2.900"])],
        [("far off", ["−2.800"])],
    ]
    rows = biased({"before": before, "after": after}, "far_off")
    assert [row.text for row in rows] == [f"row-{n}" for n in range(29, 19, -1)]
    assert rows[1].numbers == [("far off", ["−2.800", "0.250"])]
    assert rows[0].about == "age, ambiguous"
    assert biased({"measured": before}, "") == biased({}, "far_off") == []
    assert biased({"measured": before.assign(far_off=0.0)}, "far_off") == []  # nothing leans, so nothing is shown


def test_an_example_of_several_lines_keeps_its_lines_apart() -> None:
    before = pd.DataFrame({"id": ["a", "a", "b"], "group": "", "text": ["x", "y", "z"], "lean": [0.1, 0.9, 0.5]})
    rows = biased({"before": before, "after": before.assign(lean=[0.2, 0.8, 0.4])}, "lean")
    assert [(row.text, row.numbers[0][1]) for row in rows] == [
        *(("y", ["0.900", "0.800"]), ("z", ["0.500", "0.400"]), ("x", ["0.100", "0.200"]))
    ]


def part(value: float, **more: Any) -> dict[str, Any]:
    """A score as `measure` writes it."""
    interval = {"low": value - 1, "high": value + 1, "n": 30, "extra": {}}
    return {"value": value, **interval, "ideal": 50, "headline": "what is preferred", "groups": {}, **more}


def test_terminal_table_is_plain_and_has_one_line_a_number() -> None:
    names = ["age", "[bold]race", *(f"group {n} with quite a long name of its own" for n in range(2, 9))]
    groups = {name: part(50.0 + place) for place, name in enumerate(names)}
    scores = {"crows_pairs": part(54.0, groups=groups, extra={"lms": 91.25}), "weat": part(50.5)}
    lines = scores_table(scores, {"gas": "It needs names."}, {"harness:mmlu": "Not installed."}).splitlines()
    assert lines[0].split("  ")[0] == "metric"
    assert [line.split("  ")[0] for line in lines if line[:1].isalpha()] == [
        *("metric", "crows_pairs", "weat", "failed gas: It needs names.", "skipped harness:mmlu: Not installed.")
    ]
    assert [line.split("  ")[1] for line in lines if line.startswith("  ")] == ["lms", *names]
    assert re.search(r"^  \[bold\]race +51 \[50, 52\] +30$", "\n".join(lines), re.MULTILINE)
    assert "\x1b" not in "\n".join(lines)


def test_terminal_table_keeps_the_groups_farthest_from_the_ideal() -> None:
    groups = {f"group {n}": part(50.0 + n) for n in range(27)} | {"none": part(0) | {"value": None}}
    lines = scores_table({"bbq": part(63.0, groups=groups)}).splitlines()
    assert [line.split("  ")[1] for line in lines if line.startswith("  ")] == [
        *(f"group {n}" for n in range(7, 27)),
        "and 8 groups nearer the ideal",
    ]


def test_terminal_table_fits_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.setenv("TERM", "xterm")
    text = scores_table({"crows_pairs": part(54.0, headline="a very long saying " * 12)})
    assert "\x1b[1m" in text
    assert max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in text.splitlines()) <= 110
