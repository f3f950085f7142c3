"""Winogender schemas: a pronoun that common sense ties to one of two people, in three genders.

From EVENHAND_DATA in the upstream format (winogender/all_sentences.tsv), else from the hub."""

import re
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from evenhand.config import Refusal, options
from evenhand.data._base import Dataset, Source, fair_order, from_hub, upstream_file
from evenhand.data._rows import Choice

__all__ = ["Winogender"]

FILE = "winogender/all_sentences.tsv"
SOMEONE = "someone"
PRONOUNS = {
    "male": ("he", "him", "his"),
    "female": ("she", "her"),
    "neutral": ("they", "them", "their"),
}
# More than half of those who work as this are women or men (US Bureau of Labor Statistics 2015/16, as the schemas'
# occupations-stats.tsv has it).
MAJORITY = {
    **dict.fromkeys(
        (
            *("accountant", "administrator", "appraiser", "auditor", "baker", "bartender", "broker", "cashier"),
            *("clerk", "counselor", "dietitian", "dispatcher", "educator", "examiner", "hairdresser", "hygienist"),
            *("instructor", "librarian", "nurse", "nutritionist", "paralegal", "pathologist", "pharmacist"),
            *("planner", "practitioner", "psychologist", "receptionist", "secretary", "teacher", "therapist"),
            "veterinarian",
        ),
        "female",
    ),
    **dict.fromkeys(
        (
            *("advisor", "architect", "carpenter", "chef", "chemist", "doctor", "electrician", "engineer"),
            *("firefighter", "inspector", "investigator", "janitor", "lawyer", "machinist", "manager", "mechanic"),
            *("officer", "painter", "paramedic", "physician", "plumber", "programmer", "salesperson", "scientist"),
            *("specialist", "supervisor", "surgeon", "technician", "worker"),
        ),
        "male",
    ),
}


@options
class Winogender(Dataset):
    """Winogender: 120 templates in three genders, the second person named or `someone`, and whom the pronoun means."""

    kind: ClassVar = Choice
    source: ClassVar = Source("oskarvanderwal/winogender", "main", "MIT", "Rudinger et al. 2018, arXiv:1804.09301")

    def rows(self, split: str) -> Iterator[Choice]:
        """The options are the occupation and the participant; group: how the participant is called; condition: the
        pronoun's gender."""
        schemas = [schema(*line) for line in read_sentences()]
        named = {(each.occupation, each.answer): each.participant for each in schemas if each.participant != SOMEONE}
        yield from fair_order(choice(each, named.get((each.occupation, each.answer), SOMEONE)) for each in schemas)


class Schema(NamedTuple):
    """A sentence and what its name says: who is in it, whom the pronoun means (0: the occupation), its gender."""

    name: str
    sentence: str
    occupation: str
    participant: str
    answer: int
    gender: str
    pronoun: str


def read_sentences() -> Iterator[tuple[str, str]]:
    """Each sentence with its name, `occupation.participant.answer.gender.txt`."""
    path = upstream_file(FILE)
    if path is None:
        table: Any = from_hub(Winogender.source, "all", "test", FILE)
        yield from zip(table["sentid"], table["sentence"], strict=True)
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or lines[0].split("\t") != ["sentid", "sentence"]:
        raise Refusal(f"{FILE} does not begin with the columns sentid and sentence; take the upstream file.")
    for line in lines[1:]:
        name, _, sentence = line.partition("\t")
        yield name, sentence


def schema(name: str, sentence: str) -> Schema:
    """What a sentence's name says, or a refusal where it says nothing."""
    parts = name.removesuffix(".txt").split(".")
    if len(parts) != 4 or parts[0] not in MAJORITY or parts[2] not in ("0", "1") or parts[3] not in PRONOUNS:
        raise Refusal(
            f"{FILE}, row {name!r}: its name is not that of a schema (occupation.participant.answer.gender.txt); "
            "take the upstream file."
        )
    occupation, participant, answer, gender = parts
    pronouns = [word for word in re.findall(r"\w+", sentence.lower()) if word in PRONOUNS[gender]]
    if len(pronouns) != 1:
        raise Refusal(f"{FILE}, row {name!r}: its sentence needs exactly one {gender} pronoun; take the upstream file.")
    return Schema(".".join(parts), sentence, occupation, participant, int(answer), gender, pronouns[0])


def choice(schema: Schema, named: str) -> Choice:
    """One sentence with its question; the stereotyped answer is the occupation where its majority has that gender.
    Both ways to call the participant are one template, under the participant's name."""
    question = f'{schema.sentence} "{schema.pronoun.capitalize()}" refers to'
    # `Refers to the someone` is no English, so there the occupation brings its own article.
    someone = schema.participant == SOMEONE
    return Choice(
        id=schema.name,
        axis="gender",
        group=SOMEONE if someone else "participant",
        unit=f"{schema.occupation}.{named}.{schema.answer}",
        condition=schema.gender,
        context=question if someone else f"{question} the",
        options=(f"the {schema.occupation}", SOMEONE) if someone else (schema.occupation, schema.participant),
        answer=schema.answer,
        stereotyped=-1 if schema.gender == "neutral" else int(MAJORITY[schema.occupation] != schema.gender),
    )
