"""StereoSet's development set, the published one: from EVENHAND_DATA in the upstream format, else from the hub."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from evenhand.config import Refusal, options
from evenhand.data._base import Dataset, Source, from_hub, upstream_file
from evenhand.data._rows import Choice

__all__ = ["StereoSet"]

FILE = "stereoset/dev.json"
Task = Literal["intrasentence", "intersentence"]
LABELS = ("stereotype", "anti-stereotype", "unrelated")
"""The order of a row's options."""
HUB_LABELS = ("anti-stereotype", "stereotype", "unrelated")
"""What the hub's numbers stand for."""


@dataclass(frozen=True, kw_only=True)
class Item(Choice):
    """A choice that knows what published prediction files call its sentences."""

    sentence_ids: tuple[str, ...]


@options
class StereoSet(Dataset):
    """Sentences about a person's kind, each with a stereotyped, an anti-stereotyped and an unrelated ending."""

    kind: ClassVar = Choice
    source: ClassVar = Source("McGill-NLP/stereoset", "main", "CC BY-SA 4.0", "Nadeem et al. 2021")

    task: Literal["both", "intrasentence", "intersentence"] = "both"
    """Whether a word is filled in (intrasentence; the blank stays in `context`) or a sentence follows."""

    def rows(self, split: str) -> Iterator[Choice]:
        """One row an item: options are stereotype, anti-stereotype, unrelated; drawn together by the target term."""
        tasks: tuple[Task, ...] = get_args(Task) if self.task == "both" else (self.task,)
        local = upstream_file(FILE)
        found = read_items(local, tasks) if local else hub_items(tasks)
        where = local.name if local else StereoSet.source.hub
        items = [item_of(record, task, f"{where}, {task} row {number}") for task, number, record in found]
        # The ids are checksums, so their order is as good as drawn; terms are not kept together, because a beginning
        # of a few hundred rows would then be about a handful of terms.
        yield from sorted(items, key=lambda item: item.id)


def read_items(path: Path, tasks: tuple[Task, ...]) -> Iterator[tuple[Task, int, dict[str, Any]]]:
    """The numbered items of the upstream file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        parts = {task: content["data"][task] for task in tasks}
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise Refusal(f"{path.name} is not the JSON file that StereoSet publishes: {error}; fetch it anew.") from None
    except (KeyError, TypeError, IndexError):
        wanted = " and ".join(f"data.{task}" for task in tasks)
        raise Refusal(f"{path.name} has no {wanted}; put StereoSet's own dev.json there.") from None
    for task, records in parts.items():
        for number, record in enumerate(records, 1):
            yield task, number, record


def hub_items(tasks: tuple[Task, ...]) -> Iterator[tuple[Task, int, dict[str, Any]]]:
    """The same items from the hub, where the sentences of an item are columns."""
    for task in tasks:
        for number, record in enumerate(from_hub(StereoSet.source, task, "validation", FILE), 1):
            yield task, number, dict(record)


def item_of(record: dict[str, Any], task: Task, where: str) -> Item:
    """A record of either source as a row, or a refusal that says what it lacks."""
    try:
        by_label = {label_of(sentence["gold_label"]): sentence for sentence in sentences_of(record["sentences"])}
        three = [by_label[label] for label in LABELS]
        return Item(
            id=record["id"],
            axis=record["bias_type"],
            group=record["bias_type"],
            unit=record["target"],
            condition=task,
            context=record["context"],
            options=tuple(sentence["sentence"] for sentence in three),
            sentence_ids=tuple(sentence["id"] for sentence in three),
            answer=-1,
            stereotyped=0,
            other=2,
        )
    except (KeyError, IndexError, TypeError) as error:
        raise Refusal(
            f"{where}: no {error}; an item has id, target, bias_type, context and three sentences labelled "
            f"{', '.join(LABELS)}: mend or delete it."
        ) from None


def sentences_of(sentences: Any) -> list[dict[str, Any]]:
    """The sentences one by one, also where they come as one list a column."""
    if not isinstance(sentences, dict):
        return sentences
    columns = ("id", "sentence", "gold_label")
    return [dict(zip(columns, each, strict=True)) for each in zip(*(sentences[name] for name in columns), strict=True)]


def label_of(label: str | int) -> str:
    """A label's name, also where the hub gives its number."""
    return HUB_LABELS[label] if isinstance(label, int) else label
