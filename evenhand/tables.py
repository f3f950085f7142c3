"""Results as text tables for a terminal."""

import io
import shutil
import sys
from collections.abc import Mapping
from typing import Any

import pandas as pd
from rich.box import Box
from rich.console import Console
from rich.table import Table

__all__ = ["attention_table", "ranking_table", "scores_table", "verdict_table"]

MARKS = {"improved": "+", "regressed": "-", "inconclusive": "~"}
COLOURS = {"improved": "green", "regressed": "red", "inconclusive": "dim"}
DASHES = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
NARROWEST = 100  # columns below which a table would be all line breaks
UNLIMITED = 10_000  # columns of a file or a pipe, where a line must stay one line
GROUPS = 20  # of a metric; the page has the rest


def table_of(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table with these headings; the columns in `right` hold numbers."""
    table = Table(box=DASHES, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=column in right)
    return table


def printed(table: Table) -> str:
    """The table as text: with colours and in the window's width on a terminal, plain elsewhere."""
    terminal = sys.stdout.isatty()
    width = max(shutil.get_terminal_size().columns, NARROWEST) if terminal else UNLIMITED
    page = io.StringIO()
    # Names come from data: a bracket in them is a bracket.
    console = Console(file=page, width=width, force_terminal=terminal, markup=False, emoji=False, highlight=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in page.getvalue().rstrip().splitlines())


def digits(value: float | None) -> str:
    """Four digits that count; a dash where nothing could be computed."""
    return "-" if value is None else f"{value:.4g}"


def with_interval(score: Mapping[str, Any]) -> str:
    """`0.1290 [0.1166, 0.1423]`."""
    return f"{digits(score['value'])} [{digits(score['low'])}, {digits(score['high'])}]"


def scores_table(
    scores: Mapping[str, Any], failed: Mapping[str, str] | None = None, skipped: Mapping[str, str] | None = None
) -> str:
    """Value, interval, ideal and n of each metric, its extras and groups below it; then what was not measured."""
    columns = ("metric", "value [95 %]", "ideal", "n", "what it says")
    table = table_of(*columns, right=columns[1:4])
    for name, score in scores.items():
        row = (name, with_interval(score), f"{score['ideal']:g}", str(score["n"]), score["headline"])
        table.add_row(*row, style="bold")
        for extra, value in score["extra"].items():
            table.add_row(f"  {extra}", digits(value), style="dim")
        _add_groups(table, score)
        table.add_section()
    unmeasured = [
        f"{what} {name}: {why}"
        for what, reasons in (("failed", failed), ("skipped", skipped))
        for name, why in (reasons or {}).items()
    ]
    return "\n".join([printed(table), *([""] if unmeasured else []), *unmeasured])


def _add_groups(table: Table, score: Mapping[str, Any]) -> None:
    """The groups in their order; of very many those farthest from the ideal."""

    def distance(name: str) -> float:
        value = score["groups"][name]["value"]
        return -1.0 if value is None else abs(value - score["ideal"])

    shown = set(sorted(score["groups"], key=distance, reverse=True)[:GROUPS])
    for name, part in score["groups"].items():
        if name in shown:
            table.add_row(f"  {name}", with_interval(part), "", str(part["n"]))
    if len(shown) < len(score["groups"]):
        table.add_row(f"  and {len(score['groups']) - len(shown)} groups nearer the ideal", style="dim")


def verdict_table(results: Mapping[str, Any]) -> str:
    """Before and after with intervals, the change and the verdict."""
    columns = ("metric", "ideal", "before [95 %]", "after [95 %]", "change [95 %]", "p", "verdict")
    table = table_of(*columns)
    for name, verdict in results["verdicts"].items():
        old, new = results["before"][name], results["after"][name]
        change = f"{verdict['delta']:+.4g} [{verdict['low']:+.4g}, {verdict['high']:+.4g}]"
        mark = f"{MARKS[verdict['verdict']]} {verdict['verdict']}"
        row = (name, f"{new['ideal']:g}", with_interval(old), with_interval(new), change, f"{verdict['p']:.3f}", mark)
        table.add_row(*row, style=COLOURS[verdict["verdict"]])
        for extra, value in old["extra"].items():
            table.add_row(f"  {extra}", "", digits(value), digits(new["extra"][extra]) if extra in new["extra"] else "")
    lines = [printed(table)]
    if "train" in results:
        train = results["train"]
        share = 100 * train["trainable"] / train["total"]
        count = f"{train['trainable']:,} of {train['total']:,} parameters"
        lines.append(f"trained {count} ({share:.2g} %) in {train['seconds']:.0f} s")
    return "\n".join(lines)


def ranking_table(ranking: pd.DataFrame) -> str:
    """The blocks by score, the best first."""
    shown = ranking.sort_values("score", ascending=False)
    columns = [str(column) for column in shown.columns if column != "chosen"]
    table = table_of(*columns, right=tuple(columns))
    for _, line in shown.iterrows():
        table.add_row(*(f"{int(line[c])}" if c == "block" else digits(line[c]) for c in columns))
    return printed(table)


def attention_table(looks: pd.DataFrame) -> str:
    """A line a token, a column for each word and state that was measured."""
    states = [state for state in ("before", "after") if len(looks[state].dropna())]
    words = list(dict.fromkeys(looks["word"]))
    heads = [f"{word} {state}".strip() if len(states) > 1 else word for word in words for state in states]
    table = table_of("token", *heads, right=tuple(heads))
    for _, part in looks.groupby("place"):
        cells = part.set_index("word")
        table.add_row(part["token"].iloc[0], *(f"{cells.at[word, state]:.3f}" for word in words for state in states))
    return printed(table)
