"""What datasets of running text share: splits made from the text itself, columns that must be there, plain spacing."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evenhand.config import Refusal
from evenhand.data.file import read_records

__all__ = ["letters", "number_in", "place", "placed_records", "require_columns", "spaced", "split_of"]

BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
AFTER = frozenset((*".,;:!?%)]}…”’", "..", "...", "''", "n't", "n’t"))
"""Tokens that stand right after the word before them; so do 's, 're and the like."""
CLITIC = re.compile(r"['’](?:s|re|ve|ll|d|m|S)")
BEFORE = frozenset((*"([{“‘", "``"))
"""Tokens that stand right before the word after them; so do signs of money."""
QUOTES = {"``": '"', "''": '"'}
NO_LETTER = re.compile(r"\W+")


def letters(text: str) -> str:
    """A text without case, spaces and signs: two texts that agree in it are the same sentence."""
    for long in BRACKETS if "B-" in text else ():
        text = text.replace(long, "")
    return NO_LETTER.sub("", text.lower())


def place(key: str) -> float:
    """A number from 0 to below 1 that is the same for a key on every machine."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=6).digest(), "big") / 2**48


def split_of(key: str) -> str:
    """The split a key belongs to: eight tenths train, one dev, one test."""
    where = place(key)
    return "train" if where < 0.8 else "dev" if where < 0.9 else "test"


def placed_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of a file, each with its place, which a refusal names."""
    try:
        for number, record in read_records(path):
            yield f"{path.name}, row {number}", record
    except UnicodeDecodeError:
        raise Refusal(f"{path.name} is not UTF-8 text; save it as UTF-8.") from None


def require_columns(where: str, columns: Iterable[Any], needed: Iterable[str], remedy: str) -> None:
    """Refuse a table that lacks a column."""
    found = [str(name) for name in columns]
    for name in needed:
        if name not in found:
            raise Refusal(f'{where}: no column "{name}" (columns: {", ".join(found)}); {remedy}.')


def number_in(record: Mapping[str, Any], name: str, where: str, remedy: str) -> float:
    """A cell that must hold a number; CSV files hold it as text."""
    try:
        return float(record[name])
    except (KeyError, TypeError, ValueError):
        raise Refusal(f"{where}: {name} is {record.get(name)!r} and no number; {remedy}.") from None


def spaced(text: str) -> str:
    """A sentence whose tokens stand apart (`she said , " no . "`) with its spaces where people write them."""
    tokens = [BRACKETS.get(token, token) for token in text.split()]
    written: list[str] = []
    opened: set[str] = set()
    joined = True
    for number, token in enumerate(tokens):
        if token.isalnum():
            written.append(token if joined else " " + token)
            joined = False
            continue
        before = tokens[number - 1] if number else ""
        after = tokens[number + 1] if number + 1 < len(tokens) else ""
        left, right = sides(token, before, after, opened)
        token = QUOTES.get(token, token)
        written.append(token if joined or left else " " + token)
        joined = right
    return "".join(written)


def sides(token: str, before: str, after: str, opened: set[str]) -> tuple[bool, bool]:
    """Whether a sign stands right after the one before it, and right before the one after it."""
    if token in AFTER or CLITIC.fullmatch(token):
        return True, False
    if token in BEFORE or token.endswith(("$", "£", "€")):
        return False, True
    if token == "#":
        return False, after.isdigit()
    if token in ("-", "/"):
        both = before[-1:].isalnum() and after[:1].isalnum()
        return both, both
    if token == "'" and (after == "s" or ("'" not in opened and before.endswith("s"))):
        # A genitive, cut in two or of a plural; a quotation hardly ever begins after an s.
        return True, after == "s"
    if token in ('"', "'"):
        return quote(token, after, opened)
    return False, False


def quote(token: str, after: str, opened: set[str]) -> tuple[bool, bool]:
    """Quotation marks open and close by turns; one at the very end always closes."""
    if token in opened or not after:
        opened.discard(token)
        return True, False
    opened.add(token)
    return False, True
