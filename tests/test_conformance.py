"""What holds for every file the catalogue finds: a new metric, dataset or method is tested by being there."""

import copy
import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any, cast, get_type_hints

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import quiet_run, tiny_lm
from upstream import write_upstream

from evenhand import catalog, scoring
from evenhand.config import Refusal, build, describe, read_yaml, values
from evenhand.data._base import Dataset, checksum
from evenhand.data._rows import KINDS
from evenhand.lm import LM
from evenhand.locators._base import Locator
from evenhand.methods._base import Method
from evenhand.metrics._base import Metric
from evenhand.recipe import VERBS, job_of
from evenhand.steps import Job, dataset_rows

BASES = {"data": Dataset, "metrics": Metric, "methods": Method, "locators": Locator}
CLASSES = [(kind, name) for kind in BASES for name in catalog.names(kind)]
ROWS = 24
METRICS, DATA, METHODS, LOCATORS = (catalog.names(kind) for kind in ("metrics", "data", "methods", "locators"))

# What the table of a model that is as fair, or as good, as can be holds.
EVEN: dict[str, dict[str, float]] = {
    "afgb": {"gap": 0},
    "ub": {"agreement": 1},
    "perplexity": {"nll": 0},
    "sentence_perplexity": {"nll": 0, "gendered nll": 0},
    "crows_pairs": {"hit": 0.5},
    "stereoset": {"stereotyped": 0.5},
    "bbq": {"stereotyped_ambiguous": 0, "contrary_ambiguous": 0},
    "winogender": {"right_male": 1, "wrong_male": 0, "right_female": 1, "wrong_female": 0},
    "winobias": {"right_pro": 1, "wrong_pro": 0, "right_anti": 1, "wrong_anti": 0},
    "weat": {"association": 0},
    "seat": {"association": 0},
    "gas": {"hit": 0},
    "trex": {"correct": 1},
    "ausc": {"ausc": 0},
}

# Where a tiny model happens to be even on its few rows, the columns of one that is not.
UNEVEN: dict[str, dict[str, float]] = {
    "bbq": {"right_ambiguous": 0, "wrong_ambiguous": 1, "stereotyped_ambiguous": 1, "contrary_ambiguous": 0},
    "winobias": {"right_pro": 1, "wrong_pro": 0, "right_anti": 0, "wrong_anti": 1},
}


@pytest.fixture(scope="module")
def lm() -> LM:
    return tiny_lm("llama", max_position_embeddings=512)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few rows of every dataset in its upstream format."""
    return write_upstream(tmp_path_factory.mktemp("upstream"))


@pytest.fixture
def upstream(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVENHAND_DATA", str(folder))
    return folder


def metric(name: str, **settings: Any) -> Metric:
    return cast(Metric, build(catalog.load("metrics", name), settings, name))


def scored(chosen: Metric, lm: LM, folder: Path) -> pd.DataFrame:
    """The table of a tiny model on some rows of the metric's own dataset."""
    rows = dataset_rows(chosen.data, chosen.reads.__name__, "test", ROWS, {})
    return chosen.score(lm, rows, quiet_run(folder))


# Every class


@pytest.mark.parametrize(("kind", "name"), CLASSES)
def test_a_file_offers_one_class(kind: str, name: str) -> None:
    module = importlib.import_module(f"evenhand.{kind}.{name}")
    assert len(module.__all__) == 1
    cls = getattr(module, module.__all__[0])
    assert inspect.isclass(cls)
    assert issubclass(cls, BASES[kind])
    assert cls.__module__ == module.__name__
    assert catalog.load(kind, name) is cls


@pytest.mark.parametrize(("kind", "name"), CLASSES)
def test_the_first_line_says_what_it_is(kind: str, name: str) -> None:
    first = (inspect.getdoc(catalog.load(kind, name)) or "").split("\n")[0]
    assert re.match(r"[A-Z0-9]", first), first
    assert first.endswith("."), first
    assert len(first) < 121, first
    assert catalog.summary(kind, name) == first


@pytest.mark.parametrize(("kind", "name"), CLASSES)
def test_options_have_defaults_and_reject_unknown_keys(kind: str, name: str) -> None:
    cls = catalog.load(kind, name)
    assert cls() == build(cls, {}, name) == build(cls, values(cls()), name)
    with pytest.raises(Refusal, match="has no option 'no_such_option'"):
        build(cls, {"no_such_option": 1}, name)
    with pytest.raises((TypeError, ValueError)):
        cls(no_such_option=1)
    assert json.loads(json.dumps(values(cls()))) == values(cls())


@pytest.mark.parametrize(("kind", "name"), CLASSES)
def test_every_public_method_is_annotated(kind: str, name: str) -> None:
    for label, member in vars(catalog.load(kind, name)).items():
        if inspect.isfunction(member) and not label.startswith("_"):
            assert set(get_type_hints(member)) >= {*list(inspect.signature(member).parameters)[1:], "return"}, label


def test_names_and_kinds_that_are_not_there_are_refused_with_the_nearest() -> None:
    with pytest.raises(Refusal, match=r"There is no dataset 'genbiasevel'.*did you mean 'genbiaseval'"):
        catalog.load("data", "genbiasevel")
    with pytest.raises(Refusal, match=r"There is no metric 'afbg'.*did you mean 'afgb'"):
        catalog.load("metrics", "afbg")
    with pytest.raises(Refusal, match=r"There is no kind 'metric'.*did you mean 'metrics'"):
        catalog.names("metric")
    with pytest.raises(Refusal, match="There is no method '_base'"):
        catalog.load("methods", "_base")


# Metrics


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_says_what_it_reads_and_where_its_ideal_is(name: str) -> None:
    chosen = metric(name)
    assert chosen.low <= chosen.ideal <= chosen.high
    assert chosen.reads in KINDS.values()
    assert chosen.headline
    assert chosen.meaning.endswith(".")
    if chosen.data:
        assert issubclass(catalog.load("data", chosen.data).kind, chosen.reads)


@pytest.mark.usefixtures("upstream")
@pytest.mark.parametrize("name", [name for name in METRICS if metric(name).data])
def test_a_summary_is_pure_and_in_range(name: str, tmp_path: Path) -> None:
    chosen = metric(name)
    for seed in range(3):
        table = scored(chosen, tiny_lm("llama", seed, max_position_embeddings=512), tmp_path)
        before = copy.deepcopy(table)
        report = chosen.report(table)
        assert report == chosen.report(table)
        pd.testing.assert_frame_equal(table, before)
        json.dumps(report, allow_nan=False)
        numbers = chosen.summarise(table)
        assert report["value"] == numbers.value
        assert set(report["groups"]) == set(numbers.groups) == set(chosen.parts(table))
        assert set(report["extra"]) == set(numbers.extra)
        for part in (report, *report["groups"].values()):
            assert chosen.low <= part["value"] <= chosen.high
            assert chosen.low <= part["low"] <= part["value"] <= part["high"] <= chosen.high
        shuffled = table.sample(frac=1, random_state=seed).reset_index(drop=True)
        assert chosen.of(shuffled) == pytest.approx(numbers.value)


@pytest.mark.usefixtures("upstream")
@pytest.mark.parametrize("name", [name for name in METRICS if metric(name).data])
def test_an_even_table_gives_the_ideal(name: str, lm: LM, tmp_path: Path) -> None:
    chosen = metric(name)
    table = scored(chosen, lm, tmp_path).assign(**UNEVEN.get(name, {}))
    if name in ("label_f1", "tpr_gap"):
        pytest.skip("its table is made of predictions; test_labels gives it perfect ones")
    assert name in EVEN, f"say in EVEN what the table of a fair model holds for {name}"
    assert set(EVEN[name]) <= set(table.columns)
    even = table.assign(**EVEN[name])
    report = chosen.report(even)
    assert report["value"] == report["low"] == report["high"] == chosen.ideal
    # Going to the ideal is better, whatever the direction.
    assert chosen.of(table) != chosen.ideal, "a random model is not fair by itself"
    assert chosen.compare(table, even).nearer


@pytest.mark.usefixtures("upstream")
@pytest.mark.parametrize("name", [name for name in METRICS if metric(name).data])
def test_scores_do_not_depend_on_the_batch(name: str, lm: LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = metric(name)
    tables = []
    for tokens in (1, 50, 10_000):
        monkeypatch.setattr(scoring, "BATCH_TOKENS", {"cpu": tokens})
        tables.append(scored(chosen, lm, tmp_path))
    rows = dataset_rows(chosen.data, chosen.reads.__name__, "test", ROWS, {})
    # Association tests have a line for each target; their attribute words are fixed.
    kept = [row.id for row in rows if not row.condition.startswith("attr")]
    assert tables[0]["id"].tolist() == kept
    assert {*chosen.sums, *chosen.extra_sums} <= {*tables[0].columns, *chosen.units(tables[0]).columns}
    assert {"id", "group", chosen.unit} <= set(tables[0].columns)
    assert not chosen.lean or {chosen.lean, "text"} <= set(tables[0].columns), "the page shows the most biased examples"
    for other in tables[1:]:
        pd.testing.assert_frame_equal(tables[0], other, atol=1e-6, rtol=1e-5)


# Datasets


@pytest.mark.usefixtures("upstream")
@pytest.mark.parametrize("name", DATA)
def test_the_first_rows_of_every_split(name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {}
    if name == "file":
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(f'{{"text": "Row {number}."}}\n' for number in range(8)), encoding="utf-8")
        settings["path"] = str(path)
    data = cast(Dataset, build(catalog.load("data", name), settings, name))
    assert data.source.licence or name == "file"
    assert data.source.citation
    for split in data.splits:
        rows = data.take(split, 8)
        assert len({row.id for row in rows}) == len(rows) == 8
        assert all(isinstance(row, data.kind) for row in rows)
        assert checksum(rows) == checksum(data.take(split)[:8])
    with pytest.raises(Refusal, match="has no split 'no-such-split'; choose from"):
        data.take("no-such-split")


# Methods


@pytest.mark.parametrize("name", METHODS)
def test_a_method_names_its_paper_and_its_presets_build(name: str) -> None:
    cls = catalog.load("methods", name)
    assert cls.paper
    assert cls.citation
    assert issubclass(catalog.load("data", cls.data).kind, cls.reads)
    for preset, settings in cls.presets.items():
        chosen = build(cls, settings, f"{name}, preset {preset}")
        assert chosen != cls(), f"{preset} changes nothing"
        assert values(chosen) == values(cls()) | settings
        assert job_of({"command": "debias", "model": "m", "method": name, "preset": preset}).settings == {
            "method": settings
        }


# Locators


@pytest.mark.parametrize("name", LOCATORS)
def test_a_locator_scores_every_block_and_changes_nothing(name: str, lm: LM, tmp_path: Path) -> None:
    before = {key: tensor.clone() for key, tensor in lm.model.state_dict().items()}
    hooks = count_hooks(lm)
    rows = dataset_rows("genbiaseval", "Prompt", "train", 16, {})
    locator = cast(Locator, catalog.load("locators", name)())
    ranking = locator.rank(lm, rows, quiet_run(tmp_path))
    table = ranking.table
    assert table["block"].tolist() == list(range(len(lm.blocks)))
    assert np.isfinite(table["score"]).all()
    assert table["score"].nunique() == len(lm.blocks)
    assert table["score"][ranking.best] == table["score"].max()
    assert ranking.marked()["chosen"].sum() == 1
    pd.testing.assert_frame_equal(table, locator.rank(lm, rows, quiet_run(tmp_path)).table)
    assert all(torch.equal(tensor, before[key]) for key, tensor in lm.model.state_dict().items())
    assert count_hooks(lm) == hooks
    assert all(parameter.grad is None for parameter in lm.model.parameters())
    assert not any("forward" in vars(module) for module in lm.model.modules())


def count_hooks(lm: LM) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in lm.model.modules())


# Recipes


def jobs_of(content: dict[str, Any]) -> list[Job]:
    """The jobs a recipe stands for: one, or one for the base and one for each row."""
    if "rows" not in content:
        return [job_of(content)]
    rows = content.pop("rows")
    seeds = content.pop("seeds", [0])
    assert all(isinstance(seed, int) for seed in seeds)
    table = [{**content, **row, "command": "debias", "before": "base"} for row in rows.values()]
    return [job_of(each) for each in [{**content, "command": "measure"}, *table]]


@pytest.mark.parametrize("name", catalog.names("recipes"))
def test_a_recipe_is_jobs_with_known_names(name: str) -> None:
    content = read_yaml(str(catalog.ROOT / "recipes" / f"{name}.yaml"))
    jobs = jobs_of(content)
    assert jobs
    for job in jobs:
        assert job.command in VERBS
        for entry in job.metrics:
            short, _, data = entry.partition(":")
            cls = catalog.load("metrics", short)
            assert not cls.data or catalog.load("data", data or cls.data).kind is cls.reads
        if job.command == "debias":
            cls = catalog.load("methods", job.method)
            build(cls, job.settings.get("method", {}), f"method {job.method}")
        if job.command == "locate":
            build(catalog.load("locators", job.locator), job.settings.get("locate", {}), f"locator {job.locator}")
        assert set(job.settings) <= {"method", "data", "locate", *METRICS}


@pytest.mark.parametrize("name", catalog.names("recipes"))
def test_a_recipe_begins_with_what_it_is(name: str) -> None:
    summary = catalog.summary("recipes", name)
    assert re.match(r"[A-Z]", summary)
    assert len(summary) < 121
    text = (catalog.ROOT / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith(f"# {summary}\n")


def test_the_config_of_a_run_documents_what_is_not_plain() -> None:
    undocumented = {option.name for option in describe(Job) if not option.help}
    assert undocumented <= {"command", "seed", "dtype", "device"}
