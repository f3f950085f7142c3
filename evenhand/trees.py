"""Packing token sequences so that what they share is run once: sequences with a common beginning become one tree.

A tree is one row of a batch: its tokens, their depths as positions, and a mask that lets a token see its ancestors
only. s tokens of a tree."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

__all__ = ["Place", "Tree", "batches", "plant"]

LARGEST = 128
LEAST_SHARED = 2


class Place(NamedTuple):
    """Where each token of a sequence stands: the tree's number and the tokens' places in it."""

    tree: int
    path: np.ndarray


@dataclass
class Tree:
    """Token sequences that begin alike."""

    tokens: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    branches: list[tuple[np.ndarray, int]] = field(default_factory=list)
    """For each sequence its path and how much of it stood there already."""

    def add(self, sequence: Sequence[int], shared: int) -> np.ndarray:
        """Grow the branch of a sequence that shares its beginning with the one added before."""
        before = self.branches[-1][0][:shared] if self.branches else np.empty(0, dtype=int)
        new = np.arange(len(self.tokens), len(self.tokens) + len(sequence) - shared)
        path = np.concatenate([before, new])
        self.tokens += sequence[shared:]
        self.depths += range(shared, len(sequence))
        self.branches.append((path, shared))
        return path

    @property
    def is_chain(self) -> bool:
        """Whether every sequence is the beginning of the longest, so that an ordinary causal mask is right."""
        return self.depths[-1] == len(self.depths) - 1

    def sees(self, size: int) -> np.ndarray:
        """Which tokens each token may look at; what pads the row looks at itself. [size, size]"""
        mask = np.eye(size, dtype=bool)
        for path, shared in self.branches:
            new = path[shared:]
            if len(new):
                mask[np.ix_(new, path[:shared])] = True
                mask[new[0] : new[-1] + 1, new[0] : new[-1] + 1] |= np.tri(len(new), dtype=bool)
        return mask


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
