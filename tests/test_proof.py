"""What finished runs are for: comparing, checking, repeating, locating, and the same from Python."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from roads import ROWS, Stop, measuring, numbers, results_of, times
from tiny import quiet_run

import evenhand
from evenhand import api, steps
from evenhand.config import Refusal
from evenhand.data.genbiaseval import GenBiasEval
from evenhand.lm import LM
from evenhand.locators.bmi import BMI
from evenhand.metrics.afgb import AFGB
from evenhand.recipe import job_of, repeat
from evenhand.run import Run

# Compare and check


def test_comparing_a_run_with_its_base_gives_its_own_verdicts(base: Path, fair: Path) -> None:
    assert steps.compare(base, fair) == numbers(results_of(fair))


def test_comparing_a_run_with_itself_shows_no_change(base: Path) -> None:
    for verdict in steps.compare(base, base)["verdicts"].values():
        assert verdict == {"delta": 0, "low": 0, "high": 0, "p": 1, "verdict": "inconclusive"}


@pytest.mark.usefixtures("no_page")
def test_runs_that_cannot_be_compared_are_refused(base: Path, tiny: str, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="gone is not a finished run; give a finished run's folder"):
        steps.compare(base, tmp_path / "gone")
    (tmp_path / "half.part").mkdir()
    with pytest.raises(Refusal, match=r"finish it with `evenhand run .*half\.part`"):
        steps.compare(base, tmp_path / "half")
    steps.measure(measuring(tiny, metrics=["perplexity:plain_text"], limit=3), tmp_path / "x", quiet=True)
    with pytest.raises(Refusal, match="no metric in common"):
        steps.compare(base, tmp_path / "x")
    other = measuring(tiny, metrics=["afgb"], settings={"data": {"axis": "age"}}, limit=3)
    steps.measure(other, tmp_path / "age", quiet=True)
    with pytest.raises(Refusal, match="different rows"):
        steps.compare(base, tmp_path / "age")


def written(folder: Path, results: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    return folder


@pytest.fixture
def known(tmp_path: Path) -> Path:
    """A debias run with round numbers: perplexity from 21 to 22, agreement from .6 to .5, the gap from .2 to .1."""

    def entry(value: float, ideal: float) -> dict[str, Any]:
        return {"value": value, "ideal": ideal}

    before = {"afgb": entry(0.2, 0), "ub": entry(0.6, 1), "perplexity": entry(21, 1)}
    after = {"afgb": entry(0.1, 0), "ub": entry(0.5, 1), "perplexity": entry(22, 1)}
    return written(tmp_path / "known", {"before": before, "after": after, "verdicts": {}, "train": {}})


@pytest.mark.parametrize(
    ("most", "least", "regression", "failed"),
    [
        ({"afgb": 0.1}, {}, {}, []),
        ({"afgb": 0.09}, {}, {}, ["afgb is 0.1, above the bound 0.09"]),
        ({}, {"ub": 0.5}, {}, []),
        ({}, {"ub": 0.51}, {}, ["ub is 0.5, below the bound 0.51"]),
        ({"afgb": 0.2}, {"afgb": 0.05}, {}, []),
        ({"afgb": 0.05}, {"afgb": 0.01}, {}, ["afgb is 0.1, above the bound 0.05"]),
        ({"afgb": 0.3}, {"afgb": 0.2}, {}, ["afgb is 0.1, below the bound 0.2"]),
        ({"afgb": 0.05, "ub": 0.1}, {"perplexity": 30}, {}, ["afgb", "ub", "perplexity"]),
        ({}, {}, {"afgb": "0"}, []),
        ({}, {}, {"perplexity": "1"}, []),
        ({}, {}, {"perplexity": "0.9"}, ["perplexity moved 1 away from its ideal, more than the 0.9 allowed"]),
        ({}, {}, {"perplexity": "5%"}, []),
        ({}, {}, {"perplexity": "4%"}, ["perplexity moved 1 away from its ideal, more than the 4% allowed"]),
        ({}, {}, {"ub": "0.05"}, ["ub moved 0.1 away from its ideal"]),
        ({}, {}, {"ub": "20%"}, []),
    ],
)
def test_check_names_each_threshold_that_is_missed(
    most: dict[str, float], least: dict[str, float], regression: dict[str, str], failed: list[str], known: Path
) -> None:
    found = steps.check(known, most, least, regression)
    assert len(found) == len(failed), found
    for line, beginning in zip(found, failed, strict=True):
        assert line.startswith(beginning)


def test_check_refuses_what_it_cannot_decide(known: Path, base: Path, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="has no metric 'afbg'; it measured afgb, ub, perplexity"):
        steps.check(known, {"afbg": 1}, {}, {})
    with pytest.raises(Refusal, match="no measurement before; --max-regression needs a debias run"):
        steps.check(base, {}, {}, {"afgb": "1"})
    with pytest.raises(Refusal, match=r"'much' is not an amount; write 0\.5 or 2%"):
        steps.check(known, {}, {}, {"afgb": "much"})
    with pytest.raises(Refusal, match="is not a finished run"):
        steps.check(tmp_path / "gone", {"afgb": 1}, {}, {})


# Locate


def test_locate_keeps_the_ranking(tiny: str, tmp_path: Path) -> None:
    job = job_of(
        {
            "command": "locate",
            "model": tiny,
            "locator": "bmi",
            "limit": 10,
            "settings": {"locate": {"final_norm": False}},
        }
    )
    table = steps.locate(job, tmp_path / "x", quiet=True)
    direct = BMI(final_norm=False).rank(LM.load(tiny), GenBiasEval().take("train", 10), quiet_run(tmp_path / "y"))
    pd.testing.assert_frame_equal(table.drop(columns="chosen"), direct.table)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "x" / "ranking.parquet"), table)
    results = results_of(tmp_path / "x")
    assert results["best"] == direct.best == int(table.loc[table["chosen"], "block"].iloc[0])
    assert [entry["block"] for entry in results["ranking"]] == [0, 1, 2]
    assert (tmp_path / "x" / "report.html").exists()


# Repeat


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("kind", ["base", "fair"])
def test_a_run_can_be_repeated(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    original: Path = request.getfixturevalue(kind)
    folder = repeat(str(original), tmp_path / "again", {}, overwrite=False, quiet=True)
    assert folder == tmp_path / "again"
    assert numbers(results_of(folder)) == numbers(results_of(original))
    assert Run(folder).read("config.yaml") == Run(original).read("config.yaml")


def test_a_finished_run_is_not_repeated_onto_itself(base: Path) -> None:
    with pytest.raises(Refusal, match="base is finished; give the repetition a folder of its own with --out"):
        repeat(str(base), None, {}, overwrite=False, quiet=True)


@pytest.mark.usefixtures("no_page")
def test_an_unfinished_run_is_finished_by_its_name(
    base: Path, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(steps, "record_environment", stop)
        with pytest.raises(Stop):
            steps.measure(measuring(tiny), tmp_path / "v1.0", quiet=True)
    before = times(tmp_path / "v1.0.part")
    folder = repeat(str(tmp_path / "v1.0.part"), None, {}, overwrite=False, quiet=True)
    assert folder == tmp_path / "v1.0"
    assert times(folder) == before
    assert results_of(folder)["scores"] == results_of(base)["scores"]


def test_what_cannot_be_repeated_is_refused(inside: Path) -> None:
    for target, reason in (
        ("lftf_tabel", "There is no recipe or run 'lftf_tabel'.*did you mean 'lftf_table'"),
        ("gone.yaml", "There is no file"),
    ):
        with pytest.raises(Refusal, match=reason):
            repeat(target, None, {}, overwrite=False, quiet=True)
    (inside / "odd.yaml").write_text("command: dance\nmodel: m\n", encoding="utf-8")
    with pytest.raises(Refusal, match="there is no command 'dance'; choose from measure, locate, debias"):
        repeat("odd.yaml", None, {}, overwrite=False, quiet=True)
    (inside / "wrong.yaml").write_text("command: measure\nmodle: m\n", encoding="utf-8")
    with pytest.raises(Refusal, match=r"has no option 'modle'.*did you mean 'model'"):
        repeat("wrong.yaml", None, {}, overwrite=False, quiet=True)


@pytest.mark.usefixtures("no_page")
def test_a_table_has_a_line_a_row_and_is_gone_on_with(tiny: str, tmp_path: Path) -> None:
    recipe = {
        "model": "replaced by --model",
        "metrics": ["afgb"],
        "limit": 8,
        "train_limit": 32,
        "seeds": [0, 1],
        "rows": {
            "prompt": {"method": "prompt"},
            "lftf": {"method": "lftf", "settings": {"method": {"block": 1, "epochs": 2, "batch": 4, "rate": 0.01}}},
        },
    }
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")

    def follow() -> Path:
        return repeat(str(tmp_path / "two.yaml"), tmp_path / "out", {"model": tiny}, overwrite=False, quiet=True)

    folder = follow()
    lines = (folder / "table.md").read_text(encoding="utf-8").splitlines()
    assert [line.split("|")[1].strip() for line in lines] == ["row", "---", "base", "prompt", "lftf"]
    assert len({line.count("|") for line in lines}) == 1
    base = results_of(folder / "base")["scores"]["afgb"]["value"]
    for row, line in zip(("prompt", "lftf"), lines[3:], strict=True):
        found = [results_of(folder / f"{row}-{seed}")["after"]["afgb"]["value"] for seed in (0, 1)]
        assert found[0] != found[1]
        change = 100 * (np.mean(found) / base - 1)
        expected = f"{np.mean(found):.4g} ± {np.std(found, ddof=1):.2g} ({change:+.1f} %)"
        assert line.split("|")[2].strip() == expected
    done = {path: path.stat().st_mtime_ns for path in folder.rglob("results.json")}
    assert len(done) == 5
    follow()
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("results.json")} == done


# From Python


def test_the_verbs_are_functions_whatever_was_imported_before() -> None:
    for name in ("locators", "page", "metrics", "methods", "data", "steps", "api", "recipe", "run", "lm"):
        importlib.import_module(f"evenhand.{name}")
    for verb in ("measure", "locate", "debias", "compare", "check", "report", "export"):
        assert callable(getattr(evenhand, verb)), verb
    assert evenhand.LM is LM
    assert evenhand.Run is Run
    with pytest.raises(AttributeError, match="evenhand has no 'measures'"):
        _ = evenhand.measures  # pyright: ignore


def test_the_road_from_python(tiny: str, base: Path, fair: Path, tmp_path: Path) -> None:
    scores = api.measure(tiny, ["afgb"], limit=ROWS, quiet=True)["scores"]
    assert scores["afgb"] == results_of(base)["scores"]["afgb"]
    assert len(api.locate(tiny, "bmi", limit=4, quiet=True)) == 3
    run = api.debias(tiny, "prompt", tmp_path / "x", metrics=["afgb"], limit=ROWS, before=str(base), quiet=True)
    assert run.folder == tmp_path / "x"
    assert run.read("results.json")["before"]["afgb"] == scores["afgb"]
    with pytest.raises(Refusal, match="x exists already"):
        api.debias(tiny, "prompt", tmp_path / "x", metrics=["afgb"], limit=ROWS, quiet=True)
    assert api.compare(str(base), str(fair))["verdicts"] == results_of(fair)["verdicts"]
    value = results_of(fair)["after"]["afgb"]["value"]
    assert api.check(fair, most={"afgb": value}) == []
    assert len(api.check(fair, most={"afgb": value / 2}, max_regression={"afgb": "-100%"})) == 2
    before = (run.folder / "report.html").read_text(encoding="utf-8")
    (run.folder / "report.html").unlink()
    assert api.report(run.folder).read_text(encoding="utf-8") == before


def test_an_exported_run_measures_the_same(fair: Path, tmp_path: Path) -> None:
    assert api.export(fair, tmp_path / "exported") < 1e-4
    table = AFGB().score(
        LM.load(str(tmp_path / "exported")), GenBiasEval().take("test", ROWS), quiet_run(tmp_path / "y")
    )
    assert AFGB().summarise(table).value == pytest.approx(results_of(fair)["after"]["afgb"]["value"], rel=1e-5)
    with pytest.raises(Refusal, match="exported exists already"):
        api.export(fair, tmp_path / "exported")
