"""A card for each metric: its value on its own scale, what the value means, and what it was made from."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from markupsafe import Markup

from evenhand.page.folder import RunFolder
from evenhand.page.plain import exact, known, number
from evenhand.page.story import metric_name
from evenhand.page.tables import Span, flat, span

CHECKSUM = 12  # letters of a checksum that tell two files apart; the whole one stands with the environment
EDGE, WIDTH = 8, 300  # of the gauge, in its own units
NEAR = 0.3  # of the gauge: an ideal this close to an end leaves no room for the end's own number


class Card(NamedTuple):
    """One metric in words and numbers."""

    metric: str
    about: str
    meaning: str
    span: Span
    ideal: str
    gauge: Markup
    extras: list[tuple[str, str]]  # what the metric reports beside its value
    facts: list[tuple[str, str]]  # what it was measured on, and how


def cards(run: RunFolder) -> list[Card]:
    """A card a metric, in the order of results.json; of a debias run the scores before."""
    return [_card(metric, score) for metric, score in next(iter(run.scores.values()), {}).items()]


def _card(metric: str, score: dict[str, Any]) -> Card:
    data = score.get("data") or {}
    source = f"{data.get('name', '')} ({str(data.get('checksum', ''))[:CHECKSUM]})" if data else ""
    options = ", ".join(_option(name, text) for name, text in flat(score.get("scorer") or {}))
    facts = [("from", counted(score)), ("data", source), ("scorer", options)]
    return Card(
        metric=metric_name(metric),
        about=str(score.get("headline", "")),
        meaning=str(score.get("meaning", "")),
        span=span(score),
        ideal=exact(score.get("ideal")),
        gauge=gauge(score),
        extras=[(name.replace("_", " "), text) for name, text in flat(score.get("extra") or {})],
        facts=[(name, text) for name, text in facts if text],
    )


def _option(name: str, text: str) -> str:
    """An option in words; the one called scorer stands behind that word already."""
    return text if name == "scorer" else f"{name.replace('_', ' ')} {text}"


def counted(score: Mapping[str, Any]) -> str:
    """How many rows the score was made from, and what its interval was drawn over: "4,229 rows, ... 79 terms"."""
    rows, units, unit = score.get("n"), score.get("units"), str(score.get("unit") or "")
    if not known(rows):
        return ""
    text = f"{number(rows, 0)} {'row' if rows == 1 else 'rows'}"
    if not unit or not known(units):
        return text
    if unit == "row" and units == rows:
        return f"{text}, bootstrap over rows"
    plural = unit[:-1] + "ies" if unit.endswith("y") else unit + "s"
    return f"{text}, bootstrap over {number(units, 0)} {plural.replace('_', ' ')}"


def gauge(score: Mapping[str, Any]) -> Markup:
    """The value on its metric's whole scale, its interval a band and the ideal marked; nothing without a scale."""
    low, high = score.get("range") or (None, None)
    value, ideal = score.get("value"), score.get("ideal")
    if not (known(low) and known(high) and known(value) and known(ideal) and low < high):
        return Markup("")

    def at(place: float) -> float:
        return EDGE + (WIDTH - 2 * EDGE) * min(max((place - low) / (high - low), 0), 1)

    shapes = [f'<rect x="{EDGE}" y="13" width="{WIDTH - 2 * EDGE}" height="8" rx="4" fill="var(--line)"/>']
    start, end = score.get("low"), score.get("high")
    if known(start) and known(end):
        wide = max(at(end) - at(start), 2)
        shapes.append(f'<rect x="{at(start):.1f}" y="8" width="{wide:.1f}" height="18" rx="2" class="band"/>')
    shapes.append(f'<path d="M{at(ideal):.1f} 4v26" stroke="currentColor" stroke-width="2"/>')
    shapes.append(f'<circle cx="{at(value):.1f}" cy="17" r="5.5" class="mark"/>')
    shapes += _gauge_numbers(low, high, ideal, at)
    words = f"{number(value)} on a scale from {exact(low)} to {exact(high)}, of which {exact(ideal)} is ideal"
    return Markup(
        f'<svg class="gauge" viewBox="0 0 {WIDTH} 46" role="img" aria-label="{words}">'
        f"<title>{words}</title>{''.join(shapes)}</svg>"
    )


def _gauge_numbers(low: float, high: float, ideal: float, at: Callable[[float], float]) -> list[str]:
    """The ends of the scale and the ideal, below the gauge."""
    share = (ideal - low) / (high - low)
    anchor = "start" if share < NEAR / 2 else "end" if share > 1 - NEAR / 2 else "middle"
    # A label at the very end would be centred half outside.
    place = {"start": max(at(ideal) - EDGE, 0), "end": min(at(ideal) + EDGE, WIDTH), "middle": at(ideal)}[anchor]
    texts = [f'<text x="{place:.1f}" y="43" text-anchor="{anchor}" class="ideal">ideal {exact(ideal)}</text>']
    if share >= NEAR:
        texts.append(f'<text x="0" y="43">{exact(low)}</text>')
    if share <= 1 - NEAR:
        texts.append(f'<text x="{WIDTH}" y="43" text-anchor="end">{exact(high)}</text>')
    return texts
