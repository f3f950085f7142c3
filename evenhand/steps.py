"""The road as plain functions: measure, locate, debias, compare, check. Read this first."""

import contextlib
import errno
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from accelerate.utils import broadcast_object_list

from evenhand import catalog, stats
from evenhand.config import Refusal, build, values
from evenhand.data._base import checksum, file_checksum
from evenhand.environment import environment, fingerprint
from evenhand.exporting import save_method
from evenhand.harness_results import as_lm_eval
from evenhand.lm import LM
from evenhand.page import build as build_page
from evenhand.plan import Job, Plan, Planned, dataset_rows, expected_seconds, known_parts, metric_of, planned, source_of
from evenhand.run import Run, is_finished, is_main, processes

__all__ = ["Job", "check", "compare", "debias", "locate", "measure", "score"]


def measure(job: Job, out: Path | None = None, *, overwrite: bool = False, quiet: bool = False) -> dict[str, Any]:
    """Score a model on each metric; one line an example, one interval a number. A metric that cannot be measured is
    named with the reason, and the others still are."""
    known_parts(job)
    plan = planned(job)
    with opened(job, out, overwrite, quiet) as run:
        lm = loaded(job, run)
        announce(lm, plan, run)
        results: dict[str, Any] = {"scores": {}, "failed": plan.failed, "skipped": plan.skipped, "seconds": {}}
        unexpected: Exception | None = None
        for item in plan.items:
            began = time.time()
            try:
                results["scores"] |= measured(lm, [item], "tables", run)
            except Exception as problem:
                if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise  # a full disk is no fault of the metric: the same command goes on later
                # A metric may fail in ways nobody thought of; what the others say is still wanted.
                kind = "" if isinstance(problem, Refusal) else f"{type(problem).__name__}: "
                plan.failed[item.name] = kind + str(problem)
                run.say(f"{item.name} could not be measured: {plan.failed[item.name]}")
                unexpected = unexpected or (None if kind == "" else problem)
            results["seconds"][item.name] = round(time.time() - began, 1)
        if not results["scores"]:
            raise unexpected or Refusal(next(iter(plan.failed.values())))
        record_environment(job, lm, plan.items, run)
        run.settle()
        run.save("lm_eval.json", as_lm_eval(results, values(job), run.read("environment.json")))
        finish(run, results)
    return results


def score(name: str, predictions: Path, data: str, settings: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A metric from a file of some model's predictions: the scorer alone, without a model."""
    metric = metric_of(name, settings)
    for part in settings:
        if part not in ("data", name.partition(":")[0]):
            raise Refusal(f"--set {part}.…: there is no part {part!r} here; parts: data, {name.partition(':')[0]}.")
    if not predictions.is_file():
        raise Refusal(f"There is no file {predictions}; give a file of predictions.")
    source = source_of(metric, data or name.partition(":")[2] or metric.data, settings)
    table = metric.read(predictions, lambda: source.take("test") if source else [])
    return {
        "scores": {
            name: metric.report(table) | {"data": {"name": predictions.name, "checksum": file_checksum(predictions)}}
        }
    }


def locate(job: Job, out: Path | None = None, *, overwrite: bool = False, quiet: bool = False) -> pd.DataFrame:
    """Rank the blocks of a model."""
    known_parts(job)
    locator = build(catalog.load("locators", job.locator), job.settings.get("locate", {}), f"locator {job.locator}")
    rows = dataset_rows(job.data or "genbiaseval", "Prompt", "train", job.limit, job.settings.get("data", {}))
    with opened(job, out, overwrite, quiet) as run:
        lm = loaded(job, run)
        ranking = locator.rank(lm, rows, run)
        run.save("ranking.parquet", ranking.marked())
        record_environment(job, lm, [], run)
        finish(run, {"ranking": ranking.table.to_dict("records"), "best": ranking.best})
    return ranking.marked()


def debias(job: Job, out: Path | None = None, *, overwrite: bool = False, quiet: bool = False) -> dict[str, Any]:
    """Measure, fit the method, measure again, compare; an interrupted run is taken up at the step where it stopped."""
    known_parts(job)
    method = build(catalog.load("methods", job.method), job.settings.get("method", {}), f"method {job.method}")
    plan = whole(planned(job, data=""))
    kind = method.reads.__name__
    rows = dataset_rows(
        job.data or method.data, kind, "train", job.train_limit or job.limit, job.settings.get("data", {})
    )
    with opened(job, out, overwrite, quiet) as run:
        lm = loaded(job, run)
        method.check(lm)
        seconds = {"before": -time.time()}
        before = taken(Path(job.before), lm, plan, run) if job.before else measured(lm, plan, "before", run)
        seconds["before"] += time.time()
        record_environment(job, lm, plan, run)
        started = time.time()
        if run.has("method.json"):
            lm = LM.load(str(run.folder), dtype=job.dtype, device=job.device, trust_remote_code=job.trust_remote_code)
        else:
            run.say(f"debiasing with {job.method}")
            state = method.fit(lm, rows, run)
            save_method(run, lm, job.model, job.method, values(method), state)
            run.settle()
        train = run.read("train.json")
        seconds |= {
            "train": train["seconds"],
            "locate": max(0.0, time.time() - started - train["seconds"]),
            "after": -time.time(),
        }
        after = measured(lm, plan, "after", run)
        seconds["after"] += time.time()
        run.settle()
        results = {
            "before": before,
            "after": after,
            "verdicts": verdicts(plan, run.folder / "before", run.folder / "after"),
            "train": train,
            "seconds": {name: round(value, 1) for name, value in seconds.items()},
        }
        finish(run, results)
    return results


def whole(plan: Plan) -> list[Planned]:
    """All of a plan, or a refusal: before and after must be measured on everything that was asked for."""
    for problem in [*plan.failed.values(), *plan.skipped.values()]:
        raise Refusal(problem)
    return plan.items


def announce(lm: LM, plan: Plan, run: Run) -> None:
    """Say what will run, how long it may take, and what will not."""
    if len(plan.items) > 1:
        seconds = expected_seconds(lm, plan.items)
        about = f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} seconds"
        run.say(f"{len(plan.items)} metrics, about {about}: {', '.join(item.name for item in plan.items)}")
    for name, why in plan.failed.items():
        run.say(f"{name} could not be measured: {why}")
    if plan.skipped:
        names = ", ".join(plan.skipped)
        run.say(
            f"Not here: the data of {names}. What runs uses generated data and files that were found; "
            "set EVENHAND_DATA to a folder with the upstream files, or go online, for the others."
        )


def compare(first: Path, second: Path) -> dict[str, Any]:
    """The second run against the first, metric by metric, on the examples both have."""
    folders = [tables_of(folder) for folder in (first, second)]
    shared = [name for name in metric_names(first) if name in metric_names(second)]
    if not shared:
        raise Refusal(f"{first} and {second} have no metric in common; measure both with the same --metrics.")
    scores = [scores_of(folder) for folder in (first, second)]
    for name in shared:
        same_measurement(name, scores[0][name], scores[1][name], f"{first} and {second}")
    plan = [Planned(name, metric_of(name, {}), "", []) for name in shared]
    return {
        "before": {name: scores[0][name] for name in shared},
        "after": {name: scores[1][name] for name in shared},
        "verdicts": verdicts(plan, *folders),
    }


def same_measurement(name: str, one: dict[str, Any], other: dict[str, Any], where: str) -> None:
    """Refuse to compare numbers of another scorer or another dataset; fewer rows of the same one can be paired."""
    if one.get("scorer") != other.get("scorer"):
        raise Refusal(f"{where} measured {name} with other options; measure again with the same --set.")
    if one["data"]["name"] != other["data"]["name"]:
        raise Refusal(f"{where} measured {name} on other data; measure both on the same.")


def check(folder: Path, most: dict[str, float], least: dict[str, float], regression: dict[str, str]) -> list[str]:
    """One line for each threshold that a run misses; none when it passes."""
    scores = scores_of(folder)
    results = Run(folder).read("results.json")
    failures = []
    for name, bound in most.items():
        if (value := known_score(scores, name, folder)["value"]) > bound:
            failures.append(f"{name} is {value:.4g}, above the bound {bound:g}")
    for name, bound in least.items():
        if (value := known_score(scores, name, folder)["value"]) < bound:
            failures.append(f"{name} is {value:.4g}, below the bound {bound:g}")
    for name, allowed in regression.items():
        known_score(scores, name, folder)
        if "before" not in results:
            raise Refusal(f"{folder} has no measurement before; --max-regression needs a debias run.")
        old, new = results["before"][name], results["after"][name]
        worse = abs(new["value"] - new["ideal"]) - abs(old["value"] - old["ideal"])
        bound = allowance(allowed, old["value"])
        if worse > bound:
            failures.append(f"{name} moved {worse:.4g} away from its ideal, more than the {allowed} allowed")
    return failures


def allowance(text: str, value: float) -> float:
    """`2%` of a value, or a number as it stands."""
    try:
        return float(text.removesuffix("%")) / 100 * abs(value) if text.endswith("%") else float(text)
    except ValueError:
        raise Refusal(f"{text!r} is not an amount; write 0.5 or 2%.") from None


def known_score(scores: dict[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """A metric's entry, or a refusal with what was measured."""
    if name not in scores:
        raise Refusal(f"{folder} has no metric {name!r}; it measured {', '.join(scores)}.")
    return scores[name]


@contextlib.contextmanager
def opened(job: Job, out: Path | None, overwrite: bool, quiet: bool) -> Iterator[Run]:
    """The run's folder, or for a call that keeps nothing a temporary one, the same for all processes."""
    with tempfile.TemporaryDirectory(prefix="evenhand-") as temporary:
        processes()
        shared = broadcast_object_list([temporary])[0]
        with Run.open(out or Path(shared) / "run", values(job), overwrite=overwrite, quiet=quiet) as run:
            yield run


def loaded(job: Job, run: Run) -> LM:
    """The model, and where it computes."""
    lm = LM.load(job.model, dtype=job.dtype, device=job.device, trust_remote_code=job.trust_remote_code)
    run.say(f"{job.model}: {lm.parameter_count() / 1e6:.0f}M parameters, {len(lm.blocks)} blocks, on {lm.device}")
    return lm


def measured(lm: LM, plan: list[Planned], where: str, run: Run) -> dict[str, Any]:
    """Score each metric that this run has not scored yet."""
    scores = {}
    for item in plan:
        file = f"{where}/{item.file}"
        if run.has(file):
            table = run.read(file)
        else:
            run.say(f"measuring {item.name} on {len(item.rows)} rows of {item.data}")
            table = item.metric.score(lm, item.rows, run)
            run.save(file, table)
        data = {"name": item.data, "checksum": checksum(item.rows)}
        scores[item.name] = item.metric.report(table) | {"data": data}
    return scores


def taken(source: Path, lm: LM, plan: list[Planned], run: Run) -> dict[str, Any]:
    """The measurement before from another run, if it measured the same model on the same rows."""
    scores = scores_of(source)
    if "scores" not in Run(source).read("results.json"):
        raise Refusal(f"{source} is no measurement; give the folder of `evenhand measure` to --before.")
    if Run(source).read("environment.json")["model"]["fingerprint"] != fingerprint(lm.model):
        raise Refusal(f"{source} measured another model; measure {lm.name}, or leave --before out.")
    for item in plan:
        known = known_score(scores, item.name, source)
        if known["data"]["checksum"] != checksum(item.rows):
            raise Refusal(
                f"{source} measured {item.name} on other rows; measure again with the same limit and settings."
            )
        if known["scorer"] != values(item.metric):
            raise Refusal(f"{source} measured {item.name} with other options; measure again with the same --set.")
        run.save(f"before/{item.file}", pd.read_parquet(tables_of(source) / item.file))
    return {item.name: scores[item.name] for item in plan}


def verdicts(plan: list[Planned], before: Path, after: Path) -> dict[str, Any]:
    """Paired comparison of every metric; the p-values are adjusted for their number."""
    found: dict[str, stats.Comparison] = {}
    for item in plan:
        tables = [pd.read_parquet(folder / item.file) for folder in (before, after)]
        shared = set(tables[0]["id"]) & set(tables[1]["id"])
        if not shared:
            raise Refusal(f"{item.name} was measured on different rows in {before} and {after}; nothing can be paired.")
        found[item.name] = item.metric.compare(*(table[table["id"].isin(shared)] for table in tables))
    adjusted = stats.adjust({name: change.p for name, change in found.items()})
    return {
        name: {
            "delta": change.delta,
            "low": change.low,
            "high": change.high,
            "p": adjusted[name],
            "verdict": ("improved" if change.nearer else "regressed") if adjusted[name] < 0.05 else "inconclusive",
        }
        for name, change in found.items()
    }


def finish(run: Run, results: dict[str, Any]) -> None:
    """The results, and the page to look at."""
    run.save("results.json", results)
    if is_main():
        build_page(run.folder)


def record_environment(job: Job, lm: LM, plan: list[Planned], run: Run) -> None:
    """Everything needed to repeat the run, beside its config."""
    run.save(
        "environment.json",
        {
            **environment(),
            "seed": job.seed,
            "model": {"name": job.model, "fingerprint": fingerprint(lm.model), "dtype": job.dtype},
            "data": {name: {"name": data, "checksum": checksum(rows)} for name, _, data, rows in plan},
        },
    )


def tables_of(folder: Path) -> Path:
    """Where a run's tables are: a measurement's, or those after debiasing."""
    return folder / ("after" if (folder / "after").exists() else "tables")


def scores_of(folder: Path) -> dict[str, Any]:
    """A finished run's scores: a measurement's, or those after debiasing."""
    if not is_finished(folder):
        unfinished = folder.with_name(folder.name + ".part")
        hint = f"finish it with `evenhand run {unfinished}`" if unfinished.exists() else "give a finished run's folder"
        raise Refusal(f"{folder} is not a finished run; {hint}.")
    results = Run(folder).read("results.json")
    return results.get("scores") or results.get("after") or {}


def metric_names(folder: Path) -> list[str]:
    """What a finished run measured."""
    return list(scores_of(folder))
