"""The bridge to the lm-evaluation-harness: any of its tasks on a live model, and its format for our results."""

import json
import os
import random
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from tiny import assert_clean, quiet_run, tiny_lm

from evenhand.config import Absent, Refusal
from evenhand.data._rows import Text
from evenhand.harness_results import as_lm_eval
from evenhand.lm import LM
from evenhand.metrics import harness
from evenhand.metrics.harness import Harness, folder_of, local_splits

lm_eval = pytest.importorskip("lm_eval", reason="needs the extra: pip install evenhand[harness]")

QUESTIONS = [
    ("sky", ["blue", "green", "square"], 0),
    ("grass", ["loud", "green", "late"], 1),
    ("snow", ["hot", "far", "white"], 2),
]
COLOURS = """
task: colours
dataset_path: evenhand/colours
output_type: multiple_choice
training_split: train
validation_split: validation
test_split: test
doc_to_text: "The {{thing}} is"
doc_to_target: answer
doc_to_choice: "{{choices}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
  - metric: acc_norm
    aggregation: mean
    higher_is_better: true
"""
NAMED = """
include: colours.yaml
task: {name}
dataset_name: {name}
"""
GROUP = """
group: palettes
task: [bright, dark]
"""
LOSSES = """
include: colours.yaml
task: losses
metric_list:
  - metric: brier_score
    aggregation: brier_score
    higher_is_better: false
"""


def shared_data() -> str:
    """The folder with real data, or no test."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    found = os.environ.get("EVENHAND_DATA") or (str(beside) if beside.exists() else "")
    if not found or not (Path(found) / "utility").exists():
        pytest.skip("utility arrow files: needs EVENHAND_DATA")
    return found


def manager(*folders: Path) -> Any:
    """Only the tasks of these folders: reading all of the harness' own takes long."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=False, include_path=list(folders))


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tasks of our own with local data, and no question to the hub."""
    folder, data = tmp_path / "tasks", tmp_path / "data"
    folder.mkdir()
    contents = {"colours": COLOURS, "palettes": GROUP, "losses": LOSSES}
    contents |= {name: NAMED.format(name=name) for name in ("bright", "dark", "missing")}
    for name, content in contents.items():
        (folder / f"{name}.yaml").write_text(content, encoding="utf-8")
    table = [{"thing": thing, "choices": choices, "answer": answer} for thing, choices, answer in QUESTIONS]
    for config, size in (("none", 3), ("bright", 3), ("dark", 2)):
        path = data / "utility" / "colours" / config / "validation"
        datasets.Dataset.from_list(table[:size]).save_to_disk(str(path))
    monkeypatch.setenv("EVENHAND_DATA", str(data))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(harness, "known_tasks", lambda: manager(folder))
    # It asks the system about itself for seconds, and nobody reads the answer.
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda storage: None)
    return folder


def measured(lm: LM, task: str, folder: Path, **settings: Any) -> pd.DataFrame:
    return Harness(**settings).score(lm, [Text(id=task, text=task)], quiet_run(folder / "run"))


def loglikelihoods(lm: LM, context: str, choices: list[str]) -> list[float]:
    """One forward pass a choice."""
    found = []
    for choice in choices:
        ids, before = (lm.tokenizer(text).input_ids for text in (f"{context} {choice}", context))
        with torch.inference_mode():
            logp = lm.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        found.append(sum(float(logp[place - 1, ids[place]]) for place in range(len(before), len(ids))))
    return found


def test_a_task_is_measured_on_the_live_model(tasks: Path, tmp_path: Path) -> None:
    lm = tiny_lm("llama")
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    table = measured(lm, "colours", tmp_path)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[:2]
    assert torch.equal(torch.get_rng_state(), states[2])
    assert table["id"].tolist() == ["colours/0", "colours/1", "colours/2"]
    assert set(table["condition"]) == {"validation"}
    assert set(table["group"]) == {""}
    scores = [loglikelihoods(lm, f"The {thing} is", choices) for thing, choices, _ in QUESTIONS]
    expected = [float(np.argmax(each) == answer) for each, (*_, answer) in zip(scores, QUESTIONS, strict=True)]
    assert table["score"].tolist() == expected
    by_letter = [
        float(np.argmax([x / len(choice) for x, choice in zip(each, choices, strict=True)]) == answer)
        for each, (_, choices, answer) in zip(scores, QUESTIONS, strict=True)
    ]
    numbers = Harness().summarise(table)
    assert numbers.value == pytest.approx(np.mean(expected))
    assert numbers.extra == pytest.approx({"acc": np.mean(expected), "acc_norm": np.mean(by_letter)})
    assert list(numbers.extra) == ["acc", "acc_norm"]
    assert_clean(lm)
    # The model as it stands: turning the weights of the head round turns the order of the answers round.
    with torch.no_grad():
        lm.head.weight.neg_()
    turned = [int(np.argmax(loglikelihoods(lm, f"The {thing} is", choices))) for thing, choices, _ in QUESTIONS]
    again = measured(lm, "colours", tmp_path)["score"].tolist()
    assert again == [float(guess == answer) for guess, (*_, answer) in zip(turned, QUESTIONS, strict=True)]


def test_the_prefix_stands_before_every_question(tasks: Path, tmp_path: Path) -> None:
    lm = tiny_lm("gpt2")
    seen: list[str] = []
    original = lm.model.forward

    def listening(*args: Any, **kwargs: Any) -> Any:
        ids = kwargs.get("input_ids", args[0] if args else None)
        seen.extend(lm.tokenizer.batch_decode(ids))
        return original(*args, **kwargs)

    lm.prefix = "Be fair. "
    lm.model.forward = listening
    measured(lm, "colours", tmp_path)
    assert seen
    assert all(text.startswith("Be fair. The ") for text in seen)


def test_a_group_is_reported_by_its_parts_and_a_limit_holds_for_each(tasks: Path, tmp_path: Path) -> None:
    lm = tiny_lm("llama")
    table = measured(lm, "palettes", tmp_path)
    assert table["group"].tolist() == ["bright"] * 3 + ["dark"] * 2
    assert set(Harness().summarise(table).groups) == {"bright", "dark"}
    assert Harness().of(table) == pytest.approx(table["score"].mean())
    assert Harness().report(table)["units"] == 5
    assert len(measured(lm, "palettes", tmp_path, limit=1)) == 2


def test_what_cannot_be_measured_is_refused(tasks: Path, tmp_path: Path) -> None:
    lm = tiny_lm("llama")
    with pytest.raises(Refusal, match=r"has no task 'colour' \(did you mean 'colours'\?\)"):
        measured(lm, "colour", tmp_path)
    with pytest.raises(Refusal, match="behind a colon"):
        measured(lm, "", tmp_path)
    with pytest.raises(Refusal, match="is a masked one"):
        measured(tiny_lm("bert"), "colours", tmp_path)
    with pytest.raises(Refusal, match=r"no share of right answers .*brier_score"):
        measured(lm, "losses", tmp_path)
    # The questions themselves must not be the solved examples.
    with pytest.raises(Refusal, match="solved examples are wanted"):
        measured(lm, "colours", tmp_path, shots=1)
    with pytest.raises(Absent, match=r"harness:missing .* EVENHAND_DATA"):
        measured(lm, "missing", tmp_path)
    from lm_eval.api.task import ConfigurableTask

    assert ConfigurableTask.download.__module__ == "lm_eval.api.task"


def test_without_the_extra_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lm_eval.evaluator", None)
    monkeypatch.delattr(lm_eval, "evaluator", raising=False)
    with pytest.raises(Refusal, match=r'pip install "evenhand\[harness\]"'):
        measured(tiny_lm("llama"), "colours", tmp_path)


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        num_processes = 2

    monkeypatch.setattr(harness, "processes", Two)
    with pytest.raises(Refusal, match="one process"):
        measured(tiny_lm("llama"), "colours", tmp_path)


def test_where_local_copies_lie() -> None:
    assert folder_of("Rowan/hellaswag", None) == "hellaswag/none"
    assert folder_of("allenai/ai2_arc", "ARC-Easy") == "ai2_arc/ARC-Easy"
    assert folder_of("cais/mmlu", "anatomy") == "mmlu/mmlu_no_train/anatomy"
    assert folder_of("baber/piqa", None) == "piqa/plain_text"
    assert folder_of("aps/super_glue", "boolq") == "boolq/none"
    assert folder_of("aps/super_glue", "cb") == "super_glue/cb"


def test_real_files_serve_the_harness_own_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = shared_data()
    monkeypatch.setenv("EVENHAND_DATA", data)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda storage: None)
    own = Path(lm_eval.__file__).parent / "tasks"
    monkeypatch.setattr(
        harness, "known_tasks", lambda: manager(*(own / name for name in ("piqa", "super_glue", "arc")))
    )
    files = sorted(Path(data, "utility", "piqa").rglob("*"))
    for task in ("piqa", "boolq", "arc_easy"):
        table = measured(tiny_lm("llama", max_position_embeddings=2048), task, tmp_path, limit=4)
        assert table["id"].tolist() == [f"{task}/{number}" for number in range(4)]
        assert set(table["score"]) <= {0.0, 1.0}
        # The harness would take ARC's test split; the copy has none, and the table says so.
        assert set(table["condition"]) == {"validation"}
    assert sorted(Path(data, "utility", "piqa").rglob("*")) == files
    boolq = local_splits("aps/super_glue", "boolq")
    assert boolq is not None
    assert set(boolq["validation"].features) == {"question", "passage", "label"}
    assert {type(label) for label in boolq["validation"]["label"][:50]} == {int}


RESULTS = {
    "scores": {
        "afgb": {
            "value": 0.13, "low": 0.12, "high": 0.15, "n": 30, "ideal": 0.0, "scorer": {}, "extra": {"mass": 0.4},
            "groups": {"word": {"value": 0.1, "low": 0.05, "high": 0.2, "n": 10, "extra": {}}},
            "data": {"name": "genbiaseval", "checksum": "68d16d1cd1af"},
        },
        "harness:piqa": {
            "value": 0.68, "low": 0.6, "high": 0.7, "n": 100, "ideal": 1.0, "scorer": {"limit": 100, "shots": 5},
            "extra": {"acc": 0.68, "acc_norm": 0.69}, "groups": {}, "data": {"name": "piqa", "checksum": "0"},
        },
    }
}  # fmt: skip
CONFIG = {"model": "owner/model", "dtype": "float32", "limit": None, "seed": 3, "method": ""}
ENVIRONMENT = {"evenhand": "0.1.0", "commit": "abc", "versions": {"transformers": "5"}, "model": {"fingerprint": "f00"}}


def test_results_in_the_harness_format() -> None:
    from lm_eval.utils import make_table

    made = json.loads(json.dumps(as_lm_eval(RESULTS, CONFIG, ENVIRONMENT)))
    afgb = made["results"]["afgb"]
    assert (afgb["afgb,none"], afgb["mass,none"], afgb["alias"]) == (0.13, 0.4, "afgb")
    assert afgb["afgb_stderr,none"] == pytest.approx(0.03 / 3.92)
    assert made["group_subtasks"] == {"afgb": ["afgb_word"], "piqa": []}
    assert made["higher_is_better"]["afgb_word"] == {"afgb": False}
    assert made["higher_is_better"]["piqa"] == {"acc": True}
    assert made["n-shot"] == {"afgb": 0, "afgb_word": 0, "piqa": 5}
    assert made["n-samples"]["afgb"] == {"original": 30, "effective": 30}
    assert made["config"]["model_args"] == {"pretrained": "owner/model", "dtype": "float32"}
    lines = make_table(made).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert cells[0][:6] == ["afgb", "0.1.0", "none", "0", "afgb", "↓"]
    assert [float(cells[0][place]) for place in (6, 8)] == [0.13, 0.0077]
    shown = {(each[0], each[4]): float(each[6]) for each in cells}
    assert shown == {
        ("afgb", "afgb"): 0.13,
        ("", "mass"): 0.4,
        ("- afgb_word", "afgb"): 0.1,
        ("piqa", "acc"): 0.68,
        ("", "acc_norm"): 0.69,
    }
    # Of a debiased model, what it is now.
    debiased = {"before": {}, "after": RESULTS["scores"], "verdicts": {}}
    assert as_lm_eval(debiased, CONFIG, ENVIRONMENT)["results"] == made["results"]


def test_the_format_has_every_key_that_the_harness_itself_gives(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, Any] = {}
    original = harness.evaluated

    def keeping(*args: Any) -> dict[str, Any]:
        kept.update(original(*args))
        return kept

    monkeypatch.setattr(harness, "evaluated", keeping)
    measured(tiny_lm("llama"), "colours", tmp_path)
    made = as_lm_eval(RESULTS, CONFIG, ENVIRONMENT)
    about_the_tokenizer = {key for key in kept if key.startswith("tokenizer_")} | {"eot_token_id", "max_length"}
    assert set(kept) - {"samples"} - about_the_tokenizer <= set(made)
    # What each task has: fixed keys, and scores whose keys name their filter.
    theirs, ours = kept["results"]["colours"], made["results"]["afgb"]
    assert {key for key in theirs if "," not in key} <= {key for key in ours if "," not in key}
    assert "acc_stderr,none" in theirs
    assert "afgb_stderr,none" in ours
