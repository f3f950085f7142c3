"""Jobs on a tiny model and what their runs left, for the tests of the whole road."""

import json
from pathlib import Path
from typing import Any

from evenhand import steps
from evenhand.recipe import job_of

ROWS = 24
DOCUMENTED = {"value", "low", "high", "ideal", "n", "groups", "extra"}
# Beside the documented keys an entry says what it measured, so that others need not know the metric.
ENTRY = DOCUMENTED | {"headline", "meaning", "range", "lean", "unit", "units", "scorer", "data"}
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


class Stop(Exception):
    """The power fails."""
