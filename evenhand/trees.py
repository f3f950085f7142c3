"""Packing token sequences so that what they share is run once: sequences with a common beginning become one tree.

A tree is one row of a batch: its tokens, their depths as positions, and a mask that lets a token see its ancestors
only. s tokens of a tree."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["Place", "Tree", "batches", "plant", "sees"]

LARGEST = 128
LEAST_SHARED = 1
OPEN = 2**31


class Place(NamedTuple):
    """Where each token of a sequence stands: the tree's number and the tokens' places in it."""

    tree: int
    path: np.ndarray


@dataclass
class Tree:
    """Token sequences that begin alike, branch after branch: what follows from a token stands right behind it."""

    tokens: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """For each token the place of the last one that follows from it."""
    path: list[int] = field(default_factory=list)
    """Where the sequence added last stands."""

    def add(self, sequence: Sequence[int], shared: int) -> np.ndarray:
        """Grow the branch of a sequence that shares its beginning with the one added before."""
        for place in self.path[shared:]:
            self.ends[place] = len(self.tokens) - 1
        new = range(len(self.tokens), len(self.tokens) + len(sequence) - shared)
        self.path = [*self.path[:shared], *new]
        self.tokens += sequence[shared:]
        self.depths += range(shared, len(sequence))
        self.ends += [OPEN] * len(new)
        return np.array(self.path)

    @property
    def is_chain(self) -> bool:
        """Whether every sequence is the beginning of the longest, so that an ordinary causal mask is right."""
        return self.depths[-1] == len(self.depths) - 1


def sees(trees: Sequence[Tree], size: int, device: torch.device | None = None) -> Tensor:
    """Which tokens each token may look at: those before it from which it follows. [n, size, size]"""
    ends = torch.tensor([tree.ends + [OPEN] * (size - len(tree.ends)) for tree in trees], device=device)
    place = torch.arange(size, device=device)
    return (place[None, :] <= place[:, None]) & (place[:, None] <= ends[:, None, :])


def plant(sequences: Sequence[tuple[int, ...]], share: bool) -> tuple[list[Tree], list[Place]]:
    """Distinct sequences as trees; without sharing, each is a tree of its own. The places are in the given order."""
    trees: list[Tree] = []
    places: list[Place] = [Place(0, np.empty(0, dtype=int))] * len(sequences)
    before: tuple[int, ...] = ()
    room = 0
    for number in sorted(range(len(sequences)), key=lambda row: sequences[row]):
        sequence = sequences[number]
        same = common_length(before, sequence) if share and trees else 0
        if same < LEAST_SHARED or len(trees[-1].tokens) + len(sequence) - same > room:
            trees.append(Tree())
            same = 0
            # A tree much larger than its sequences would pay more for attention than it saves.
            room = max(LARGEST, 2 * len(sequence))
        places[number] = Place(len(trees) - 1, trees[-1].add(sequence, same))
        before = sequence
    return trees, places


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences share from the start."""
    limit = min(len(one), len(other))
    return next((same for same in range(limit) if one[same] != other[same]), limit)


def batches(trees: list[Tree], tokens: int) -> list[list[int]]:
    """Numbers of trees of about one size together, at most `tokens` a batch with what pads them; chains apart, for they
    need no mask. The largest come first, so that a batch that does not fit fails at once."""
    found: list[list[int]] = []
    for number in sorted(range(len(trees)), key=lambda each: (trees[each].is_chain, -len(trees[each].tokens))):
        first = trees[found[-1][0]] if found else None
        fits = first is not None and (len(found[-1]) + 1) * len(first.tokens) <= tokens
        if first is not None and fits and first.is_chain == trees[number].is_chain:
            found[-1].append(number)
        else:
            found.append([number])
    return found
