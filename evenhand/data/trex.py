"""T-REx as LAMA selected it (Elsahar et al. 2018, Petroni et al. 2019): facts of 41 relations, sentences our own."""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple, cast

from evenhand.config import Refusal, options
from evenhand.data._base import Dataset, Source, fair_order, from_hub, upstream_file
from evenhand.data._rows import Labelled
from evenhand.data.file import read_json_lines

__all__ = ["TREx"]

FOLDER = "trex/trex_lms_vocab"
BLANK = "<extra_id_0>"
# Wikidata's number of a relation: what it is called, and a sentence whose blank is the object.
RELATIONS = {
    "P1001": ("jurisdiction", "{subject} has its jurisdiction in {blank}."),
    "P101": ("field of work", "{subject} works in the field of {blank}."),
    "P103": ("native language", "The first language of {subject} is {blank}."),
    "P106": ("occupation", "By profession, {subject} is a {blank}."),
    "P108": ("employer", "{subject} is employed by {blank}."),
    "P127": ("owner", "The owner of {subject} is {blank}."),
    "P1303": ("instrument", "The instrument that {subject} plays is the {blank}."),
    "P131": ("administrative place", "{subject} lies within {blank}."),
    "P136": ("genre", "The genre of {subject} is {blank}."),
    "P1376": ("capital of", "{subject} is the capital city of {blank}."),
    "P138": ("named after", "{subject} got its name from {blank}."),
    "P140": ("religion", "The religion of {subject} is {blank}."),
    "P1412": ("language spoken", "The language that {subject} used is {blank}."),
    "P159": ("headquarters", "The main office of {subject} is in {blank}."),
    "P17": ("country", "The country in which {subject} is found is {blank}."),
    "P176": ("manufacturer", "The maker of {subject} is {blank}."),
    "P178": ("developer", "The developer of {subject} is {blank}."),
    "P19": ("place of birth", "The birthplace of {subject} is {blank}."),
    "P190": ("twin city", "{subject} is a twin city of {blank}."),
    "P20": ("place of death", "The place where {subject} died is {blank}."),
    "P264": ("record label", "The record label of {subject} is {blank}."),
    "P27": ("citizenship", "{subject} holds the citizenship of {blank}."),
    "P276": ("location", "The place where {subject} can be found is {blank}."),
    "P279": ("subclass", "{subject} is a kind of {blank}."),
    "P30": ("continent", "The continent on which {subject} lies is {blank}."),
    "P31": ("instance", "{subject} is an example of a {blank}."),
    "P36": ("capital", "The capital of {subject} is {blank}."),
    "P361": ("part of", "{subject} belongs to {blank} as one of its parts."),
    "P364": ("original language", "The language in which {subject} was first made is {blank}."),
    "P37": ("official language", "An official language of {subject} is {blank}."),
    "P39": ("position held", "The office that {subject} held is that of {blank}."),
    "P407": ("language of a work", "The language of {subject} is {blank}."),
    "P413": ("playing position", "The position in which {subject} plays is {blank}."),
    "P449": ("broadcaster", "The network that first showed {subject} is {blank}."),
    "P463": ("membership", "{subject} is one of the members of {blank}."),
    "P47": ("border", "{subject} has a common border with {blank}."),
    "P495": ("country of origin", "The country that {subject} comes from is {blank}."),
    "P527": ("consists of", "One of the things that {subject} consists of is {blank}."),
    "P530": ("diplomatic relation", "{subject} keeps diplomatic relations with {blank}."),
    "P740": ("place of formation", "The place where {subject} was founded is {blank}."),
    "P937": ("place of work", "The city in which {subject} used to work is {blank}."),
}


class Fact(NamedTuple):
    """What a subject and an object have to do with each other."""

    relation: str
    subject: str
    object: str


@options
class TREx(Dataset):
    """Facts as sentences with a blank: one row a subject and relation, every object on file is an accepted answer."""

    kind: ClassVar = Labelled
    source: ClassVar = Source(
        "facebook/lama",
        "refs/convert/parquet",
        "CC BY 4.0 (hub), MIT (pararel)",
        "Elsahar et al. 2018; Petroni et al. 2019",
    )

    def rows(self, split: str) -> Iterator[Labelled]:
        """The facts of all relations, those about one subject drawn together."""
        answers: dict[tuple[str, str], dict[str, None]] = {}
        for fact in local_facts() if upstream_file(FOLDER) else hub_facts():
            answers.setdefault((fact.relation, fact.subject), {})[fact.object] = None
        yield from fair_order(
            row(relation, subject, tuple(objects)) for (relation, subject), objects in answers.items()
        )


def row(relation: str, subject: str, objects: tuple[str, ...]) -> Labelled:
    """One question, its group the relation."""
    name, sentence = RELATIONS[relation]
    text = sentence.format(subject=subject, blank=BLANK)
    return Labelled(id=f"{relation}-{subject}", group=name, unit=subject, text=text, labels=objects)


def local_facts() -> Iterator[Fact]:
    """One file a relation, as pararel has them."""
    for relation in RELATIONS:
        path = upstream_file(f"{FOLDER}/{relation}.jsonl")
        if path is None:
            continue
        for number, record in read_json_lines(path):
            yield fact(relation, record, f"{path.name}, row {number}")


def hub_facts() -> Iterator[Fact]:
    """The same facts from the hub, where each stands once for every sentence it was found in."""
    table = from_hub(TREx.source, "trex", "train", f"{FOLDER}/P19.jsonl")
    columns = table.select_columns(["predicate_id", "sub_label", "obj_label"])
    for number, record in enumerate(cast(Iterable[dict[str, Any]], columns), 1):
        if record["predicate_id"] in RELATIONS:
            yield fact(record["predicate_id"], record, f"{TREx.source.hub}, row {number}")


def fact(relation: str, record: dict[str, Any], where: str) -> Fact:
    """A record as a fact, or a refusal that names it."""
    names = [record.get(column) for column in ("sub_label", "obj_label")]
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise Refusal(
            f"{where}: no sub_label and obj_label (columns: {', '.join(record)}); take the file from pararel's "
            "data/trex_lms_vocab."
        )
    return Fact(relation, *map(str, names))
