"""The tables of the page as rows of text: every number is made readable here, the template only places it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from evenhand.page.folder import Frame, RunFolder
from evenhand.page.plain import MISSING, amount, chance, decimals, duration, exact, known, number, percent
from evenhand.page.story import metric_name

SYMBOLS = {"improved": "✓", "regressed": "✗", "inconclusive": "≈"}


class Span(NamedTuple):
    """A number and its interval."""

    value: str
    interval: str = ""


class ScoreRow(NamedTuple):
    """One metric of a run."""

    metric: str
    key: str  # the metric's name in results.json
    about: str
    ideal: str
    spans: dict[str, Span]  # by state
    change: Span
    p: str
    verdict: str
    symbol: str


class Cost(NamedTuple):
    """One cost, large enough to read across a room."""

    value: str
    what: str


class Unmeasured(NamedTuple):
    """A metric without a score; `what` is failed or skipped."""

    metric: str
    what: str
    why: str


class Phase(NamedTuple):
    """One part of the run's time; `share` is a percentage of the longest."""

    name: str
    time: str
    share: float


def span(score: object, sign: bool = False, key: str = "value") -> Span:
    """A score, or a bare number, as text."""
    if not isinstance(score, Mapping):
        return Span(number(score, sign=sign)) if known(score) else Span(MISSING)
    value, low, high = score.get(key), score.get("low"), score.get("high")
    digits = decimals(value, low, high)
    if not (known(low) and known(high)):
        return Span(number(value, digits, sign))
    return Span(number(value, digits, sign), f"[{number(low, digits, sign)}, {number(high, digits, sign)}]")


def scores(run: RunFolder) -> list[ScoreRow]:
    """One row a metric, in the order of results.json."""
    metrics = dict.fromkeys(metric for found in run.scores.values() for metric in found)
    return [_score_row(run, metric) for metric in metrics]


def _score_row(run: RunFolder, metric: str) -> ScoreRow:
    by_state = {state: found[metric] for state, found in run.scores.items() if metric in found}
    any_score = next(iter(by_state.values()))
    verdict = run.results.get("verdicts", {}).get(metric, {})
    return ScoreRow(
        metric=metric_name(metric),
        key=metric,
        about=str(any_score.get("headline", "")),
        ideal=exact(any_score.get("ideal")),
        spans={state: span(by_state.get(state)) for state in run.scores},
        change=span(verdict, sign=True, key="delta") if verdict else Span(MISSING),
        p=chance(verdict.get("p")),
        verdict=str(verdict.get("verdict", "")),
        symbol=SYMBOLS.get(str(verdict.get("verdict", "")), "·"),
    )


def extras(run: RunFolder) -> list[tuple[str, str, list[str]]]:
    """(metric, name, a text a state): what a metric reports beside its score."""
    rows = []
    for metric in dict.fromkeys(m for found in run.scores.values() for m in found):
        found = {s: dict(flat(scores.get(metric, {}).get("extra") or {})) for s, scores in run.scores.items()}
        for name in dict.fromkeys(key for by_name in found.values() for key in by_name):
            texts = [found[s].get(name, MISSING) for s in found]
            rows.append((metric_name(metric), name, texts))
    return rows


def flat(value: object, name: str = "") -> list[tuple[str, str]]:
    """A nested mapping as (dotted name, text) rows."""
    if isinstance(value, Mapping):
        return [row for key, part in value.items() for row in flat(part, f"{name}.{key}" if name else str(key))]
    if isinstance(value, list):
        return [(name, ", ".join(str(part) for part in value))]
    return [(name, f"{value:.4g}" if isinstance(value, float) else str(value))]


def environment(run: RunFolder) -> list[tuple[str, str]]:
    """Everything needed to judge whether a repeat is a repeat; the command stands apart."""
    rows = flat({key: value for key, value in run.environment.items() if key != "command"})
    first = next(iter(run.scores.values()), {})
    return rows + flat({f"scored on.{metric}": score["data"] for metric, score in first.items() if score.get("data")})


def costs(run: RunFolder) -> list[Cost]:
    """The costs in a few numbers."""
    train = run.results.get("train") or {}
    found = []
    spent = [value for value in (run.results.get("seconds") or {}).values() if known(value)]
    if "measured" in run.scores and len(spent) > 1:
        found.append(Cost(duration(sum(spent)), "of measuring"))
    if known(train.get("seconds")):
        found.append(Cost(duration(train["seconds"]), "of training"))
    if known(train.get("trainable")) and known(train.get("total")):
        share = percent(train["trainable"] / train["total"])
        found.append(
            Cost(share, f"of the parameters trained ({amount(train['trainable'])} of {amount(train['total'])})")
        )
    if known(train.get("peak_memory_mb")):
        found.append(Cost(memory(train["peak_memory_mb"]), "of memory at the peak"))
    values = [run.scores.get(s, {}).get("perplexity", {}).get("value") for s in ("before", "after")]
    if known(values[0]) and known(values[1]) and values[0]:
        found.append(Cost(percent(values[1] / values[0] - 1, sign=True), "perplexity on plain text"))
    return found


def memory(megabytes: float) -> str:
    """Megabytes in the unit that suits them."""
    return f"{megabytes / 1000:.1f}\u00a0GB" if megabytes >= 1000 else f"{megabytes:.0f}\u00a0MB"


def phases(run: RunFolder) -> list[Phase]:
    """Seconds by phase, or by metric where measuring is all there was, in the order they ran."""
    names = {"before": "measure before", "locate": "locate", "train": "train", "after": "measure after"}
    seconds = {name: value for name, value in (run.results.get("seconds") or {}).items() if known(value)}
    longest = max(seconds.values(), default=0) or 1
    order = [name for name in names if name in seconds] + [name for name in seconds if name not in names]
    return [
        Phase(names.get(n) or metric_name(n), duration(seconds[n]), round(100 * seconds[n] / longest, 1)) for n in order
    ]


def unmeasured(run: RunFolder) -> list[Unmeasured]:
    """What could not be measured, or was not tried, and why."""
    found = [(what, run.results.get(what) or {}) for what in ("failed", "skipped")]
    return [Unmeasured(metric_name(str(m)), what, str(why)) for what, by_name in found for m, why in by_name.items()]


def ranking(table: Frame) -> tuple[list[str], list[list[str]]]:
    """The locator's ranking, best block first: headings and rows."""
    shown = [c for c in table.columns if c not in ("block", "chosen")]
    rows = []
    for _, line in table.sort_values("score", ascending=False, kind="stable").iterrows():
        mark = " ●" if "chosen" in table and bool(line["chosen"]) else ""
        rows.append([f"{int(line['block'])}{mark}", *(_cell(line[c]) for c in shown)])
    return ["block", *(str(c).replace("_", " ") for c in shown)], rows


def _cell(value: Any) -> str:
    return number(float(value)) if isinstance(value, int | float | np.number) else str(value)
