"""A run's results in the format of the lm-evaluation-harness, for the tools that read its files."""

import time
from collections.abc import Mapping
from typing import Any

from evenhand import catalog
from evenhand.stats import DRAWS

__all__ = ["as_lm_eval"]

THEIRS = "harness:"
Z = 1.96
"""An interval of 95 % is so many standard errors to each side."""


def as_lm_eval(results: Mapping[str, Any], config: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """What `lm_eval --output_path` would write: from results.json, config.yaml and environment.json.

    A metric is a task whose main score has the metric's name; its groups are subtasks. A task of the harness keeps its
    own names. Of a debiased model the scores after debiasing are given."""
    measured: Mapping[str, Any] = results.get("scores") or results.get("after") or {}
    scores = {name.removeprefix(THEIRS): score | {"metric": name.partition(":")[0]} for name, score in measured.items()}
    tasks = {name: entry for name, score in scores.items() for name, entry in tasks_of(name, score).items()}
    version = str(environment.get("evenhand", ""))
    return {
        "results": {name: numbers(name, entry) for name, entry in tasks.items()},
        "group_subtasks": {name: subtasks(name, score) for name, score in scores.items()},
        "configs": {name: task_config(name, entry, version) for name, entry in tasks.items()},
        "versions": dict.fromkeys(tasks, version),
        "n-shot": {name: entry.get("scorer", {}).get("shots") or 0 for name, entry in tasks.items()},
        "higher_is_better": {name: {main_score(entry): higher(entry["metric"])} for name, entry in tasks.items()},
        "n-samples": {name: {"original": entry["n"], "effective": entry["n"]} for name, entry in tasks.items()},
        "config": run_config(config, environment),
        "git_hash": environment.get("commit"),
        "date": environment.get("date") or time.time(),
        "transformers_version": environment.get("versions", {}).get("transformers"),
        "evenhand_version": version,
        "model_source": "evenhand",
        "model_name": config["model"],
        "model_name_sanitized": str(config["model"]).replace("/", "__"),
    }


def tasks_of(name: str, score: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A metric and its groups, each with what its numbers are called."""
    common = {"metric": score["metric"], "scorer": score.get("scorer", {}), "data": score.get("data", {})}
    groups = zip(subtasks(name, score), score.get("groups", {}).values(), strict=True)
    return {name: {**score, **common}, **{group: {**entry, **common} for group, entry in groups}}


def subtasks(name: str, score: Mapping[str, Any]) -> list[str]:
    """What a metric's groups are called as tasks."""
    return [group if score["metric"] == "harness" else f"{name}_{group}" for group in score.get("groups", {})]


def main_score(entry: Mapping[str, Any]) -> str:
    """What a task's main score is called: the metric's name, or the harness' own name for it."""
    own = (name for name, value in entry.get("extra", {}).items() if value == entry["value"])
    return next(own, "harness") if entry["metric"] == "harness" else entry["metric"]


def numbers(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The value with its standard error, and what stands beside it without one."""
    metric = main_score(entry)
    return {
        "name": name,
        "alias": name,
        "sample_len": entry["n"],
        f"{metric},none": entry["value"],
        f"{metric}_stderr,none": (entry["high"] - entry["low"]) / (2 * Z),
        **{f"{extra},none": value for extra, value in entry.get("extra", {}).items() if extra != metric},
    }


def task_config(name: str, entry: Mapping[str, Any], version: str) -> dict[str, Any]:
    """How a task was scored and on which rows."""
    return {
        "task": name,
        "dataset_path": entry["data"].get("name", ""),
        "metric_list": [{"metric": main_score(entry), "higher_is_better": higher(entry["metric"])}],
        "metadata": {"version": version, "checksum": entry["data"].get("checksum", ""), "scorer": entry["scorer"]},
    }


def higher(metric: str) -> bool | None:
    """Whether more is better; none where the ideal lies between the ends, or the metric is not known here."""
    if metric not in catalog.names("metrics"):
        return None
    cls = catalog.load("metrics", metric)
    return True if cls.ideal == cls.high else False if cls.ideal == cls.low else None


def run_config(config: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """The model and how it was run."""
    chosen = {"pretrained": config["model"], "dtype": config.get("dtype"), "method": config.get("method")}
    seed = config.get("seed", 0)
    return {
        "model": "evenhand",
        "model_args": {name: value for name, value in chosen.items() if value},
        "model_dtype": config.get("dtype"),
        "model_sha": environment.get("model", {}).get("fingerprint", ""),
        "device": environment.get("device"),
        "limit": config.get("limit"),
        "bootstrap_iters": DRAWS,
        **dict.fromkeys(("random_seed", "numpy_seed", "torch_seed", "fewshot_seed"), seed),
    }
