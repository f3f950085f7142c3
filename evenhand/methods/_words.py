"""The tokens that a word can be in a text: with and without a space before it, with and without a capital."""

from collections.abc import Sequence

from evenhand.lm import LM

__all__ = ["forms", "single_tokens"]


def forms(lm: LM, word: str) -> list[list[int]]:
    """The tokens of " word", "word", " Word" and "Word", each way once."""
    capital = word[:1].upper() + word[1:]
    written = dict.fromkeys([f" {word}", word, f" {capital}", capital])
    return lm.tokenizer(list(written), add_special_tokens=False).input_ids


def single_tokens(lm: LM, words: Sequence[str]) -> dict[str, list[int]]:
    """For each word, those of its forms that are one token; it may have none."""
    return {word: [tokens[0] for tokens in forms(lm, word) if len(tokens) == 1] for word in words}
