"""Each metric by group: which groups are drawn, and all of them as a table."""

from typing import Any, NamedTuple

from markupsafe import Markup

from evenhand.page import figures
from evenhand.page.folder import RunFolder, entry
from evenhand.page.plain import MISSING, known, number
from evenhand.page.story import metric_name
from evenhand.page.tables import Span, flat, span

MOST = 20  # groups in a figure


class ByGroup(NamedTuple):
    """One metric by group."""

    metric: str
    about: str
    figure: Markup
    headings: list[str]
    rows: list[tuple[str, list[Span]]]


def by_group(run: RunFolder) -> list[ByGroup]:
    """Every metric that has groups to compare."""
    metrics = dict.fromkeys(metric for found in run.scores.values() for metric in found)
    parts = [_by_group(run, metric, f"groups{place}") for place, metric in enumerate(metrics)]
    return [part for part in parts if part is not None]


def _by_group(run: RunFolder, metric: str, name: str) -> ByGroup | None:
    scores = {state: found[metric] for state, found in run.scores.items() if metric in found}
    names = list(dict.fromkeys(group for score in scores.values() for group in score.get("groups") or {}))
    drawn = farthest_groups(scores, names)
    if len(names) < 2 or not drawn:
        return None
    about = str(next(iter(scores.values())).get("headline", ""))
    if len(drawn) < len(names):
        left_out = f"the {len(drawn)} of {len(names)} groups farthest from the ideal"
        about = f"{about}; {left_out}" if about else left_out
    headings, rows = _table(scores, names)
    return ByGroup(metric_name(metric), about, figures.groups(scores, drawn, name), headings, rows)


def farthest_groups(scores: dict[str, dict[str, Any]], names: list[str]) -> list[str]:
    """The groups that have a value; where there are too many, those farthest from the ideal in the first state."""
    named = [name for name in names if any(known(entry(score, name).get("value")) for score in scores.values())]
    if len(named) <= MOST:
        return named
    first = next(iter(scores.values()))
    ideal = first.get("ideal") or 0

    def distance(name: str) -> float:
        value = entry(first, name).get("value")
        return abs(value - ideal) if known(value) else -1.0

    kept = set(sorted(named, key=distance, reverse=True)[:MOST])
    return [name for name in named if name in kept]


def _table(scores: dict[str, dict[str, Any]], names: list[str]) -> tuple[list[str], list[tuple[str, list[Span]]]]:
    """One line a group: its value in each state; of a single measurement also n and what goes with the value."""
    if len(scores) > 1:
        rows = [(str(name), [span(entry(score, name)) for score in scores.values()]) for name in names]
        return ["group", *scores], rows
    score = next(iter(scores.values()))
    beside = {name: dict(flat(entry(score, name).get("extra") or {})) for name in names}
    extras = list(dict.fromkeys(extra for found in beside.values() for extra in found))
    rows = []
    for name in names:
        part = entry(score, name)
        numbers = [number(part.get("n"), 0), *(beside[name].get(extra, MISSING) for extra in extras)]
        rows.append((str(name), [span(part), *(Span(text) for text in numbers)]))
    return ["group", "score", "n", *(extra.replace("_", " ") for extra in extras)], rows
