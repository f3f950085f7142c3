"""Any task of the lm-evaluation-harness on the model as it stands in memory: `harness:hellaswag`, `harness:mmlu`."""

import contextlib
import copy
import functools
import logging
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
import pandas as pd
import torch

from evenhand.config import Absent, Refusal, closest, options
from evenhand.data._rows import Text
from evenhand.lm import LM
from evenhand.metrics._base import Metric, base_columns
from evenhand.run import Run, processes

__all__ = ["Harness"]

FIRST = ("acc", "exact_match", "acc_norm", "em")
"""Which of a task's scores is the value, where it has several."""
OWN = "own "
"""How the columns of a task's scores begin that carry its own names for them; the main one comes first."""
# Where the local copy of a dataset lies when its folder is not named after the hub id, and the columns that were
# given other names since.
FOLDERS: dict[tuple[str, str | None], str] = {
    ("aps/super_glue", "boolq"): "boolq/none",
    ("baber/piqa", None): "piqa/plain_text",
    ("cais/mmlu", None): "mmlu/mmlu_no_train",
}
RENAMED: dict[tuple[str, str | None], dict[str, str]] = {("aps/super_glue", "boolq"): {"answer": "label"}}
OFFLINE = (OSError, datasets.exceptions.DatasetNotFoundError, datasets.exceptions.DatasetGenerationError)


@options
class Harness(Metric):
    """The share of right answers in a task of the lm-evaluation-harness; 1 is all."""

    reads: ClassVar = Text
    data: ClassVar = ""
    ideal: ClassVar = 1.0
    low: ClassVar = 0.0
    high: ClassVar = 1.0
    headline: ClassVar = "share of right answers"
    meaning: ClassVar = (
        "How many questions of a standard test the model answers rightly; debiasing should not cost any."
    )
    sums: ClassVar = ("score",)

    limit: int | None = None
    """At most so many examples of each task (of each subtask of a group)."""
    shots: int | None = None
    """How many solved examples stand before each question; none: as the task says."""

    def score(self, lm: LM, rows: list[Text], run: Run) -> pd.DataFrame:
        """One line a question: the task's main score, and all its scores under their own names."""
        if len(rows) != 1 or not rows[0].text:
            raise Refusal("harness needs a task's name behind a colon, such as harness:hellaswag.")
        if processes().num_processes > 1:
            raise Refusal("harness works in one process; measure it on its own, without a launcher.")
        if lm.kind == "masked":
            raise Refusal(f"harness needs a causal or seq2seq language model; {lm.name} is a masked one.")
        task = rows[0].text
        results = evaluated(lm, task, self.limit, self.shots)
        tables = [self.lines(name, samples, results) for name, samples in results["samples"].items()]
        for table in tables:
            run.say(f"  {table['group'][0]}: {len(table)} questions of the {table['condition'][0]} split")
        # A score that only some subtasks have cannot be averaged over all.
        shared = set.intersection(*(set(table.columns) for table in tables))
        joined = pd.concat([table[[name for name in table.columns if name in shared]] for table in tables])
        # A task on its own has no parts.
        return joined.reset_index(drop=True).assign(**({"group": ""} if len(tables) == 1 else {}))

    def lines(self, name: str, samples: list[dict[str, Any]], results: Mapping[str, Any]) -> pd.DataFrame:
        """The lines of one task or subtask; of several ways to read an answer the task's first."""
        kept = [sample for sample in samples if sample["filter"] == samples[0]["filter"]]
        better = results["higher_is_better"].get(name, {})
        usable = [
            metric
            for metric in kept[0]["metrics"]
            if better.get(metric, True) and all(is_share(sample[metric]) for sample in kept)
        ]
        if not usable:
            raise Refusal(
                f"harness:{name} gives no share of right answers for each question "
                f"(it has {', '.join(kept[0]['metrics'])}); choose another task."
            )
        main = next((metric for metric in FIRST if metric in usable), usable[0])
        shown = [Text(id=f"{name}/{sample['doc_id']}", group=name, text=name) for sample in kept]
        columns = {
            OWN + own: [float(sample[own]) for sample in kept] for own in sorted(usable, key=lambda own: own != main)
        }
        table = base_columns(shown).assign(condition=split_of(results, name))
        return table.assign(score=[float(sample[main]) for sample in kept], **columns)

    def columns(self, table: pd.DataFrame) -> list[str]:
        """Each question's scores, as the task calls them."""
        return [*self.sums, *(name for name in table.columns if name.startswith(OWN))]

    def value(self, totals: Mapping[str, Any], count: Any) -> Any:
        """The mean over questions; the parts of a group count by their size."""
        return totals["score"] / count

    def extras(self, totals: Mapping[str, Any], count: Any) -> dict[str, Any]:
        """The means of the task's scores under their own names (the first is the value)."""
        return {name.removeprefix(OWN): totals[name] / count for name in totals if name.startswith(OWN)}


def is_share(value: Any) -> bool:
    """Whether a score is a number from 0 to 1 (some tasks keep tuples, to be put together later)."""
    return isinstance(value, bool | int | float | np.number) and 0 <= float(value) <= 1


def split_of(results: Mapping[str, Any], name: str) -> str:
    """The split a task was measured on."""
    config = results["configs"].get(name, {})
    return str(config.get("test_split") or config.get("validation_split") or "")


def evaluated(lm: LM, task: str, limit: int | None, shots: int | None) -> dict[str, Any]:
    """What the harness finds, its own seeds and defaults kept so that numbers can be compared with others'."""
    try:
        from lm_eval import evaluator
        from lm_eval.models.huggingface import HFLM
    except ImportError:
        raise Refusal('harness needs the lm-evaluation-harness: pip install "evenhand[harness]".') from None
    with quietly(), own_seeds(), local_data(shots):
        manager = known_tasks()
        if task not in manager.all_tasks:
            raise Refusal(f"The lm-evaluation-harness has no task {task!r}{closest(task, manager.all_tasks)}.")
        size = "auto" if lm.device.type == "cuda" else 8
        # A copy, because the harness gives a tokenizer without a padding token one.
        wrapped = HFLM(pretrained=lm.model, tokenizer=copy.deepcopy(lm.tokenizer), batch_size=size)  # pyright: ignore[reportCallIssue]
        try:
            return evaluator.simple_evaluate(
                model=wrapped,
                tasks=[task],
                task_manager=manager,
                num_fewshot=shots,
                limit=limit,
                log_samples=True,
                bootstrap_iters=0,
                system_instruction=lm.prefix or None,
            )
        except OFFLINE as error:
            raise Absent(
                f"The data of harness:{task} is not to be had from the hub here, and the folder that EVENHAND_DATA "
                "names has no copy of it under utility; put its splits there as arrow files, or go online."
            ) from error


@functools.cache
def known_tasks() -> Any:
    """All tasks; finding them means reading thousands of files, which is done once."""
    from lm_eval.tasks import TaskManager

    return TaskManager()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """The harness tells a lot; only its errors are shown."""
    logger = logging.getLogger("lm_eval")
    before, bars = logger.level, datasets.are_progress_bars_disabled()
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(before)
        if not bars:
            datasets.enable_progress_bars()


@contextlib.contextmanager
def own_seeds() -> Iterator[None]:
    """The harness seeds every generator there is; what runs afterwards draws as if it had not."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextlib.contextmanager
def local_data(shots: int | None) -> Iterator[None]:
    """Tasks read the arrow files under EVENHAND_DATA where there are some, and the hub otherwise."""
    from lm_eval.api.task import ConfigurableTask

    before: Callable[..., None] = ConfigurableTask.download

    def download(self: Any, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Give a task its local splits."""
        found = local_splits(self.DATASET_PATH, self.DATASET_NAME)
        if found is None:
            return before(self, dataset_kwargs, **kwargs)
        self.dataset = found
        return fit_splits(self, found, shots)

    ConfigurableTask.download = download
    try:
        yield
    finally:
        ConfigurableTask.download = before


def fit_splits(task: Any, found: datasets.DatasetDict, shots: int | None) -> None:
    """A split that is not there is not used: a test split gives way to the validation split, and the table says which
    was measured. Solved examples need a split of their own, because the questions would give themselves away."""
    config = task.config
    for name in ("training_split", "validation_split", "test_split"):
        if getattr(config, name) not in found:
            setattr(config, name, None)
    if task.fewshot_cfg.split not in found:
        task.fewshot_cfg.split = None
    if config.test_split is None and config.validation_split is None:
        raise Refusal(f"{config.task}: the local copy has neither a test nor a validation split; add one.")
    wanted = config.num_fewshot if shots is None or config.num_fewshot == 0 else shots
    others = task.fewshot_cfg.samples or task.fewshot_cfg.split or config.training_split
    if wanted and not others:
        raise Refusal(
            f"{config.task}: solved examples are wanted, and the local copy has no split to take them from; "
            "add its train split, or set --set harness.shots=0."
        )


def local_splits(hub: str, config: str | None) -> datasets.DatasetDict | None:
    """The splits of a dataset under EVENHAND_DATA, written there by `save_to_disk`, if there are any."""
    root = os.environ.get("EVENHAND_DATA")
    if not root or not hub:
        return None
    folder = Path(root) / "utility" / folder_of(hub, config)
    names = sorted(path.parent.name for path in folder.glob("*/state.json"))
    if not names:
        return None
    # In memory, because tasks rework their rows and the result would otherwise be written beside the files.
    found = datasets.DatasetDict(
        {name: datasets.Dataset.load_from_disk(str(folder / name), keep_in_memory=True) for name in names}
    )
    if (hub, config) not in RENAMED:
        return found
    found = found.rename_columns(RENAMED[hub, config])
    # Yes and no became the places of the answers.
    return found.cast_column("label", datasets.Value("int64"))


def folder_of(hub: str, config: str | None) -> str:
    """`cais/mmlu` with `anatomy` is `mmlu/mmlu_no_train/anatomy`; a dataset without a config lies under `none`."""
    if (hub, config) in FOLDERS:
        return FOLDERS[hub, config]
    if config and (hub, None) in FOLDERS:
        return f"{FOLDERS[hub, None]}/{config}"
    return f"{hub.rsplit('/', 1)[-1]}/{config or 'none'}"
