"""The tokens a method took for associated with an attribute, as chips."""

from typing import NamedTuple

from evenhand.page.folder import Column, Frame
from evenhand.page.plain import known, listing, number
from evenhand.page.svg import clean

SHOWN = 40  # chips of one word before the fold
LEVELS = 5  # of size and shade
OPEN = ("gender", "age")  # the other attributes' tokens can be insults
COLUMNS = ("attribute", "token", "word", "strength")


class Chip(NamedTuple):
    """One token."""

    text: str
    strength: str
    level: int  # from 1, hardly associated, to LEVELS


class Side(NamedTuple):
    """The tokens nearest to one reference word."""

    word: str
    shown: list[Chip]
    folded: list[Chip]


class Attribute(NamedTuple):
    """One attribute's tokens by reference word."""

    name: str
    about: str
    sides: list[Side]


class Associated(NamedTuple):
    """All attributes: those that may be read by anybody, and those behind a fold."""

    open: list[Attribute]
    folded: list[Attribute]
    hidden: int  # tokens behind the fold
    names: str  # the attributes behind it


def associated(table: Frame | None) -> Associated | None:
    """The table of associated tokens, strongest first; nothing where there is no table."""
    if table is None or not set(COLUMNS) <= set(table.columns):
        return None
    found = [_attribute(str(name), lines) for name, lines in table.groupby("attribute", sort=False)]
    folded = [part for part in found if part.name not in OPEN]
    hidden = sum(len(side.shown) + len(side.folded) for part in folded for side in part.sides)
    names = listing([part.name for part in folded]) if folded else ""
    return Associated([part for part in found if part.name in OPEN], folded, hidden, names)


def _attribute(name: str, lines: Frame) -> Attribute:
    sides = [_side(str(word), part) for word, part in lines.groupby("word", sort=False)]
    words = listing([side.word for side in sides])
    count = sum(len(side.shown) + len(side.folded) for side in sides)
    tokens = "one token" if count == 1 else f"{number(count, 0)} tokens"
    return Attribute(clean(name), f"{tokens}, found from {words} alone in the model's own embedding space", sides)


def _side(word: str, lines: Frame) -> Side:
    strongest = lines.sort_values("strength", ascending=False, kind="stable")
    chips: dict[str, Chip] = {}
    for token, strength in zip(strongest["token"], strongest["strength"], strict=True):
        # A token that begins a word and one that goes on with it differ in a space that nobody sees.
        text = clean(token, 30)
        if text.strip("\ufffd") and text not in chips:  # a piece of a character is no word
            chips[text] = Chip(text, number(float(strength), 2), _level(float(strength)))
    found = list(chips.values())
    return Side(clean(word), found[:SHOWN], found[SHOWN:])


def _level(strength: Column) -> int:
    share = min(max(strength, 0.0), 1.0) if known(strength) else 0.0
    return 1 + min(int(share * LEVELS), LEVELS - 1)
