"""What training pulls towards: the words brought into balance, and everything else kept as the base model has it.

n rows, v vocabulary, w words."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

__all__ = ["balance", "divergence", "evened", "hinted", "towards", "uneven"]

NEAR = 0.3


def balance(logits: Tensor, words: Sequence[int]) -> Tensor:
    """How far the words' log-probabilities are apart, over all pairs; nothing else about the distribution counts.

    Quadratic near zero and linear beyond, because a few strongly biased prompts would else make all of the gradient."""
    pairs = list(itertools.combinations(words, 2))
    ratios = logits[:, [a for a, _ in pairs]] - logits[:, [b for _, b in pairs]]  # [n, pairs]
    return smooth_l1_loss(ratios, torch.zeros_like(ratios), beta=NEAR)


def towards(logits: Tensor, words: Sequence[int], weights: Sequence[float] = ()) -> Tensor:
    """Cross-entropy towards each word, added up: least where each has 1/w (LFTF eq. 5, as its ablation implies)."""
    logp = logits.log_softmax(-1)[:, list(words)]  # [n, w]
    weight = torch.tensor(list(weights) or [1.0] * len(words), device=logits.device)
    return -(logp * weight).sum(-1).mean()


def evened(logits: Tensor, words: Sequence[int]) -> Tensor:
    """The distribution with the words' share divided equally among them and nothing else changed. [n, v]"""
    p = logits.softmax(-1)
    p[:, list(words)] = p[:, list(words)].mean(-1, keepdim=True)
    return p


def hinted(logits: Tensor, words: Sequence[int], which: Tensor, margin: float) -> Tensor:
    """The distribution with the hinted word's odds among the words raised by e^margin, their total unchanged. [n, v]"""
    p = logits.softmax(-1)
    share = p[:, list(words)]  # [n, w]
    raised = share.scatter(1, which[:, None], share.gather(1, which[:, None]) * math.exp(margin))
    p[:, list(words)] = raised * share.sum(-1, keepdim=True) / raised.sum(-1, keepdim=True)
    return p


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """Mean Kullback-Leibler divergence from the target distribution to the model's."""
    logp = logits.log_softmax(-1)
    return (torch.special.xlogy(target, target) - target * logp).sum(-1).mean()


def uneven(groups: Tensor, here: Tensor) -> Tensor:
    """How far apart groups [n, w] are in their log-probabilities at the positions marked [n], likelier ones counting
    more: where no group is about to be named, the difference means nothing."""
    apart = groups - groups.mean(-1, keepdim=True)
    weight = groups.detach().exp().sum(-1) * here  # [n]
    distance = smooth_l1_loss(apart, torch.zeros_like(apart), beta=NEAR, reduction="none").sum(-1)
    return (weight * distance).sum() / weight.sum().clamp_min(1e-12)
