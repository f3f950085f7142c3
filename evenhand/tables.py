"""Results as text tables for a terminal."""

from typing import Any

import pandas as pd

__all__ = ["ranking_table", "scores_table", "verdict_table"]

MARKS = {"improved": "+", "regressed": "-", "inconclusive": "~"}


def lined_up(rows: list[list[str]]) -> str:
    """Columns of equal width, the first row a heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def with_interval(score: dict[str, Any]) -> str:
    """`0.1290 [0.1166, 0.1423]`."""
    return f"{score['value']:.4g} [{score['low']:.4g}, {score['high']:.4g}]"


def scores_table(scores: dict[str, Any]) -> str:
    """Value, interval, ideal and n of each metric, its groups and extras below it."""
    rows = [["metric", "value [95 %]", "ideal", "n", "what it says"]]
    for name, score in scores.items():
        rows.append([name, with_interval(score), f"{score['ideal']:g}", str(score["n"]), score["headline"]])
        for group, part in score["groups"].items():
            rows.append([f"  {group}", with_interval(part), "", str(part["n"]), ""])
        rows += [[f"  {extra}", f"{value:.4g}", "", "", ""] for extra, value in score["extra"].items()]
    return lined_up(rows)


def verdict_table(results: dict[str, Any]) -> str:
    """Before and after with intervals, the change and the verdict."""
    rows = [["metric", "ideal", "before [95 %]", "after [95 %]", "change [95 %]", "p", "verdict"]]
    for name, verdict in results["verdicts"].items():
        old, new = results["before"][name], results["after"][name]
        change = f"{verdict['delta']:+.4g} [{verdict['low']:+.4g}, {verdict['high']:+.4g}]"
        mark = f"{MARKS[verdict['verdict']]} {verdict['verdict']}"
        rows.append(
            [name, f"{new['ideal']:g}", with_interval(old), with_interval(new), change, f"{verdict['p']:.3f}", mark]
        )
        for extra, value in old["extra"].items():
            rows.append([f"  {extra}", "", f"{value:.4g}", f"{new['extra'][extra]:.4g}", "", "", ""])
    lines = [lined_up(rows)]
    if "train" in results:
        train = results["train"]
        share = 100 * train["trainable"] / train["total"]
        count = f"{train['trainable']:,} of {train['total']:,} parameters"
        lines.append(f"trained {count} ({share:.2g} %) in {train['seconds']:.0f} s")
    return "\n".join(lines)


def ranking_table(ranking: pd.DataFrame) -> str:
    """The blocks by score, the best first."""
    shown = ranking.sort_values("score", ascending=False)
    columns = [column for column in shown.columns if column != "chosen"]
    rows = [columns]
    for _, line in shown.iterrows():
        rows.append([f"{int(line[column])}" if column == "block" else f"{line[column]:.4g}" for column in columns])
    return lined_up(rows)
