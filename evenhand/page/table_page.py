"""A table of runs becomes report.html: every row beside the base model, and what each one trades for what."""

import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

from evenhand.page.plain import SPACE, decimals, exact, known, number, percent
from evenhand.page.story import metric_name, moved
from evenhand.page.tradeoff import Point, tradeoff
from evenhand.page.write import render, write

Table: TypeAlias = dict[str, dict[str, list[Any]]]  # row -> number -> its values over seeds
BASE = "base"
COSTS = ("trained %", "seconds")  # what a row cost; neither is a metric


class Cell(NamedTuple):
    """One number of one row."""

    value: str
    spread: str = ""  # over seeds
    change: str = ""  # from the base model


class Axes(NamedTuple):
    """The two numbers set against each other: a cost along, a bias up."""

    x: str
    y: str


def build_table_page(folder: Path) -> Path:
    """Write `folder/report.html` from the folder's table.json, and return its path."""
    folder = Path(folder)
    table: Table = json.loads((folder / "table.json").read_text("utf-8"))
    ideals = _ideals(folder)
    main, extra = columns(table)
    axes = axes_of(table)
    drawn = None if axes is None else tradeoff(_points(table, axes), _named(axes, ideals), BASE)
    page = render(
        "table.html",
        *("style.css", "table.css"),
        title=f"{folder.resolve().name}: a table of runs",
        headline=headline(table, axes, ideals),
        facts=_facts(folder, table),
        seeds=_seeds(table),
        drawn=drawn,
        base=BASE,
        main=_grid(table, main, ideals),
        extra=_grid(table, extra, ideals),
    )
    return write(folder, page)


def _ideals(folder: Path) -> dict[str, float]:
    """The ideal of each metric, as the base model's results name it."""
    path = folder / BASE / "results.json"
    scores = (json.loads(path.read_text("utf-8")).get("scores") or {}) if path.exists() else {}
    return {name: score["ideal"] for name, score in scores.items() if known(score.get("ideal"))}


def _facts(folder: Path, table: Table) -> list[tuple[str, str]]:
    path = folder / BASE / "config.yaml"
    model = (yaml.safe_load(path.read_text("utf-8")) or {}).get("model") if path.exists() else None
    found = [("rows", str(len([name for name in table if name != BASE]))), ("seeds", str(_seeds(table)))]
    return [("model", str(model)), *found] if model else found


def _seeds(table: Table) -> int:
    return max((len(values) for row in table.values() for values in row.values()), default=0)


def columns(table: Table) -> tuple[list[str], list[str]]:
    """The numbers of the table in order: the metrics and costs, and apart from them what stands beside a metric."""
    names = list(dict.fromkeys(name for row in table.values() for name in row))
    extra = [name for name in names if " " in name and name.partition(" ")[0] in names]
    return [name for name in names if name not in extra], extra


def axes_of(table: Table) -> Axes | None:
    """Perplexity along, and up the bias: GAS, else AFGB, else the first metric; nothing without two of them."""
    names = [name for name in columns(table)[0] if name not in COSTS]
    x = next((name for name in names if "perplexity" in name), None)
    biases = [name for name in names if "perplexity" not in name]
    found = [name for start in ("gas", "afgb", "") for name in biases if name.startswith(start)]
    return Axes(x, found[0]) if x is not None and found else None


def heading(column: str) -> str:
    """A number's name: the metric as the field writes it, and what stands beside it."""
    metric, _, beside = column.partition(" ")
    return " ".join([metric_name(metric), *([beside.replace("_", " ")] if beside else [])])


def mean(values: list[Any] | None) -> float | None:
    """The mean of the values that could be taken."""
    numbers = [value for value in values or [] if known(value)]
    return statistics.fmean(numbers) if numbers else None


def spread(values: list[Any] | None) -> float | None:
    """The standard deviation over seeds, where there are several."""
    numbers = [value for value in values or [] if known(value)]
    return statistics.stdev(numbers) if len(numbers) > 1 else None


def cell(values: list[Any] | None, base: float | None) -> Cell:
    """Mean, spread and change of one number; `base` is None for the base model itself."""
    value, error = mean(values), spread(values)
    digits = decimals(value)
    fine = known(error) and error < 0.5 * 10**-digits  # would be written as zero
    around = f"±{SPACE}{number(error, None if fine else digits)}" if error else ""
    return Cell(
        number(value, digits),
        around,
        percent(value / base - 1, sign=True) if known(value) and known(base) and base else "",
    )


def _grid(
    table: Table, names: list[str], ideals: dict[str, float]
) -> tuple[list[tuple[str, str]], list[tuple[str, list[Cell]]]]:
    """Headings with their ideals, and the rows of the table."""
    base = table.get(BASE, {})
    heads = [(heading(name), exact(ideals[name]) if name in ideals else "") for name in names]
    rows = [
        (row, [cell(found.get(name), None if row == BASE else mean(base.get(name))) for name in names])
        for row, found in table.items()
    ]
    return heads, rows


def _points(table: Table, axes: Axes) -> list[Point]:
    found = [
        Point(name, mean(row.get(axes.x)), mean(row.get(axes.y)), spread(row.get(axes.x)), spread(row.get(axes.y)))
        for name, row in table.items()
    ]
    return [point for point in found if known(point.x) and known(point.y)]


def _named(axes: Axes, ideals: dict[str, float]) -> tuple[tuple[str, float], tuple[str, float]]:
    """Both axes' headings and ideals; a cost or a bias whose ideal nobody named is best where it is least."""
    x, y = ((heading(name), ideals.get(name, float("-inf"))) for name in axes)
    return x, y


def headline(table: Table, axes: Axes | None, ideals: dict[str, float]) -> str:
    """The row that came nearest to no bias, and what it cost."""
    rows = [name for name in table if name != BASE]
    count = "One row" if len(rows) == 1 else f"{len(rows)} rows"
    if axes is None:
        return f"{count} beside the base model."
    ideal = ideals.get(axes.y, 0.0)
    means = {name: value for name in table if known(value := mean(table[name].get(axes.y)))}
    if BASE not in means or len(means) < 2:
        return f"{count}, set against each other on {heading(axes.y)} and {heading(axes.x).lower()}."
    best = min(means, key=lambda name: abs(means[name] - ideal))
    if best == BASE:
        return f"None of the rows brings {heading(axes.y)} nearer to its ideal."
    text = f"Of {count.lower()}, {best} comes nearest to a fair {heading(axes.y)}: it {moved(means[BASE], means[best])}"
    costs = [mean(table[name].get(axes.x)) for name in (BASE, best)]
    if known(costs[0]) and known(costs[1]):
        text += f"; {_lowered(heading(axes.x))} {moved(costs[0], costs[1])}"
    return text + "."


def _lowered(name: str) -> str:
    return name[:1].lower() + name[1:]
