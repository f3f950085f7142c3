"""Scores of whole sentences, causal and masked: what StereoSet and CrowS-Pairs share."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evenhand.lm import LM
from evenhand.run import Run
from evenhand.scoring import Item, masked_logprobs, token_logprobs

__all__ = ["Masked", "Tokens", "causal_groups", "encoded", "masked_groups", "masked_items", "sentence_items"]

Masked = tuple[list[int], int, int]
"""Token ids with a mask among them, the place that is read, and the token looked for there."""


class Tokens(NamedTuple):
    """An encoded text, and where in it the tokens that are scored stand."""

    ids: list[int]
    places: list[int]


def sentence_items(lm: LM, sentence: str, split_start: bool) -> list[Item]:
    """What to score for every token of a sentence to be read after the start token.

    `split_start` is how the published scorers read it: the first token after the start token alone, the others without
    the start token. A prefix stands before all tokens either way, else it would not be read."""
    context, tokens = lm.split("", sentence)
    if lm.prefix or not split_start:
        return [(context, tokens)]
    return [(context, tokens[:1]), *([(tokens[:1], tokens[1:])] if len(tokens) > 1 else [])]


def causal_groups(lm: LM, groups: Sequence[Sequence[Item]], run: Run, what: str) -> list[np.ndarray]:
    """The log-probabilities of the tokens of all items of a group, one after the other."""
    found = iter(token_logprobs(lm, [item for group in groups for item in group], run, what))
    return [np.concatenate(list(itertools.islice(found, len(group)))) for group in groups]


def encoded(lm: LM, text: str, begin: int = 0) -> Tokens:
    """A text as a masked model reads it; scored from a character on, without prefix and special tokens."""
    whole = lm.tokenizer(lm.prefix + text, return_offsets_mapping=True)
    # A space at the end of what stands before belongs to the token that follows.
    first = len((lm.prefix + text[:begin]).rstrip(" "))
    # A special token spans no characters, so it ends nowhere.
    places = [place for place, (_, end) in enumerate(whole["offset_mapping"]) if end > first]
    return Tokens(whole["input_ids"], places)


def masked_items(lm: LM, ids: list[int], places: Sequence[int]) -> list[Masked]:
    """Each place masked once, everything else in sight."""
    mask = lm.tokenizer.mask_token_id
    return [([*ids[:place], mask, *ids[place + 1 :]], place, ids[place]) for place in places]


def masked_groups(lm: LM, groups: Sequence[Sequence[Masked]], run: Run, what: str) -> list[np.ndarray]:
    """The log-probabilities of the items of each group."""
    found = masked_logprobs(lm, [item for group in groups for item in group], run, what)
    return np.split(found, np.cumsum([len(group) for group in groups])[:-1])
