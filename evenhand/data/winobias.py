"""WinoBias: sentences about two occupations with a pronoun of the stereotypical or of the other gender.

From EVENHAND_DATA in the upstream format (winobias/pro_stereotyped_type1.txt.test, ...), else from the hub."""

import re
from collections.abc import Iterator
from typing import Any, ClassVar

from evenhand.config import Refusal, options
from evenhand.data._base import Dataset, Source, fair_order, from_hub, upstream_file
from evenhand.data._rows import Choice

__all__ = ["WinoBias"]

HUB_SPLITS = {"dev": "validation", "test": "test"}
OCCUPATIONS = (
    *("accountant", "analyst", "assistant", "attendant", "auditor", "baker", "carpenter", "cashier", "CEO", "chief"),
    *("cleaner", "clerk", "construction worker", "cook", "counselor", "designer", "developer", "driver", "editor"),
    *("farmer", "guard", "hairdresser", "housekeeper", "janitor", "laborer", "lawyer", "librarian", "manager"),
    *("mechanic", "mover", "nurse", "physician", "receptionist", "salesperson", "secretary", "sheriff", "supervisor"),
    *("tailor", "teacher", "writer"),
)
ANY_OCCUPATION = re.compile(rf"\b({'|'.join(OCCUPATIONS)})s?\b", re.IGNORECASE)
SPELLING = {name.lower(): name for name in OCCUPATIONS}
PRONOUN = re.compile(r"(?:he|she|him|her|his|hers|himself|herself)", re.IGNORECASE)


@options
class WinoBias(Dataset):
    """WinoBias: which of two occupations a pronoun means (type 1: by world knowledge, type 2: by syntax)."""

    kind: ClassVar = Choice
    source: ClassVar = Source("uclanlp/wino_bias", "main", "MIT", "Zhao et al. 2018, arXiv:1804.06876")
    splits: ClassVar = ("dev", "test")

    def rows(self, split: str) -> Iterator[Choice]:
        """The options are the two occupations in the order they are named; group: the type; condition: pro or anti."""
        yield from fair_order(
            choice(line, f"{kind}-{split}-{number}", kind, condition)
            for kind in ("type1", "type2")
            for condition in ("pro", "anti")
            for number, line in enumerate(read_lines(kind, condition, split), 1)
        )


def read_lines(kind: str, condition: str, split: str) -> Iterator[str]:
    """The sentences with the mention and its pronouns in brackets, without their numbers."""
    file = f"winobias/{condition}_stereotyped_{kind}.txt.{split}"
    path = upstream_file(file)
    if path is None:
        for row in from_hub(WinoBias.source, f"{kind}_{condition}", HUB_SPLITS[split], file):
            yield bracketed(row)  # pyright: ignore[reportArgumentType]
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        start, _, sentence = line.strip().partition(" ")
        if start.isdigit() and sentence:
            yield sentence
        elif line.strip():
            raise Refusal(f"{file}, row {number}: it does not begin with a number; take the upstream file.")


def bracketed(row: dict[str, Any]) -> str:
    """A row of the hub (tokens, and the first and last token of each mention) as the upstream files write it."""
    tokens = list(row["tokens"])
    places = [int(place) for place in row["coreference_clusters"]]
    for first, last in zip(places[::2], places[1::2], strict=True):
        tokens[first], tokens[last] = f"[{tokens[first]}", tokens[last] if first != last else f"[{tokens[last]}"
        tokens[last] += "]"
    return " ".join(tokens)


def choice(line: str, name: str, kind: str, condition: str) -> Choice:
    """One sentence with its question; the stereotyped answer is the right one in a pro sentence, else the other."""
    mentions = [mention.strip() for mention in re.findall(r"\[([^\]]*)\]", line)]
    pronouns = [mention for mention in mentions if PRONOUN.fullmatch(mention)]
    meant = [found.lower() for mention in mentions for found in ANY_OCCUPATION.findall(mention)]
    sentence = plain(line)
    # A third occupation can stand at the end; the two that the pronoun could mean come first.
    people = list(dict.fromkeys(found.lower() for found in ANY_OCCUPATION.findall(sentence)))[:2]
    if not pronouns or len(people) < 2 or len(set(meant)) != 1 or meant[0] not in people:
        raise Refusal(
            f"winobias, sentence {name} ({condition}): it needs two known occupations, one of them in brackets, and a "
            "pronoun in brackets; take the upstream file."
        )
    answer = people.index(meant[0])
    return Choice(
        id=f"{name}-{condition}",
        axis="gender",
        group=kind,
        # Where a line's two versions are about other people, they are no pair.
        unit="-".join((name, *sorted(people))),
        condition=condition,
        context=f'{sentence} "{pronouns[0].capitalize()}" refers to the',
        options=tuple(SPELLING[person] for person in people),
        answer=answer,
        stereotyped=answer if condition == "pro" else 1 - answer,
    )


def plain(line: str) -> str:
    """A sentence as one would write it: no brackets, no doubled article, no space before a sign."""
    text = " ".join(re.sub(r"[\[\]]", "", line).split())
    return re.sub(r" (?=[.,;:!?]|'s\b|n't\b)", "", re.sub(r"\b(the) the\b", r"\1", text, flags=re.IGNORECASE))
