"""What a job is, and what it will measure: metrics with their rows, by name or by suite, and how long that may take."""

import time
from dataclasses import field, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch

from evenhand import catalog
from evenhand.config import Absent, Refusal, build, closest, options, values
from evenhand.data._base import Dataset
from evenhand.data._rows import KINDS, Row, Text
from evenhand.lm import LM
from evenhand.metrics._base import Metric

__all__ = [
    "SUITES",
    "Job",
    "Plan",
    "Planned",
    "dataset_rows",
    "expected_seconds",
    "known_parts",
    "metric_of",
    "planned",
]

Settings = dict[str, dict[str, Any]]

SUITES: dict[str, dict[str, int | None]] = {
    "quick": {"afgb": 200, "ub": 200, "perplexity": None, "weat:word_sets": None, "crows_pairs": 200, "stereoset": 200},
    "default": {
        "afgb": None,
        "ub": None,
        "perplexity": None,
        "gas": None,
        "weat:word_sets": None,
        "weat": None,
        "crows_pairs": None,
        "stereoset": None,
        "winogender": None,
        "bbq": 1000,
    },
    "full": {
        "afgb": None,
        "ub": None,
        "perplexity": None,
        "perplexity:wikitext": None,
        "gas": None,
        "weat:word_sets": None,
        "weat": None,
        "seat": None,
        "crows_pairs": None,
        "stereoset": None,
        "winogender": None,
        "winobias": None,
        "bbq": None,
        "trex": 2000,
    },
}
"""The metrics of each suite, and at most how many rows of each; what has no data here is passed over."""


@options
class Job:
    """Everything that decides a result; a run's config.yaml is one of these."""

    command: str
    model: str
    """A hub id, a folder, a run folder or a bundled name."""
    metrics: tuple[str, ...] = ("afgb", "ub", "perplexity")
    """What to measure: metric, or metric:dataset."""
    suite: str = ""
    """Measure a suite (quick, default, full) instead."""
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
        return self.name.replace(":", "-").replace("/", "-") + ".parquet"


class Plan(NamedTuple):
    """What can be measured, and why the rest cannot."""

    items: list[Planned]
    failed: dict[str, str]
    skipped: dict[str, str]


def planned(job: Job, data: str | None = None) -> Plan:
    """The job's metrics with their rows; `data` overrides what the job names. A wrong name or option is refused at
    once; a dataset that cannot be read leaves only its own metric out, and a suite passes over what is not here."""
    chosen = job.data if data is None else data
    plan = Plan([], {}, {})
    metrics = {name: metric_of(name, job.settings, job.limit) for name in named(job)}
    targets = {name: name.partition(":")[2] or chosen or metric.data for name, metric in metrics.items()}
    sources = {name: source_of(metric, targets[name], job.settings) for name, metric in metrics.items()}
    for name, limit in named(job).items():
        source = sources[name]
        try:
            rows = source.take("test", job.limit or limit) if source else [Text(id=targets[name], text=targets[name])]
            plan.items.append(Planned(name, metrics[name], targets[name], rows))
        except Absent as absent:
            (plan.skipped if job.suite else plan.failed)[name] = str(absent)
        except Refusal as problem:
            plan.failed[name] = str(problem)
    if not plan.items:
        raise Refusal(next(iter([*plan.failed.values(), *plan.skipped.values()])))
    return plan


def source_of(metric: Metric, target: str, settings: Settings) -> Dataset | None:
    """The dataset a metric reads; none where what stands behind the colon is something else (harness:TASK)."""
    if metric.data:
        return dataset_of(target, type(metric).reads.__name__, settings.get("data", {}))
    if not target:
        raise Refusal("Say which task behind a colon, for example harness:hellaswag.")
    return None


def named(job: Job) -> dict[str, int | None]:
    """The metrics asked for, by name or by suite, with the most rows each should read."""
    if not job.suite and not job.metrics:
        raise Refusal("There is no metric to measure; name one with --metrics, or a --suite.")
    if not job.suite:
        return dict.fromkeys(job.metrics)
    if job.suite not in SUITES:
        raise Refusal(
            f"There is no suite {job.suite!r}{closest(job.suite, SUITES)}. Suites: {', '.join(SUITES)}, "
            "or name the metrics with --metrics."
        )
    return SUITES[job.suite]


def known_parts(job: Job) -> None:
    """Refuse settings of a part that this job does not have."""
    own = {"measure": set(), "locate": {"locate"}, "debias": {"method"}}[job.command]
    known = {"data", *own, *(name.split(":")[0] for name in named(job))}
    for part in job.settings:
        if part not in known:
            raise Refusal(f"--set {part}.…: there is no part {part!r} here; parts: {', '.join(sorted(known))}.")


def metric_of(name: str, settings: Settings, limit: int | None = None) -> Metric:
    """A metric by name, the dataset behind the colon left out; one that reads its own data is told the limit."""
    short = name.partition(":")[0]
    cls = catalog.load("metrics", short)
    own = {"limit": limit} if limit and not cls.data else {}
    return build(cls, own | settings.get(short, {}), f"metric {short}")


def dataset_rows(name: str, kind: str, split: str, limit: int | None, settings: dict[str, Any]) -> list[Row]:
    """Rows of a dataset or of a user's file."""
    return dataset_of(name, kind, settings).take(split, limit)


def dataset_of(name: str, kind: str, settings: dict[str, Any]) -> Dataset:
    """A dataset or a user's file; settings that another dataset of the job takes are passed over."""
    if Path(name).suffix or name not in catalog.names("data"):
        if not Path(name).suffix:
            catalog.load("data", name)
        extra = {"path": name, "rows_are": kind}
        return build(catalog.load("data", "file"), {**extra, **settings}, f"file {name}")
    cls = catalog.load("data", name)
    if not issubclass(cls.kind, KINDS[kind]):
        raise Refusal(f"{name} holds {cls.kind.__name__} rows, and {kind} rows are needed here.")
    every = {option for other in catalog.names("data") for option in values(catalog.load("data", other)())}
    own = set(values(cls()))
    passed = {key: value for key, value in settings.items() if key in own or key not in every}
    return build(cls, passed, f"dataset {name}")


def expected_seconds(lm: LM, items: list[Planned]) -> float:
    """About how long measuring will take, from the length of the texts and the speed of a small forward pass."""
    ids = torch.zeros((4, 64), dtype=torch.long, device=lm.device)
    more = {"decoder_input_ids": ids} if lm.kind == "seq2seq" else {}
    seconds = 1.0
    with torch.inference_mode():
        for _ in range(2):  # the first pass warms up
            began = time.perf_counter()
            # Reading one number waits until the device has really finished.
            lm.model(input_ids=ids, **more).logits[0, -1, 0].item()
            seconds = time.perf_counter() - began
    return sum(item.metric.work * token_count(item.rows) for item in items) * seconds / ids.numel()


def token_count(rows: list[Row]) -> float:
    """The tokens of rows, at four characters each; a context is read once for all its options."""
    count = 0
    for row in rows:
        for each in fields(row):
            if each.name in ("text", "more", "less", "context", "options"):
                found = getattr(row, each.name)
                count += len(found) if isinstance(found, str) else sum(map(len, found))
    return count / 4
