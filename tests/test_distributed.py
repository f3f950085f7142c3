"""Two processes: the scores of one, the training of one with twice the batch, and one of everything that is written."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file

from evenhand import steps
from evenhand.lm import LM
from evenhand.recipe import job_of

# Without `keep_text`, a loss is a mean over prompts, and the mean over two halves of a batch is that over the batch.
METHOD = {"block": 1, "epochs": 1, "batch": 8, "rate": 0.003, "keep_text": 0.0}
TEXTS = {"epochs": 1, "batch": 8, "rate": 0.003, "dropout": 0.0}
RECIPE = {
    "model": "",
    "metrics": ["afgb", "ub", "perplexity", "gas", "weat:word_sets", "label_f1"],
    "limit": 24,
    "settings": {"gas": {"new_tokens": 5}},
    "train_limit": 96,
    "seeds": [0],
    "rows": {
        "lftf": {"method": "lftf", "settings": {"method": METHOD}},
        "crawd": {"method": "crawd", "settings": {"method": TEXTS}},
        "printed": {"method": "crawd", "settings": {"method": {**TEXTS, "decays": "attention", "share": 0.4}}},
    },
}


class Launched(NamedTuple):
    """What two processes left behind."""

    folder: Path
    output: str


@pytest.fixture(scope="module")
def two(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Launched:
    """A table recipe under `accelerate launch`: it measures the base model, then debiases it."""
    root = tmp_path_factory.mktemp("two")
    (root / "two.yaml").write_text(yaml.safe_dump({**RECIPE, "model": tiny}), encoding="utf-8")
    # accelerate starts several processes on a CPU only in the way it starts them for several GPUs.
    launch = ["accelerate.commands.accelerate_cli", "launch", "--multi_gpu", "--num_processes", "2"]
    flags = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    command = ["-m", "evenhand", "run", str(root / "two.yaml"), "--out", str(root / "out")]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    found = subprocess.run(
        [sys.executable, "-m", *launch, *flags, *command],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=root,
        env=environment,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return Launched(root / "out", found.stdout)


def results_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def numbers(entry: Any, path: str = "") -> dict[str, float]:
    """Every number in a result, by where it stands."""
    if isinstance(entry, dict):
        return {name: value for key in entry for name, value in numbers(entry[key], f"{path}/{key}").items()}
    return {path: entry} if isinstance(entry, int | float) else {}


def test_two_processes_measure_what_one_measures(two: Launched, tiny: str) -> None:
    same = {name: RECIPE[name] for name in ("metrics", "limit", "settings")}
    job = job_of({"command": "measure", "model": tiny, **same})
    alone = steps.measure(job, quiet=True)["scores"]
    together = results_of(two.folder / "base")["scores"]
    assert numbers(together) == pytest.approx(numbers(alone), rel=1e-6, abs=1e-9)
    assert len(numbers(alone)) > 30


def test_two_processes_train_as_one_with_twice_the_batch(two: Launched, tiny: str, tmp_path: Path) -> None:
    content = {key: value for key, value in RECIPE.items() if key not in ("rows", "seeds")}
    settings = {**RECIPE["settings"], "method": {**METHOD, "batch": 16}}
    job = job_of({**content, "command": "debias", "model": tiny, "method": "lftf", "settings": settings})
    alone = steps.debias(job, tmp_path / "alone", quiet=True)
    together = results_of(two.folder / "lftf-0")
    assert len(pd.read_parquet(two.folder / "lftf-0" / "curve.parquet")) == 6  # 96 rows, two batches of 8 a step
    assert numbers(together["before"]) == pytest.approx(numbers(alone["before"]), rel=1e-6, abs=1e-9)
    for name, score in alone["after"].items():
        assert together["after"][name]["value"] == pytest.approx(score["value"], rel=1e-3)
    assert alone["after"]["afgb"]["value"] != pytest.approx(alone["before"]["afgb"]["value"], rel=0.02)
    one, other = (load_file(folder / "delta.safetensors") for folder in (tmp_path / "alone", two.folder / "lftf-0"))
    assert set(one) == set(other)
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-4


def test_everything_is_written_and_said_once(two: Launched) -> None:
    assert sorted(str(path.relative_to(two.folder)) for path in two.folder.rglob("results.json")) == [
        "base/results.json",
        "crawd-0/results.json",
        "lftf-0/results.json",
        "printed-0/results.json",
    ]
    assert not [path for path in two.folder.parent.rglob("*") if path.suffix in (".part", ".tmp", ".old")]
    assert not list(two.folder.rglob(".lock"))
    log = (two.folder / "base" / "log.jsonl").read_text(encoding="utf-8")
    assert log.count("measuring afgb") == 1
    table = (two.folder / "table.md").read_text(encoding="utf-8")
    assert table.count("| lftf |") == 1
    assert two.output.count("| lftf |") == 1


@pytest.mark.parametrize("row", ["crawd", "printed"])
def test_two_processes_fine_tune_on_texts(row: str, two: Launched, tiny: str, tmp_path: Path) -> None:
    """Nearly the weights of one process with twice the batch: a batch's loss is a mean over tokens, and the halves of a
    batch need not have equally many."""
    content = {name: RECIPE[name] for name in ("metrics", "limit", "train_limit")} | RECIPE["rows"][row]
    content["settings"] = {"method": content["settings"]["method"] | {"batch": 16}} | RECIPE["settings"]
    steps.debias(job_of({"command": "debias", "model": tiny, **content}), tmp_path / "one", quiet=True)
    alone, together = (
        load_file(folder / "delta.safetensors") for folder in (tmp_path / "one", two.folder / f"{row}-0")
    )
    assert alone.keys() == together.keys()
    moved = [name for name in alone if ".lora_B." in name]
    apart = sum(float((alone[name] - together[name]).norm() ** 2) for name in moved)
    length = sum(float(alone[name].norm() ** 2) for name in moved)
    assert length > 0
    assert apart < 0.1 * length
    loaded = LM.load(str(two.folder / f"{row}-0"), device="cpu")
    assert torch.isfinite(loaded.model(input_ids=torch.tensor(loaded.encode(["The nurse said"]))).logits).all()
