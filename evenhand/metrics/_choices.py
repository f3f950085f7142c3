"""Choosing among options by likelihood, and the arithmetic of what was chosen.

n rows, o options."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from evenhand.config import Refusal
from evenhand.data._rows import Choice
from evenhand.lm import LM
from evenhand.metrics._base import base_columns, divided
from evenhand.run import Run
from evenhand.scoring import continuations

__all__ = ["Chosen", "accuracy", "answered", "choose", "need", "pick", "right_and_wrong", "toward"]

# Nearer than this, two scores differ only by rounding, which depends on the batch.
TIE = 1e-6


class Chosen(NamedTuple):
    """What a model chose."""

    places: np.ndarray
    """The chosen option of each row; -1 where the best two are tied. [n]"""
    scores: list[np.ndarray]
    """The score of each option of each row. n times [o]"""


def choose(
    lm: LM,
    contexts: Sequence[str],
    options: Sequence[Sequence[str]],
    run: Run,
    what: str,
    scorer: Literal["mean", "sum"] = "mean",
) -> Chosen:
    """The option whose tokens are likeliest after the context and a space, by their mean or summed log-probability."""
    spaced = [[f" {option}" for option in some] for some in options]
    found = continuations(lm, contexts, spaced, run, what)
    scores = [np.array([each.mean() if scorer == "mean" else each.sum() for each in row]) for row in found]
    return Chosen(np.array([pick(row) for row in scores]), scores)


def need(rows: Sequence[Choice], conditions: Sequence[str], what: str) -> None:
    """Refuse rows that lack one of the conditions that are compared: a gap to nothing would look like a finding."""
    missing = [name for name in conditions if not any(row.condition == name for row in rows)]
    if missing:
        raise Refusal(f"{what} compares {' and '.join(conditions)} rows, and there are no {missing[0]} ones; add some.")


def pick(scores: np.ndarray) -> int:
    """The place of the highest score, or -1 where no option is ahead of all others."""
    best = int(scores.argmax())
    return best if (scores > scores[best] - TIE).sum() == 1 else -1


def toward(scores: np.ndarray, one: int, other: int) -> float:
    """By how much one option is preferred to another; 0 where there is no such option."""
    return float(scores[one] - scores[other]) if one >= 0 and other >= 0 else 0.0


def answered(lm: LM, rows: list[Choice], run: Run, what: str) -> pd.DataFrame:
    """Which of its two options each row's context goes on with: whether it is the right one, whether neither was
    ahead, and how far it leans to the stereotyped one."""
    chosen = choose(lm, [row.context for row in rows], [row.options for row in rows], run, what)
    named = ["no answer" if place < 0 else row.options[place] for row, place in zip(rows, chosen.places, strict=True)]
    leans = [
        toward(scores, row.stereotyped, 1 - row.stereotyped if row.stereotyped >= 0 else -1)
        for row, scores in zip(rows, chosen.scores, strict=True)
    ]
    return base_columns(rows).assign(
        text=[f"{row.context} / {name}" for row, name in zip(rows, named, strict=True)],
        right=((chosen.places == np.array([row.answer for row in rows])) & (chosen.places >= 0)).astype(float),
        tied=(chosen.places < 0).astype(float),
        lean=leans,
    )


def right_and_wrong(table: pd.DataFrame, members: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Two columns for each part of the rows: its right and its wrong answers."""
    right = table["right"].to_numpy()
    columns = {}
    for part, inside in members.items():
        columns |= {f"right_{part}": right * inside, f"wrong_{part}": (1 - right) * inside}
    return table.assign(**columns)


def accuracy(totals: Mapping[str, Any], *parts: str) -> Any:
    """The share of right answers in the parts together; 0 where they have none."""
    right = sum(totals[f"right_{part}"] for part in parts)
    return divided(right, right + sum(totals[f"wrong_{part}"] for part in parts))
