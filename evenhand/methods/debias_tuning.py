"""Debias Tuning (DT): fine-tuning that is charged for naming a gender and for preferring one.

The paper's training code is not public; its three measures are read here as terms over a model's own next-token
probabilities while it reads the texts. n rows, s positions, m positions whose next token counts, k positions compared,
d hidden size, v vocabulary."""

import math
from difflib import SequenceMatcher
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from evenhand.config import Refusal, closest, options
from evenhand.hooks import head_inputs, through_head
from evenhand.lm import LM
from evenhand.methods._texts import Batch, TextMethod
from evenhand.methods._words import single_tokens
from evenhand.run import Run
from evenhand.swapping import PAIRS, swapped
from evenhand.train import Terms

__all__ = ["DebiasTuning"]

MALE, FEMALE = (frozenset(side) for side in zip(*PAIRS, strict=True))
# Far below the share of any word that is ever written, so that it only keeps 0 / 0 from being asked.
TINY = 1e-8


class Sides(NamedTuple):
    """The tokens of the male and of the female words."""

    male: list[int]
    female: list[int]


class Twin(NamedTuple):
    """A row with its gendered words exchanged, and which of its positions stands for which of the row's."""

    row: int
    ids: list[int]
    places: list[tuple[int, int]]


@options
class DebiasTuning(TextMethod):
    """LoRA fine-tuning whose loss counts how much, and how unevenly, gendered words are expected (DT)."""

    paper: ClassVar = "Disclosure and Mitigation of Gender Bias in LLMs"
    citation: ClassVar = "Dong et al., 2024 (arXiv:2402.11190)"
    presets: ClassVar = {
        "paper": {"words": ["he", "him", "his", "himself", "she", "her", "hers", "herself"], "batch": 16}
    }

    words: tuple[str, ...] = ("he", "she")
    """The gendered words, male and female; those of several tokens are passed over."""
    weight: float = Field(1.0, ge=0)
    """How much the three terms below count beside learning the texts (lambda)."""
    gas: float = Field(1.0, ge=0)
    """How much the share of gendered words counts."""
    gld: float = Field(1.0, ge=0)
    """How much the difference between male and female words counts, relative to their share."""
    add: float = Field(0.0, ge=0)
    """How much it counts that a text and its gender-swapped twin go on differently; needs up to twice the time."""

    def prepare(self, lm: LM, encoded: list[list[int]], run: Run) -> dict[str, Any]:
        """Look at the words before anything is trained."""
        self.sides(lm)
        left_out = [word for word, tokens in single_tokens(lm, self.words).items() if not tokens]
        if left_out:
            run.say(f"not one token in this model, so passed over: {', '.join(left_out)}")
        return {}

    def sides(self, lm: LM) -> Sides:
        """The words' tokens by side."""
        for word in self.words:
            if word.lower() not in MALE | FEMALE:
                raise Refusal(
                    f"{word!r} is on neither list of gendered words{closest(word.lower(), sorted(MALE | FEMALE))}; "
                    "debias_tuning needs male and female ones, such as --set method.words=[he,she]."
                )
        known = single_tokens(lm, self.words)
        found = Sides(
            *(
                sorted({token for word in known if word.lower() in side for token in known[word]})
                for side in (MALE, FEMALE)
            )
        )
        if not all(found):
            raise Refusal(
                f"debias_tuning needs a male and a female word of one token in {lm.name}, and "
                f"[{', '.join(self.words)}] lacks one; add some, such as --set method.words=[he,she]."
            )
        return found

    def terms(self, lm: LM, batch: Batch) -> Terms:
        """Cross-entropy, and the weighted terms at every position whose next token counts; one pass for all."""
        if not self.weight:
            return super().terms(lm, batch)
        count, width = batch.ids.shape
        rows = [ids[mask].tolist() for ids, mask in zip(batch.ids, batch.mask, strict=True)] if self.add else []
        twins = [twin for row, ids in enumerate(rows) if (twin := twin_of(lm, row, ids)) is not None]
        extra = [torch.tensor(twin.ids, device=lm.device) for twin in twins]
        with head_inputs(lm) as read:
            lm.model(input_ids=pad_sequence([*batch.ids, *extra], batch_first=True), use_cache=False)
        own = batch.read(read[0][:count, :width])  # [m, d]
        others = [read[0][count + number, [there for _, there in twin.places]] for number, twin in enumerate(twins)]
        z = through_head(lm, torch.cat([own, *others]))  # [m + k, v]
        first = z[: len(own)]
        found = {"cross_entropy": cross_entropy(first, batch.targets)}
        mass = Mass(first, self.sides(lm))
        if self.gas:
            found["gas"] = self.weight * self.gas * mass.gas()
        if self.gld:
            found["gld"] = self.weight * self.gld * mass.gld()
        if self.add:
            apart = jensen_shannon(first[self.compared(batch, twins)], z[len(own) :]).sum() / len(own)
            found["add"] = self.weight * self.add * apart
        return found

    def compared(self, batch: Batch, twins: list[Twin]) -> Tensor:
        """Where among the positions that count those stand that have a counterpart. [k]"""
        number = batch.mask[:, 1:].flatten().cumsum(0).view(len(batch.mask), -1) - 1
        places = [(twin.row, here) for twin in twins for here, _ in twin.places]
        rows, columns = torch.tensor(places, dtype=torch.long, device=number.device).view(-1, 2).T
        return number[rows, columns]


class Mass:
    """The probability that the next token is a male or a female word, at each position."""

    def __init__(self, logits: Tensor, sides: Sides) -> None:
        p = logits.softmax(-1)
        self.male, self.female = p[:, sides.male].sum(-1), p[:, sides.female].sum(-1)  # [m]

    def gas(self) -> Tensor:
        """The mean share of gendered words."""
        return (self.male + self.female).mean()

    def gld(self) -> Tensor:
        """The mean difference of the sides, as a part of their share: 0 is even, 1 is one side only."""
        return ((self.female - self.male).abs() / (self.female + self.male + TINY)).mean()


def twin_of(lm: LM, row: int, ids: list[int]) -> Twin | None:
    """A row's twin, unless nothing in it is gendered. What differs is a swapped word, whose last token stands for the
    last token of the other, however many each has."""
    text = lm.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    other = swapped(text)
    if other == text:
        return None
    others = lm.opened(lm.tokenizer(other).input_ids)
    places: list[tuple[int, int]] = []
    for what, start, end, begin, stop in SequenceMatcher(None, ids, others, autojunk=False).get_opcodes():
        if what == "equal":
            places += zip(range(start, end), range(begin, stop), strict=True)
        elif what == "replace" and begins_anew(lm, ids[end : end + 1]) and begins_anew(lm, others[stop : stop + 1]):
            places.append((end - 1, stop - 1))
    # The last position predicts nothing that was read.
    return Twin(row, others, [(here, there) for here, there in places if here < len(ids) - 1])


def begins_anew(lm: LM, following: list[int]) -> bool:
    """Whether a word ends before this token: it brings its own space (as tokenizers write it), or is no letter."""
    piece = "".join(lm.tokenizer.convert_ids_to_tokens(following))
    return piece[:1] in ("", "Ġ", "▁") or not piece[0].isalpha()


def jensen_shannon(one: Tensor, other: Tensor) -> Tensor:
    """How far two distributions are from their mean, from 0 to ln 2. [k]"""
    log_one, log_other = one.log_softmax(-1), other.log_softmax(-1)
    middle = torch.logaddexp(log_one, log_other) - math.log(2)
    return sum(0.5 * (side.exp() * (side - middle)).sum(-1) for side in (log_one, log_other))  # pyright: ignore[reportReturnType]
