"""A language model as a zero-shot classifier: the label whose text it finds likeliest after the prompt.

l labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from evenhand.config import Refusal
from evenhand.data._rows import Labelled
from evenhand.data.file import as_tuple, read_records
from evenhand.lm import LM
from evenhand.metrics._base import base_columns
from evenhand.run import Run
from evenhand.scoring import continuations

__all__ = [
    "Prediction",
    "as_sets",
    "decode",
    "known_labels",
    "label_columns",
    "predict",
    "predictions_of",
    "prompt_of",
]


class Prediction(NamedTuple):
    """What was predicted for a row, and how likely each label was."""

    labels: tuple[str, ...]
    shares: dict[str, float]
    """Each label's share of the probability; they add up to 1."""


def known_labels(rows: Sequence[Labelled]) -> list[str]:
    """The labels that occur, in alphabetical order."""
    return sorted({label for row in rows for label in row.labels})


def prompt_of(text: str, labels: Sequence[str]) -> str:
    """The labels stand first, so that all prompts begin alike and what they share is run once."""
    return f"Labels: {', '.join(labels)}\nText: {' '.join(text.split())}\nLabel:"


def predict(lm: LM, rows: list[Labelled], run: Run, what: str) -> list[Prediction]:
    """Score every label by the mean log-likelihood of its tokens: a long label is not punished for its length, and
    labels that begin alike are told apart."""
    labels = known_labels(rows)
    if len(labels) < 2:
        raise Refusal(f"{what}: the rows have {len(labels)} label(s), and choosing needs two; give more rows.")
    several = any(len(row.labels) != 1 for row in rows)
    prompts = [prompt_of(row.text, labels) for row in rows]
    answers = [[f" {label}" for label in labels]] * len(rows)
    found = continuations(lm, prompts, answers, run, what)
    return [decode(labels, np.array([float(each.mean()) for each in scores]), several) for scores in found]


def decode(labels: Sequence[str], scores: np.ndarray, several: bool) -> Prediction:
    """The likeliest label; where rows may have several, every label whose share is above an even one (1/l)."""
    weights = np.exp(scores - scores.max())
    shares = weights / weights.sum()  # [l]
    best = int(shares.argmax())
    chosen = [place for place in range(len(labels)) if place == best or (several and shares[place] > 1 / len(labels))]
    return Prediction(
        tuple(labels[place] for place in chosen), {label: float(x) for label, x in zip(labels, shares, strict=True)}
    )


def as_sets(rows: Sequence[Labelled], predictions: Sequence[Sequence[str]]) -> list[set[str]]:
    """A classifier's predictions as sets of labels, or a refusal where they are no such thing."""
    if len(rows) != len(predictions):
        raise Refusal(f"There are {len(rows)} rows and {len(predictions)} predictions; give one a row.")
    if any(isinstance(each, str) for each in predictions):
        raise Refusal('A prediction is a text; give a tuple of labels for each row, such as ("food",).')
    return [set(each) for each in predictions]


def label_columns(rows: Sequence[Labelled], guesses: Sequence[set[str]]) -> pd.DataFrame:
    """The columns that every table of predictions begins with."""
    return base_columns(list(rows)).assign(
        text=[row.text for row in rows],
        labels=["|".join(sorted(row.labels)) for row in rows],
        predicted=["|".join(sorted(map(str, guess))) for guess in guesses],
    )


def predictions_of(path: Path, rows: Sequence[Labelled]) -> list[tuple[str, ...]]:
    """The labels that a file predicts for each row: columns `id` and `labels` (a list, or cut at |)."""
    found: dict[str, tuple[str, ...]] = {}
    for number, record in read_records(path):
        if "id" not in record or "labels" not in record:
            raise Refusal(f"{path.name}, row {number}: it needs the columns id and labels; rename them.")
        found[str(record["id"])] = () if record["labels"] in (None, "") else as_tuple(record["labels"])
    for row in rows:
        if row.id not in found:
            raise Refusal(f"{path.name} has no prediction for row {row.id}; add it.")
    return [found[row.id] for row in rows]
