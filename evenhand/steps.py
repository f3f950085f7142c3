"""The road as plain functions: measure, locate, debias, compare, check. Read this first."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from accelerate.utils import broadcast_object_list

from evenhand import catalog, stats
from evenhand.config import Refusal, build, options, values
from evenhand.data._base import checksum
from evenhand.data._rows import Row
from evenhand.environment import environment, fingerprint
from evenhand.exporting import save_method
from evenhand.lm import LM
from evenhand.metrics._base import Metric
from evenhand.page import build as build_page
from evenhand.run import Run, is_finished, is_main, processes

__all__ = ["Job", "check", "compare", "debias", "locate", "measure"]

Settings = dict[str, dict[str, Any]]


@options
class Job:
    """Everything that decides a result; a run's config.yaml is one of these."""

    command: str
    model: str
    """A hub id, a folder, a run folder or a bundled name."""
    metrics: tuple[str, ...] = ("afgb", "ub", "perplexity")
    """What to measure: metric, or metric:dataset."""
    method: str = ""
    """How to debias."""
    locator: str = ""
    """How to rank blocks."""
    data: str = ""
    """A dataset's name or a file: trained on by debias, else measured or located on."""
    settings: Settings = field(default_factory=dict)
    """Options by part: method, data, locate, or a metric's name."""
    before: str = ""
    """A finished measure run of the same model, to be taken as the measurement before."""
    limit: int | None = None
    """At most so many rows of each dataset."""
    train_limit: int | None = None
    """At most so many rows to train on."""
    seed: int = 0
    dtype: str = "float32"
    device: str | None = None
    trust_remote_code: bool = False
    """Run code from the model's repository."""


class Planned(NamedTuple):
    """A metric with the rows it will read."""

    name: str
    metric: Metric
    data: str
    rows: list[Row]

    @property
    def file(self) -> str:
        """The name of its table."""
        return self.name.replace(":", "-") + ".parquet"


def measure(job: Job, out: Path | None = None, *, overwrite: bool = False, quiet: bool = False) -> dict[str, Any]:
    """Score a model on each metric; one line an example, one interval a number."""
    known_parts(job)
    plan = planned(job)
    with opened(job, out, overwrite, quiet) as run:
        lm = loaded(job, run)
        scores = measured(lm, plan, "tables", run)
        record_environment(job, lm, plan, run)
        results = {"scores": scores}
        finish(run, results)
    return results


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
    plan = planned(job, data="")
    kind = method.reads.__name__
    rows = dataset_rows(
        job.data or method.data, kind, "train", job.train_limit or job.limit, job.settings.get("data", {})
    )
    with opened(job, out, overwrite, quiet) as run:
        lm = loaded(job, run)
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


def compare(first: Path, second: Path) -> dict[str, Any]:
    """The second run against the first, metric by metric, on the examples both have."""
    folders = [tables_of(folder) for folder in (first, second)]
    shared = [name for name in metric_names(first) if name in metric_names(second)]
    if not shared:
        raise Refusal(f"{first} and {second} have no metric in common; measure both with the same --metrics.")
    plan = [Planned(name, metric_of(name, {}), "", []) for name in shared]
    scores = [scores_of(folder) for folder in (first, second)]
    return {
        "before": {name: scores[0][name] for name in shared},
        "after": {name: scores[1][name] for name in shared},
        "verdicts": verdicts(plan, *folders),
    }


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


def planned(job: Job, data: str | None = None) -> list[Planned]:
    """The job's metrics with their rows; `data` overrides what the job names."""
    chosen = job.data if data is None else data
    plan = []
    for name in job.metrics:
        metric = metric_of(name, job.settings)
        dataset = name.partition(":")[2] or chosen or metric.data
        kind = type(metric).reads.__name__
        plan.append(
            Planned(name, metric, dataset, dataset_rows(dataset, kind, "test", job.limit, job.settings.get("data", {})))
        )
    return plan


def known_parts(job: Job) -> None:
    """Refuse settings of a part that this job does not have."""
    own = {"measure": set(), "locate": {"locate"}, "debias": {"method"}}[job.command]
    known = {"data", *own, *(name.split(":")[0] for name in job.metrics)}
    for part in job.settings:
        if part not in known:
            raise Refusal(f"--set {part}.…: there is no part {part!r} here; parts: {', '.join(sorted(known))}.")


def metric_of(name: str, settings: Settings) -> Metric:
    """A metric by name, the dataset behind the colon left out."""
    short = name.partition(":")[0]
    return build(catalog.load("metrics", short), settings.get(short, {}), f"metric {short}")


def dataset_rows(name: str, kind: str, split: str, limit: int | None, settings: dict[str, Any]) -> list[Row]:
    """Rows of a dataset or of a user's file; settings that another dataset of the job takes are passed over."""
    if Path(name).suffix or name not in catalog.names("data"):
        if not Path(name).suffix:
            catalog.load("data", name)
        cls, extra = catalog.load("data", "file"), {"path": name, "rows_are": kind}
        return build(cls, {**extra, **settings}, f"file {name}").take(split, limit)
    cls = catalog.load("data", name)
    if cls.kind.__name__ != kind:
        raise Refusal(f"{name} holds {cls.kind.__name__} rows, and {kind} rows are needed here.")
    every = {option for other in catalog.names("data") for option in values(catalog.load("data", other)())}
    own = set(values(cls()))
    passed = {key: value for key, value in settings.items() if key in own or key not in every}
    return build(cls, passed, f"dataset {name}").take(split, limit)


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
    for name, metric, data, rows in plan:
        file = f"{where}/{name.replace(':', '-')}.parquet"
        if run.has(file):
            table = run.read(file)
        else:
            run.say(f"measuring {name} on {len(rows)} rows of {data}")
            table = metric.score(lm, rows, run)
            run.save(file, table)
        scores[name] = metric.report(table) | {"data": {"name": data, "checksum": checksum(rows)}}
    return scores


def taken(source: Path, lm: LM, plan: list[Planned], run: Run) -> dict[str, Any]:
    """The measurement before from another run, if it measured the same model on the same rows."""
    scores = scores_of(source)
    if Run(source).read("environment.json")["model"]["fingerprint"] != fingerprint(lm.model):
        raise Refusal(f"{source} measured another model; measure {lm.name}, or leave --before out.")
    for name, _, _, rows in plan:
        if known_score(scores, name, source)["data"]["checksum"] != checksum(rows):
            raise Refusal(f"{source} measured {name} on other rows; measure again with the same limit and settings.")
        file = name.replace(":", "-") + ".parquet"
        run.save(f"before/{file}", pd.read_parquet(tables_of(source) / file))
    return {name: scores[name] for name, *_ in plan}


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
