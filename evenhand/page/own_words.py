"""What the model wrote before and after, side by side, with the gendered words marked (CrAWD's figure 3)."""

import re
from typing import NamedTuple

from markupsafe import Markup, escape

from evenhand.page.examples import by_line
from evenhand.page.folder import Column, Frame, RunFolder
from evenhand.page.plain import number
from evenhand.page.story import metric_name
from evenhand.page.svg import clean

SHOWN, FOLDED, WORSE = 8, 40, 2  # rows on the page, behind the fold, and among the first those that got worse
LONGEST = 600  # characters of a text
COLUMNS = ("id", "text", "continuation", "words", "hit")
UNCOUNTED = ("himself", "herself")  # gendered, but not among the 28 words the score counts


class Telling(NamedTuple):
    """One beginning and what the model made of it in each state."""

    prompt: str
    before: Markup
    after: Markup
    worse: bool


class OwnWords(NamedTuple):
    """One metric's beginnings."""

    metric: str
    about: str
    shown: list[Telling]
    folded: list[Telling]


def own_words(run: RunFolder) -> list[OwnWords]:
    """Every metric that keeps what the model wrote in both states."""
    names = dict.fromkeys(name for scores in run.scores.values() for name in scores)
    parts = [_part(name, run.tables.get(name, {})) for name in names if name.startswith("gas")]
    return [part for part in parts if part is not None]


def _part(name: str, tables: dict[str, Frame]) -> OwnWords | None:
    if not {"before", "after"} <= tables.keys() or not all(set(COLUMNS) <= set(t.columns) for t in tables.values()):
        return None
    pairs = paired(tables["before"], tables["after"])
    first, rest = chosen(pairs)
    if first.empty:
        return None
    shown, folded = ([_telling(line) for _, line in pairs.loc[lines].iterrows()] for lines in (first, rest))
    return OwnWords(metric_name(name), _about(pairs, sum(one.worse for one in shown), len(shown)), shown, folded)


def paired(before: Frame, after: Frame) -> Frame:
    """The lines both states have, with `before` and `after` behind each column's name."""
    return by_line(before)[list(COLUMNS)].join(
        by_line(after)[list(COLUMNS)], lsuffix="_before", rsuffix="_after", how="inner"
    )


def chosen(pairs: Frame) -> tuple[Column, Column]:
    """The lines to show and the next ones, of those whose text changed: a lost gender first, a few gained ones last.

    Among equals those come first whose number of different gendered words changed most."""
    moved = pairs[pairs["continuation_before"] != pairs["continuation_after"]]
    lost = moved["hit_before"] - moved["hit_after"]
    fewer = _distinct(moved["words_before"]) - _distinct(moved["words_after"])
    order = moved.assign(lost=lost, fewer=fewer)
    worse = order[lost < 0].sort_values("fewer", kind="stable").index
    others = order[lost >= 0].sort_values(["lost", "fewer"], ascending=False, kind="stable").index
    room = SHOWN - len(worse[:WORSE])
    return others[:room].append(worse[:WORSE]), others[room:].append(worse[WORSE:])[:FOLDED]


def _distinct(words: Column) -> Column:
    return words.map(lambda listed: len(str(listed).split(", ")) if listed else 0).astype(int)


def _about(pairs: Frame, worse: int, shown: int) -> str:
    before, after = (int((pairs[f"hit_{state}"] > 0).sum()) for state in ("before", "after"))
    lost, gained = (
        int(((pairs[f"hit_{one}"] > 0) & (pairs[f"hit_{other}"] == 0)).sum())
        for one, other in (("before", "after"), ("after", "before"))
    )
    what = f"Of {number(len(pairs), 0)} continuations, {before} named a gender before and {after} after"
    how = f"{lost} lost it and {gained} gained it"
    last = f", the last {'one' if worse == 1 else worse} for the worse" if worse else ""
    return f"{what}: {how}. Below are {shown} of those that changed most{last}; they are not typical."


def _telling(line: Column) -> Telling:
    texts = {
        state: marked(str(line[f"continuation_{state}"]), str(line[f"words_{state}"])) for state in ("before", "after")
    }
    return Telling(
        clean(line["text_before"], LONGEST), texts["before"], texts["after"], line["hit_after"] > line["hit_before"]
    )


def marked(text: str, words: str) -> Markup:
    """A text with the words the metric found in it marked, and himself and herself; all else is escaped."""
    listed = [re.escape(word) for word in (*words.split(", "), *UNCOUNTED) if word]
    pieces = re.split(rf"\b({'|'.join(listed)})\b", clean(text, LONGEST), flags=re.IGNORECASE)
    # Every second piece is what the group of the pattern matched.
    return Markup("").join(
        Markup("<mark>{}</mark>").format(piece) if n % 2 else escape(piece) for n, piece in enumerate(pieces)
    )
