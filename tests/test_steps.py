"""The whole road on a tiny model: what a run writes, how it goes on after a stop, and that it can be repeated."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file
from tiny import quiet_run, tiny_folder

import evenhand
from evenhand import api, catalog, stats, steps
from evenhand.config import Refusal, values
from evenhand.data._base import checksum
from evenhand.data.genbiaseval import GenBiasEval
from evenhand.environment import fingerprint
from evenhand.lm import LM
from evenhand.locators.bmi import BMI
from evenhand.methods.lftf import LFTF
from evenhand.metrics.afgb import AFGB
from evenhand.recipe import job_of, repeat
from evenhand.run import Run
from evenhand.train import Curve

ROWS = 24
DOCUMENTED = {"value", "low", "high", "ideal", "n", "groups", "extra"}
# Beside the documented keys an entry says what it measured, so that others need not know the metric.
ENTRY = DOCUMENTED | {"headline", "unit", "data"}
SETTINGS = {"method": {"block": 1, "epochs": 2, "batch": 16, "rate": 0.003}}
TRAIN_ROWS = 96


def measuring(model: str, **fields: Any) -> steps.Job:
    return job_of({"command": "measure", "model": model, "limit": ROWS, **fields})


def debiasing(model: str, **fields: Any) -> steps.Job:
    content = {"command": "debias", "model": model, "method": "lftf", "limit": ROWS, "train_limit": TRAIN_ROWS}
    return job_of({**content, "settings": SETTINGS, **fields})


def results_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def numbers(results: dict[str, Any]) -> dict[str, Any]:
    """What a result says about the model, without what it took."""
    return {key: results[key] for key in ("scores", "before", "after", "verdicts") if key in results}


def times(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}


@pytest.fixture(scope="module")
def base(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished measure run."""
    folder = tmp_path_factory.mktemp("runs") / "base"
    steps.measure(measuring(tiny), folder, quiet=True)
    return folder


@pytest.fixture(scope="module")
def fair(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished debias run."""
    folder = tmp_path_factory.mktemp("runs") / "fair"
    steps.debias(debiasing(tiny), folder, quiet=True)
    return folder


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at numbers: a page takes longer than a tiny model's whole road."""
    monkeypatch.setattr(steps, "build_page", lambda folder: None)


# Measure


def test_measure_writes_one_line_an_example_and_one_entry_a_metric(base: Path) -> None:
    scores = results_of(base)["scores"]
    assert set(results_of(base)) == {"scores"}
    assert list(scores) == ["afgb", "ub", "perplexity"]
    for name, score in scores.items():
        assert set(score) == ENTRY
        table = pd.read_parquet(base / "tables" / f"{name}.parquet")
        assert len(table) == score["n"] == ROWS
        metric = catalog.load("metrics", name)()
        assert json.loads(json.dumps(metric.report(table))) == {key: score[key] for key in score if key != "data"}
        assert score["low"] <= score["value"] <= score["high"]
    assert {path.name for path in base.iterdir()} == {
        "config.yaml",
        "environment.json",
        "log.jsonl",
        "report.html",
        "results.json",
        "tables",
    }


def test_the_environment_names_versions_seed_and_checksums(base: Path, tiny: str) -> None:
    found = Run(base).read("environment.json")
    rows = GenBiasEval().take("test", ROWS)
    assert found["data"]["afgb"] == {"name": "genbiaseval", "checksum": checksum(rows)}
    assert found["data"]["afgb"] == results_of(base)["scores"]["afgb"]["data"]
    assert found["model"]["fingerprint"] == fingerprint(LM.load(tiny).model)
    assert found["seed"] == 0
    assert found["versions"]["torch"] == torch.__version__
    assert found["commit"]


def test_the_config_is_the_job(base: Path, tiny: str) -> None:
    assert Run(base).read("config.yaml") == values(measuring(tiny))


@pytest.mark.usefixtures("no_page")
def test_a_measurement_without_out_leaves_nothing(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: Path
) -> None:
    monkeypatch.setattr(steps.tempfile, "tempdir", str(tmp_path))
    results = steps.measure(measuring(tiny, metrics=["afgb"]), quiet=True)
    assert results["scores"]["afgb"] == results_of(base)["scores"]["afgb"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_page")
def test_another_axis_measures_other_words(tiny: str, tmp_path: Path) -> None:
    job = measuring(tiny, metrics=["afgb", "perplexity"], settings={"data": {"axis": "race"}})
    scores = steps.measure(job, tmp_path / "race", quiet=True)["scores"]
    table = pd.read_parquet(tmp_path / "race" / "tables" / "afgb.parquet")
    assert {"p_white", "p_black", "p_Asian"} < set(table.columns)
    assert set(table["axis"]) == {"race"}
    assert scores["afgb"]["data"]["checksum"] == checksum(GenBiasEval(axis="race").take("test", ROWS))


@pytest.mark.usefixtures("no_page")
def test_a_metric_can_name_its_dataset_and_its_options(tiny: str, tmp_path: Path) -> None:
    job = measuring(tiny, metrics=["perplexity", "perplexity:plain_text"], settings={"perplexity": {"window": 16}})
    scores = steps.measure(job, tmp_path / "x", quiet=True)["scores"]
    one, other = scores["perplexity"], scores["perplexity:plain_text"]
    assert one == other
    default = steps.measure(measuring(tiny, metrics=["perplexity"]), tmp_path / "y", quiet=True)["scores"]
    assert one["value"] != default["perplexity"]["value"]


@pytest.mark.parametrize("verb", ["measure", "locate", "debias"])
def test_settings_of_a_part_that_is_not_there_are_refused(verb: str, tiny: str, tmp_path: Path) -> None:
    content = {"command": verb, "model": tiny, "method": "lftf", "locator": "bmi", "settings": {"locatr": {"x": 1}}}
    with pytest.raises(Refusal, match="there is no part 'locatr'"):
        getattr(steps, verb)(job_of(content), tmp_path / "x", quiet=True)


# Debias


def test_debias_writes_before_after_verdicts_and_cost(fair: Path, base: Path) -> None:
    results = results_of(fair)
    assert {"before", "after", "verdicts", "train"} <= set(results) <= {*results, "seconds"}
    assert set(results) == {"before", "after", "verdicts", "train", "seconds"}
    assert results["before"] == results_of(base)["scores"]
    for name in ("afgb", "ub", "perplexity"):
        assert set(results["after"][name]) == ENTRY
        assert results["after"][name]["value"] != results["before"][name]["value"]
        assert set(results["verdicts"][name]) == {"delta", "low", "high", "p", "verdict"}
    for name in ("method.json", "delta.safetensors", "report.html", "curve.parquet", "train.json", "config.yaml"):
        assert (fair / name).exists(), name
    assert not list(fair.rglob("*.tmp"))
    assert not (fair / "checkpoints").exists()


def test_the_verdicts_are_those_of_the_tables(fair: Path) -> None:
    results = results_of(fair)
    changes = {}
    for name in results["after"]:
        tables = [pd.read_parquet(fair / state / f"{name}.parquet") for state in ("before", "after")]
        changes[name] = catalog.load("metrics", name)().compare(*tables)
    adjusted = stats.adjust({name: change.p for name, change in changes.items()})
    for name, change in changes.items():
        verdict = results["verdicts"][name]
        assert verdict["delta"] == pytest.approx(results["after"][name]["value"] - results["before"][name]["value"])
        assert (verdict["low"], verdict["high"], verdict["p"]) == (change.low, change.high, adjusted[name])
        word = "inconclusive" if adjusted[name] >= 0.05 else "improved" if change.nearer else "regressed"
        assert verdict["verdict"] == word
    assert {verdict["verdict"] for verdict in results["verdicts"].values()} != {"inconclusive"}


def test_the_saved_model_is_the_measured_one(fair: Path, tiny: str, tmp_path: Path) -> None:
    lm = LM.load(str(fair))
    table = AFGB().score(lm, GenBiasEval().take("test", ROWS), quiet_run(tmp_path))
    pd.testing.assert_frame_equal(table, pd.read_parquet(fair / "after" / "afgb.parquet"), atol=1e-6, rtol=1e-5)
    saved = Run(fair).read("method.json")
    before, after = LM.load(tiny).model.state_dict(), lm.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == set(saved["trained"]) == set(load_file(fair / "delta.safetensors")) == set(lm.trained)
    assert all(".layers.1." in name for name in changed)
    assert saved["base"] == tiny
    assert saved["options"] == values(LFTF(**SETTINGS["method"]))
    assert saved["state"] == {"block": 1}
    train = results_of(fair)["train"]
    assert train["trainable"] == sum(after[name].numel() for name in changed)
    assert train["total"] == sum(parameter.numel() for parameter in lm.model.parameters())


@pytest.mark.usefixtures("no_page")
def test_a_training_of_one_step_moves_the_model(tiny: str, tmp_path: Path) -> None:
    """A warm-up that begins at zero and is never left would train nothing and say nothing."""
    job = debiasing(tiny, metrics=["afgb"], train_limit=8, settings={"method": {"block": 1, "epochs": 1}})
    results = steps.debias(job, tmp_path / "x", quiet=True)
    assert results["after"]["afgb"]["value"] != results["before"]["afgb"]["value"]


@pytest.mark.usefixtures("no_page")
def test_before_can_be_taken_from_a_measure_run(fair: Path, base: Path, tiny: str, tmp_path: Path) -> None:
    results = steps.debias(debiasing(tiny, before=str(base)), tmp_path / "x", quiet=True)
    assert numbers(results) == numbers(results_of(fair))
    log = (tmp_path / "x" / "log.jsonl").read_text(encoding="utf-8")
    assert log.count("measuring afgb") == 1


def test_before_is_refused_where_it_measured_something_else(base: Path, tiny: str, tmp_path: Path) -> None:
    cases: dict[str, dict[str, Any]] = {
        "measured afgb on other rows; measure again": {"limit": ROWS - 1},
        "measured afgb on other rows": {"settings": {**SETTINGS, "data": {"axis": "age"}}},
        "has no metric 'perplexity:plain_text'; it measured": {"metrics": ["perplexity:plain_text"]},
        "nowhere is not a finished run": {"before": str(tmp_path / "nowhere")},
    }
    for number, (reason, fields) in enumerate(cases.items()):
        with pytest.raises(Refusal, match=reason):
            steps.debias(debiasing(tiny, **{"before": str(base), **fields}), tmp_path / f"x{number}", quiet=True)
        assert not (tmp_path / f"x{number}").exists()


@pytest.mark.usefixtures("no_page")
def test_before_of_another_model_is_refused(base: Path, tmp_path: Path) -> None:
    other = str(tiny_folder(tmp_path / "other", "llama", seed=1))
    with pytest.raises(Refusal, match="another model"):
        steps.debias(debiasing(other, before=str(base), metrics=["afgb"]), tmp_path / "x", quiet=True)


@pytest.mark.usefixtures("no_page")
def test_prompt_debiasing_measures_text_behind_its_request(tmp_path: Path) -> None:
    """A model with learned positions has no room for a request before a window that fills them all."""
    gpt2 = str(tiny_folder(tmp_path / "gpt2", "gpt2"))
    job = debiasing(gpt2, method="prompt", metrics=["perplexity"], settings={})
    results = steps.debias(job, tmp_path / "x", quiet=True)
    assert results["after"]["perplexity"]["value"] != results["before"]["perplexity"]["value"]
    assert LM.load(str(tmp_path / "x")).prefix == Run(tmp_path / "x").read("method.json")["state"]["prefix"] != ""


# Interrupted and gone on with


class Stop(Exception):
    """The power fails."""


@pytest.mark.usefixtures("no_page")
def test_a_stop_after_training_repeats_neither_training_nor_measuring(
    fair: Path, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = steps.measured

    def stop(lm: LM, plan: Any, where: str, run: Run) -> dict[str, Any]:
        if where == "after":
            raise Stop
        return measured(lm, plan, where, run)

    with monkeypatch.context() as patched:
        patched.setattr(steps, "measured", stop)
        with pytest.raises(Stop):
            steps.debias(debiasing(tiny), tmp_path / "x", quiet=True)
    part = tmp_path / "x.part"
    before = times(part)
    assert set(before) >= {"before/afgb.parquet", "before/ub.parquet", "before/perplexity.parquet"}
    assert (part / "method.json").exists()

    def again(*_: Any) -> None:
        raise AssertionError("fitted a second time")

    monkeypatch.setattr(LFTF, "fit", again)
    results = steps.debias(debiasing(tiny), tmp_path / "x", quiet=True)
    after = times(tmp_path / "x")
    assert {name: after[name] for name in before} == before
    assert numbers(results) == numbers(results_of(fair))
    assert all(seconds >= 0 for seconds in results["seconds"].values()), results["seconds"]


@pytest.mark.usefixtures("no_page")
def test_a_stop_before_training_does_not_measure_again(
    fair: Path, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(LFTF, "fit", stop)
        with pytest.raises(Stop):
            steps.debias(debiasing(tiny), tmp_path / "x", quiet=True)
    before = times(tmp_path / "x.part")
    assert len(before) == 3
    results = steps.debias(debiasing(tiny), tmp_path / "x", quiet=True)
    assert {name: times(tmp_path / "x")[name] for name in before} == before
    assert numbers(results) == numbers(results_of(fair))


@pytest.mark.usefixtures("no_page")
def test_a_stop_during_training_goes_on_from_the_last_epoch(
    fair: Path, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_end = Curve.on_step_end
    seen: list[int] = []

    def stop(self: Curve, args: Any, state: Any, control: Any, **rest: Any) -> None:
        seen.append(state.global_step)
        if state.global_step == 8:
            raise Stop
        step_end(self, args, state, control, **rest)

    with monkeypatch.context() as patched:
        patched.setattr(Curve, "on_step_end", stop)
        with pytest.raises(Stop):
            steps.debias(debiasing(tiny), tmp_path / "x", quiet=True)
    assert seen == list(range(1, 9))
    seen.clear()

    def watch(self: Curve, args: Any, state: Any, control: Any, **rest: Any) -> None:
        seen.append(state.global_step)

    monkeypatch.setattr(Curve, "on_step_end", watch)
    results = steps.debias(debiasing(tiny), tmp_path / "x", quiet=True)
    assert seen == list(range(7, 13))  # six steps an epoch
    for name, score in results_of(fair)["after"].items():
        assert results["after"][name]["value"] == pytest.approx(score["value"], rel=1e-4)
    assert Run(tmp_path / "x").read("curve.parquet")["loss"].tolist() == pytest.approx(
        Run(fair).read("curve.parquet")["loss"].tolist(), rel=1e-3
    )


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
    assert results_of(folder) == results_of(base)


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
