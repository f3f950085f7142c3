"""Measuring Hate Speech: comments about a race, hateful or not as the annotators' joint score says.

From EVENHAND_DATA (measuring_hate_speech/ with one .parquet or .csv file in the hub's columns), else from the hub."""

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from evenhand.config import Refusal, options
from evenhand.data._base import Dataset, Source, fair_order, from_hub, upstream_file
from evenhand.data._corpora import letters, number_in, placed_records, require_columns, split_of
from evenhand.data._rows import Labelled

__all__ = ["HateSpeech"]

FOLDER = "measuring_hate_speech"
RACES = ("asian", "black", "latinx", "middle_eastern", "native_american", "pacific_islander", "white", "other")
NEEDED = ("comment_id", "text", "hate_speech_score", "target_race_black", "target_race_white")
HATE = 0.5
"""Above this score a comment is hate speech (the authors' own line)."""
REMEDY = "take ucberkeley-dlab/measuring-hate-speech from the hub"


@options
class HateSpeech(Dataset):
    """Comments about a race, hateful or not; the group is the race that most annotators saw targeted."""

    kind: ClassVar = Labelled
    source: ClassVar = Source(
        "ucberkeley-dlab/measuring-hate-speech", "main", "CC BY 4.0", "Kennedy et al. 2020; Sachdeva et al. 2022"
    )
    splits: ClassVar = ("train", "dev", "test")

    def rows(self, split: str) -> Iterator[Labelled]:
        """Each comment once, though every annotator has a line; equal texts are in one split and drawn together."""
        comments: dict[str, Comment] = {}
        for where, record in records():
            collect(comments, record, where)
        rows = (row(name, comment) for name, comment in comments.items())
        yield from fair_order(each for each in rows if each is not None and split_of(each.unit) == split)


class Comment(NamedTuple):
    """A comment and how many annotators saw each race targeted."""

    text: str
    score: float
    votes: dict[str, int]
    annotators: list[str]


def collect(comments: dict[str, Comment], record: dict[str, Any], where: str) -> None:
    """Count one annotator's line."""
    require_columns(where, record, NEEDED, REMEDY)
    if not record["text"] or not str(record["text"]).strip():
        raise Refusal(f"{where}: text is empty; {REMEDY}.")
    name = str(record["comment_id"])
    if name not in comments:
        score = number_in(record, "hate_speech_score", where, REMEDY)
        comments[name] = Comment(record["text"], score, dict.fromkeys(RACES, 0), [])
    comments[name].annotators.append(where)
    for race in RACES:
        comments[name].votes[race] += str(record.get(f"target_race_{race}")).lower() in ("true", "1", "1.0")


def row(name: str, comment: Comment) -> Labelled | None:
    """A comment under its race, or nothing where less than half of its annotators saw one race targeted."""
    race = max(RACES, key=lambda each: comment.votes[each])
    if comment.votes[race] * 2 < len(comment.annotators):
        return None
    return Labelled(
        id=f"comment-{name}",
        axis="race",
        group=race,
        unit=letters(comment.text) or name,
        text=comment.text,
        labels=("hateful",) if comment.score > HATE else ("non-hateful",),
    )


def records() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line with the place it is from, which a refusal names."""
    folder = upstream_file(FOLDER)
    paths = sorted(each for each in folder.iterdir() if each.suffix in (".parquet", ".csv")) if folder else []
    if paths:
        yield from placed_records(paths[0])
        return
    table: Any = from_hub(HateSpeech.source, None, "train", f"{FOLDER}/measuring-hate-speech.parquet")
    for number, record in enumerate(table, 1):
        yield f"{HateSpeech.source.hub}, row {number}", record
