"""Which tokens of a vocabulary belong to a social attribute, found from one reference word for each of its groups.

CrAWD's cross-attention asks how near a token is to the words of the sensitive sequence b. In a model's own embedding
space frequent tokens are near everything; made isotropic, the space answers the question.

v vocabulary, d hidden size, w reference words, r dimensions in which the words differ."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import normalize

from evenhand.config import Refusal, closest
from evenhand.lm import LM
from evenhand.run import Run
from evenhand.words import REFERENCES

__all__ = ["Association", "associated", "attributes_of", "isotropic", "looks_at", "widened"]

FALSE_SHARE = 0.05
FALSE_SHARE_IN_CONTEXT = 0.1
SENTENCES = (("The", " said that"), ("The", " was tired because"))
SHRINKAGE = 0.01
GRID = 400


class Association(NamedTuple):
    """How strongly every token belongs to an attribute, and to which of its words."""

    name: str
    words: tuple[str, ...]
    strength: Tensor
    """From 0 (no more than chance) to 1. [v]"""
    side: Tensor
    """The nearest reference word's place in `words`. [v]"""
    threshold: float
    """Where chance ends, on the scale of the score itself."""

    def listed(self, lm: LM, most: int) -> list[dict[str, Any]]:
        """The most strongly associated tokens, for people to look at."""
        order = self.strength.argsort(descending=True, stable=True)[:most].tolist()
        return [
            {
                "attribute": self.name,
                "token": lm.tokenizer.decode([token]),
                "word": self.words[int(self.side[token])],
                "strength": round(float(self.strength[token]), 4),
            }
            for token in order
            if self.strength[token] > 0
        ]


def attributes_of(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Reference words by attribute: `gender` stands for its own words; words that name no attribute make up one."""
    if not names:
        raise Refusal(
            f"The sensitive sequence is empty; name attributes ({', '.join(REFERENCES)}) or words of your own: "
            "--set method.words=he,she."
        )
    found = {name: REFERENCES[name] for name in names if name in REFERENCES}
    own = tuple(dict.fromkeys(name for name in names if name not in REFERENCES))
    known = {words: name for name, words in REFERENCES.items()}
    if own in known:
        return found | {known[own]: own}
    if len(own) == 1:
        raise Refusal(
            f"{own[0]!r} stands alone{closest(own[0], REFERENCES)}; give one word for each group that is compared, "
            f"such as he,she, or an attribute: {', '.join(REFERENCES)}."
        )
    return found | ({"words": own} if own else {})


@torch.no_grad()
def isotropic(vectors: Tensor) -> Tensor:
    """Vectors whose directions all have the same spread: centred, and divided by the spread of each direction. [v, d]

    A little of the mean spread is added to each, so that directions nobody uses do not become noise."""
    centred = vectors.float() - vectors.float().mean(0)
    spread, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
    return centred @ directions / (spread + SHRINKAGE * spread.mean()).clamp_min(1e-12).sqrt()


@torch.no_grad()
def associated(lm: LM, name: str, words: Sequence[str]) -> Association:
    """The tokens near one of the words and in the direction in which the words differ: `his` is both, `they` only near.

    The score of a token is the geometric mean of its cosine to the nearest word and of its part in the plane of the
    words' differences. A cosine below zero means nothing, so the same score with the farthest word shows what chance
    gives: the threshold is where chance would explain one in twenty of the tokens above it."""
    space = isotropic(lm.head.weight)
    # A reference word of several tokens is the mean of them all.
    pieces = [lm.split("a", f" {word}")[1] for word in words]
    references = normalize(torch.stack([space[tokens].mean(0) for tokens in pieces]), dim=1)  # [w, d]
    unit = normalize(space, dim=1)
    cosine = unit @ references.T  # [v, w]
    _, sizes, plane = torch.linalg.svd(references - references.mean(0), full_matrices=False)
    apart = (unit @ plane[sizes > 1e-4 * sizes[0]].T).norm(dim=1)  # [v]
    near, far = cosine.max(1), -cosine.min(1).values
    score, chance = ((x.clamp_min(0) * apart).sqrt() for x in (near.values, far))
    threshold = where_chance_ends(score, chance, FALSE_SHARE)
    strength = ((score - threshold) / threshold).clamp(0, 1)
    return Association(name, tuple(words), strength, near.indices, threshold)


def where_chance_ends(score: Tensor, chance: Tensor, share: float) -> float:
    """The lowest score above which at most this share of the tokens is there by chance."""
    for point in torch.linspace(0, float(score.max()), GRID, device=score.device)[1:]:
        if (chance > point).sum() <= share * (score > point).sum():
            return float(point)
    return float(score.max())


@torch.no_grad()
def widened(lm: LM, found: Association, words: Sequence[int], run: Run) -> Association:
    """The association with tokens that are associated in context: read in a sentence (`The mother said that`) they tilt
    the next word towards one group, and in the embedding space they lie on that group's side.

    A stereotype does the first (nurse) and an accident of spelling the second (heap); a word that means a group does
    both. Where the two disagree is chance, and the threshold is where that explains one in ten of what agrees."""
    new = [token for token in words if found.strength[token] == 0]
    groups = [(found.strength > 0.5) & (found.side == place) for place in range(len(found.words))]
    if not new or not all(group.any() for group in groups):
        return found
    space = normalize(isotropic(lm.head.weight), dim=1)
    middles = torch.stack([space[group].mean(0) for group in groups])  # [w, d]
    nearness = robust(space @ normalize(middles - middles.mean(0), dim=1).T)[new]  # [n, w]
    weights = torch.stack([found.strength * group for group in groups], 1)  # [v, w]
    tilts = [robust(tilt(lm, new, before, after, weights, run)) for before, after in SENTENCES]
    tilted = robust(torch.stack(tilts).sum(0))  # [n, w]
    score, side = torch.minimum(tilted, nearness).clamp_min(0).max(1)
    chance = torch.minimum(-tilted, nearness).clamp_min(0).amax(1)
    threshold = where_chance_ends(score, chance, FALSE_SHARE_IN_CONTEXT)
    chosen = score > threshold
    tokens = torch.tensor(new, device=lm.device)[chosen]
    strength, sides = found.strength.clone(), found.side.clone()
    strength[tokens] = (score[chosen] / (1.5 * threshold)).clamp(0, 1)
    sides[tokens] = side[chosen]
    return found._replace(strength=strength, side=sides)


def tilt(lm: LM, tokens: Sequence[int], before: str, after: str, weights: Tensor, run: Run) -> Tensor:
    """For each token in a sentence, the log-probability of each group as the next word, less their mean. [n, w]"""
    first = lm.encode([before])[0]
    last = lm.tokenizer(after, add_special_tokens=False).input_ids
    parts = [tokens[start : start + 64] for start in range(0, len(tokens), 64)]
    rows = []
    for part in run.progress(parts, "reading words in sentences", sizes=[len(part) for part in parts]):
        ids = torch.tensor([[*first, token, *last] for token in part], device=lm.device)
        shares = lm.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1].float().softmax(-1) @ weights
        rows.append(shares.clamp_min(1e-12).log())
    logs = torch.cat(rows)
    return logs - logs.mean(1, keepdim=True)


def robust(values: Tensor) -> Tensor:
    """How many spreads each value is from its column's median, the spread being that of the middle half. [n, w]"""
    apart = values - values.median(0).values
    return apart / (1.4826 * apart.abs().median(0).values).clamp_min(1e-12)


@torch.no_grad()
def looks_at(lm: LM, prompt: str, found: Sequence[Association]) -> pd.DataFrame:
    """For every token of a prompt, how much of what the model would say next goes to each reference word and to what
    is associated with it: the cross-attention between a sequence and the sensitive words."""
    # Without the prefix that a run may put before every text: before and after are of the same tokens.
    ids = lm.opened(lm.tokenizer(prompt).input_ids)
    if not ids:
        raise Refusal("There is no prompt to look at; write one, such as 'The doctor said that'.")
    shares = lm.model(input_ids=torch.tensor([ids], device=lm.device)).logits[0].float().softmax(-1)  # [s, v]
    lines = []
    for each in found:
        for number, word in enumerate(each.words):
            weights = shares @ (each.strength * (each.side == number))  # [s]
            lines += [
                {
                    "prompt": prompt,
                    "place": place,
                    "token": lm.tokenizer.decode([token]),
                    "word": word,
                    "weight": weight,
                }
                for place, (token, weight) in enumerate(zip(ids, weights.tolist(), strict=True))
            ]
    return pd.DataFrame(lines)
