"""The five kinds of row. What a dataset is, is which of these it gives."""

from dataclasses import dataclass

__all__ = ["KINDS", "Choice", "Labelled", "Pair", "Prompt", "Row", "Text"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What every row has."""

    id: str
    axis: str = ""
    """The social axis it belongs to (gender, race, ...)."""
    group: str = ""
    """The part of the dataset it is reported under (a scale, a domain, a bias type)."""
    unit: str = ""
    """What it is drawn together with in a bootstrap (StereoSet's term, BBQ's template); empty: drawn alone."""
    condition: str = ""
    """What distinguishes rows inside a group (ambiguous or not, for or against a stereotype, one of four sets)."""


@dataclass(frozen=True, kw_only=True)
class Text(Row):
    """Ordinary text."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Pair(Row):
    """Two texts, the first the more stereotyped."""

    more: str
    less: str


@dataclass(frozen=True, kw_only=True)
class Choice(Row):
    """A context with options, the right one and the stereotyped one (-1: there is none)."""

    context: str
    options: tuple[str, ...]
    answer: int
    stereotyped: int
    other: int = -1
    """The option that takes no side: BBQ's unknown, StereoSet's unrelated."""


@dataclass(frozen=True, kw_only=True)
class Prompt(Row):
    """The beginning of a text and the words compared as its next token."""

    text: str
    words: tuple[str, ...]
    subject: str = ""
    """Whom the prompt is about (a profession)."""
    hint: str = ""
    """The word among `words` that the prompt itself gives away, if any."""


@dataclass(frozen=True, kw_only=True)
class Labelled(Text):
    """A text with its labels; who only wants texts may read it as one."""

    labels: tuple[str, ...]


KINDS: dict[str, type[Row]] = {kind.__name__: kind for kind in (Text, Pair, Choice, Prompt, Labelled)}
