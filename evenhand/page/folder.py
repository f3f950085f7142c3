"""What a run folder holds, read once; whatever is not there is simply absent."""

import json
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pandas as pd
import yaml

# pandas carries no types, and a checker that guesses them takes every column for "Series | bool | ndarray".
Frame: TypeAlias = Any
Column: TypeAlias = Any

STATES = {"before": "before", "after": "after", "scores": "measured"}  # the key in results.json -> the state's name
TOP = 20  # subjects among the farthest from even
PREFIX = "p_"  # a column p_he holds the probability of the word "he"


class RunFolder(NamedTuple):
    """The files of one run."""

    config: dict[str, Any]
    environment: dict[str, Any]
    results: dict[str, Any]
    scores: dict[str, dict[str, dict[str, Any]]]  # state -> metric -> score
    tables: dict[str, dict[str, Frame]]  # metric -> state -> one line an example
    ranking: Frame | None
    curve: Frame | None
    association: Frame | None
    attention: Frame | None


class Slice(NamedTuple):
    """One axis of a table of word probabilities: the words compared on it, and their mean for each subject."""

    axis: str
    words: list[str]
    means: dict[str, Frame]  # state -> a line a subject, a column a word


def read(folder: Path) -> RunFolder:
    """Read a run folder; config.yaml, environment.json and results.json must be there."""
    results = json.loads((folder / "results.json").read_text("utf-8"))
    return RunFolder(
        config=yaml.safe_load((folder / "config.yaml").read_text("utf-8")) or {},
        environment=json.loads((folder / "environment.json").read_text("utf-8")),
        results=results,
        scores={state: results[key] for key, state in STATES.items() if results.get(key)},
        tables=_tables(folder, results),
        ranking=_table(folder / "ranking.parquet"),
        curve=_table(folder / "curve.parquet"),
        association=_table(folder / "association.parquet"),
        attention=_table(folder / "attention.parquet"),
    )


def _table(path: Path) -> Frame | None:
    table = pd.read_parquet(path) if path.exists() else None
    return None if table is None or table.empty else table


def _tables(folder: Path, results: dict[str, Any]) -> dict[str, dict[str, Frame]]:
    # A score may be called metric:dataset, and a file may not.
    names = {
        str(name).replace(":", "-").replace("/", "-"): str(name) for key in STATES for name in results.get(key) or {}
    }
    found: dict[str, dict[str, Frame]] = {}
    for where, state in {"before": "before", "after": "after", "tables": "measured"}.items():
        for path in sorted((folder / where).glob("*.parquet")):
            table = _table(path)
            if table is not None:
                found.setdefault(names.get(path.stem, path.stem), {})[state] = table
    return found


def entry(score: dict[str, Any], group: str) -> dict[str, Any]:
    """A group's part of a score; older runs hold a bare number there."""
    found = (score.get("groups") or {}).get(group)
    return found if isinstance(found, dict) else {"value": found}


def slices(tables: dict[str, Frame]) -> list[Slice]:
    """Split a metric's tables by axis: each axis compares its own words, so its rows fill only their columns."""
    axes = sorted({axis for table in tables.values() for axis in table["axis"].dropna().unique()}, key=str)
    parts = [_slice(str(axis), {s: t[t["axis"] == axis] for s, t in tables.items()}) for axis in axes]
    return [part for part in parts if len(part.words) > 1 and all(len(m) for m in part.means.values())]


def _slice(axis: str, tables: dict[str, Frame]) -> Slice:
    first = next(iter(tables.values()))
    columns = [c for c in first.columns if str(c).startswith(PREFIX) and first[c].notna().any()]
    names = {c: str(c).removeprefix(PREFIX) for c in columns}
    means = {s: t.groupby("subject")[columns].mean().dropna().rename(columns=names) for s, t in tables.items()}
    return Slice(axis, list(names.values()), means)


def farthest(part: Slice) -> dict[str, Column]:
    """How far the subjects farthest from even in the first state lean, in every state.

    Signed, first word less second, for two words; the likeliest less the least likely for more.
    """
    lean = {state: _lean(means, part.words) for state, means in part.means.items()}
    first = next(iter(lean.values()))
    top = first[first.abs().sort_values(ascending=False, kind="stable").index[:TOP]]
    order = top.sort_values(ascending=False, kind="stable").index
    return {state: values.reindex(order) for state, values in lean.items()}


def _lean(means: Frame, words: list[str]) -> Column:
    return means[words[0]] - means[words[1]] if len(words) == 2 else means.max(axis=1) - means.min(axis=1)
