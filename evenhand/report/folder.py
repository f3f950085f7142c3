"""What a run folder holds, read once; whatever is not there is simply absent."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

STATES = {"before": "before", "after": "after", "scores": "measured"}  # the key in results.json -> the state's name
PREFIX = "p_"  # a column p_he holds the probability of the word "he"


class RunFolder(NamedTuple):
    """The files of one run."""

    config: dict[str, Any]
    environment: dict[str, Any]
    results: dict[str, Any]
    scores: dict[str, dict[str, dict[str, Any]]]  # state -> metric -> score
    tables: dict[str, dict[str, pd.DataFrame]]  # metric -> state -> one line an example
    ranking: pd.DataFrame | None
    curve: pd.DataFrame | None


class Slice(NamedTuple):
    """One axis of a table of word probabilities: the words compared on it, and their mean for each subject."""

    axis: str
    words: list[str]
    means: dict[str, pd.DataFrame]  # state -> a line a subject, a column a word


def read(folder: Path) -> RunFolder:
    """Read a run folder; config.yaml, environment.json and results.json must be there."""
    results = json.loads((folder / "results.json").read_text("utf-8"))
    return RunFolder(
        config=yaml.safe_load((folder / "config.yaml").read_text("utf-8")) or {},
        environment=json.loads((folder / "environment.json").read_text("utf-8")),
        results=results,
        scores={state: results[key] for key, state in STATES.items() if results.get(key)},
        tables=_tables(folder),
        ranking=_table(folder / "ranking.parquet"),
        curve=_table(folder / "curve.parquet"),
    )


def _table(path: Path) -> pd.DataFrame | None:
    table = pd.read_parquet(path) if path.exists() else None
    return None if table is None or table.empty else table


def _tables(folder: Path) -> dict[str, dict[str, pd.DataFrame]]:
    found: dict[str, dict[str, pd.DataFrame]] = {}
    for where, state in {"before": "before", "after": "after", "tables": "measured"}.items():
        for path in sorted((folder / where).glob("*.parquet")):
            table = _table(path)
            if table is not None:
                found.setdefault(path.stem, {})[state] = table
    return found


def slices(tables: dict[str, pd.DataFrame]) -> list[Slice]:
    """Split a metric's tables by axis: each axis compares its own words, so its rows fill only their columns."""
    axes = sorted({axis for table in tables.values() for axis in table["axis"].dropna().unique()}, key=str)
    parts = [_slice(str(axis), {s: t[t["axis"] == axis] for s, t in tables.items()}) for axis in axes]
    return [part for part in parts if len(part.words) > 1 and all(len(m) for m in part.means.values())]


def _slice(axis: str, tables: dict[str, pd.DataFrame]) -> Slice:
    first = next(iter(tables.values()))
    columns = [c for c in first.columns if str(c).startswith(PREFIX) and first[c].notna().any()]
    names = {c: str(c).removeprefix(PREFIX) for c in columns}
    means = {s: t.groupby("subject")[columns].mean().dropna().rename(columns=names) for s, t in tables.items()}
    return Slice(axis, list(names.values()), means)
