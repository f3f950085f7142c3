"""The whole road on a tiny model: what a run writes, and how it goes on after a stop."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from roads import ENTRY, ROWS, SETTINGS, Stop, debiasing, measuring, numbers, results_of, times
from safetensors.torch import load_file
from tiny import quiet_run, tiny_folder

from evenhand import catalog, stats, steps
from evenhand.config import Refusal, values
from evenhand.data._base import checksum
from evenhand.data.genbiaseval import GenBiasEval
from evenhand.environment import fingerprint
from evenhand.lm import LM
from evenhand.methods.lftf import LFTF
from evenhand.metrics.afgb import AFGB
from evenhand.recipe import job_of
from evenhand.run import Run
from evenhand.train import Curve

# Measure


def test_measure_writes_one_line_an_example_and_one_entry_a_metric(base: Path) -> None:
    scores = results_of(base)["scores"]
    assert set(results_of(base)) == {"scores", "failed", "skipped", "seconds"}
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
        "lm_eval.json",
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
