"""The verbs as Python functions with plain arguments; steps.py does the work."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from evenhand import steps
from evenhand.exporting import export as export_run
from evenhand.page import build
from evenhand.recipe import job_of
from evenhand.run import Run

__all__ = ["check", "compare", "debias", "export", "locate", "measure", "report", "score"]

Where = str | Path


def measure(
    model: str, metrics: Sequence[str] = (), out: Where | None = None, *, suite: str = "default", **options: Any
) -> dict[str, Any]:
    """Measure a suite, or metrics: `measure("smollm2", ["afgb"], limit=100)["scores"]["afgb"]["value"]`."""
    given, how = split(options)
    chosen = {"metrics": list(metrics)} if metrics else {"suite": suite}
    job = job_of({"command": "measure", "model": model, **chosen, **given})
    return steps.measure(job, folder(out), **how)


def score(metric: str, predictions: Where, data: str = "", **settings: Any) -> dict[str, Any]:
    """A metric's entry from a file of predictions: `score("stereoset", "predictions_gpt2.json")["value"]`."""
    return steps.score(metric, Path(predictions), data, settings)["scores"][metric]


def locate(model: str, locator: str = "tradeoff", out: Where | None = None, **options: Any) -> pd.DataFrame:
    """Rank a model's blocks."""
    given, how = split(options)
    return steps.locate(job_of({"command": "locate", "model": model, "locator": locator, **given}), folder(out), **how)


def debias(model: str, method: str = "lftf", out: Where = "runs/debias", **options: Any) -> Run:
    """Debias a model; the run's folder holds everything, and `LM.load(str(run.folder))` is the fair model.

    Options of the method are given as `settings={"method": {"epochs": 2}}`."""
    given, how = split(options)
    steps.debias(job_of({"command": "debias", "model": model, "method": method, **given}), Path(out), **how)
    return Run(Path(out))


def compare(first: Where, second: Where) -> dict[str, Any]:
    """The second run against the first."""
    return steps.compare(Path(first), Path(second))


def check(
    run: Where,
    most: dict[str, float] | None = None,
    least: dict[str, float] | None = None,
    max_regression: dict[str, str] | None = None,
) -> list[str]:
    """The thresholds a run misses, one line each."""
    return steps.check(Path(run), most or {}, least or {}, max_regression or {})


def report(run: Where) -> Path:
    """Build a run's page again and give its path."""
    return build(Path(run))


def export(run: Where, target: Where, overwrite: bool = False) -> float:
    """Write a run's model as a transformers folder; gives the largest difference of the logits."""
    return export_run(Path(run), Path(target), overwrite=overwrite)


def folder(out: Where | None) -> Path | None:
    """A path, if one was given."""
    return Path(out) if out is not None else None


def split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What belongs to the job, and how the run is made."""
    how = {name: options[name] for name in ("overwrite", "quiet") if name in options}
    return {name: value for name, value in options.items() if name not in how}, how
