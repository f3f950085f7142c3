"""The examples worth reading: the most biased ones, and those that changed most."""

from typing import NamedTuple

from evenhand.page.folder import PREFIX, Column, Frame
from evenhand.page.plain import known, number

MOST = 10
LONGEST = 400  # characters of an example's text


class Example(NamedTuple):
    """One line of a table and its numbers."""

    text: str
    about: str  # its group and condition, or the word it hints at
    numbers: list[tuple[str, list[str]]]  # a name and a text a state: before and after, or what was measured


def biased(tables: dict[str, Frame], lean: str) -> list[Example]:
    """The examples that lean most in the first state, the farthest first, with their numbers in every state."""
    states = [by_line(table) for table in tables.values()]
    if not states or any(lean not in table for table in states):
        return []
    first = states[0]
    size = first[lean].abs()
    top = size[size > 0].sort_values(ascending=False, kind="stable").index[:MOST]
    words = [c for c in first.columns if str(c).startswith(PREFIX) and c != lean]
    states = [table for table in states if top.isin(table.index).all()]
    return [_example([table.loc[line] for table in states], [lean, *words]) for line in top]


def changed(tables: dict[str, Frame]) -> list[Example]:
    """The examples whose numbers moved most between before and after, the largest move first."""
    if not {"before", "after"} <= tables.keys():
        return []
    before, after = (by_line(_per_token(tables[state])) for state in ("before", "after"))
    columns = [c for c in before.columns if str(c).startswith(PREFIX) or c == "nll a token"]
    columns = [c for c in columns if c in after.columns]
    shared = before.index.intersection(after.index, sort=False)
    moves = (after.loc[shared, columns] - before.loc[shared, columns]).abs().sum(axis=1)
    top = moves.sort_values(ascending=False, kind="stable").index[:MOST]
    return [_example([before.loc[line], after.loc[line]], columns) for line in top if moves[line] > 0]


def by_line(table: Frame) -> Frame:
    """The table by id, and by place among the lines of that id: an example may fill several."""
    place = table.groupby("id").cumcount()
    return table.set_index([table["id"].rename("line"), place.rename("place")])


def _per_token(table: Frame) -> Frame:
    if not {"nll", "tokens"} <= set(table.columns):
        return table
    # A long text must not count as changed only because it is long.
    return table.assign(**{"nll a token": table["nll"] / table["tokens"].clip(lower=1)})


def _example(lines: list[Column], columns: list[str]) -> Example:
    """`lines` holds the same line of the table in each state."""
    first = lines[0]
    text = str(first.get("text", first["id"]))
    shown = [c for c in columns if all(known(float(line[c])) for line in lines)]
    return Example(
        text=text if len(text) <= LONGEST else text[:LONGEST] + "…",
        about=_about(first),
        numbers=[(_label(c), [number(float(line[c]), 3) for line in lines]) for c in shown],
    )


def _label(column: str) -> str:
    return column.removeprefix(PREFIX).replace("_", " ")


def _about(line: Column) -> str:
    if "hint" in line:
        return f"hint: {line['hint']}"
    parts = [line.get("group"), line.get("condition")]
    return ", ".join(dict.fromkeys(part for part in parts if isinstance(part, str) and part))
