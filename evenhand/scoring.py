"""Batched next-token and text log-probabilities: every distinct prefix computed once, the head only where it is read.

n rows, s positions, v vocabulary, w words."""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import DynamicCache

from evenhand.hooks import head_inputs, through_head
from evenhand.lm import LM
from evenhand.run import Run, processes

__all__ = ["next_token_logprobs", "token_nll"]

BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}


class Batch(NamedTuple):
    """Rows that share the length of their prefix and of what follows it, so that nothing is padded."""

    prefixes: list[tuple[int, ...]]
    prefix_of: list[int]
    rests: list[tuple[int, ...]]
    rows: list[int]


@torch.inference_mode()
def next_token_logprobs(
    lm: LM, texts: Sequence[str], words: Sequence[Sequence[int]], run: Run, what: str
) -> np.ndarray:
    """The log-probability of each row's candidate tokens as the next token of its text. [n, w]"""
    lm.require("causal", what)
    encoded = lm.encode(texts)
    batches = shared_prefix_batches(encoded, BATCH_TOKENS.get(lm.device.type, 2048))
    found: list[tuple[list[int], np.ndarray]] = []
    mine = batches[processes().process_index :: processes().num_processes]
    for batch in run.progress(mine, what, sizes=[len(batch.rows) for batch in mine]):
        logprobs = last_logits(lm, batch).log_softmax(-1)  # [n, v]
        chosen = torch.tensor([list(words[row]) for row in batch.rows], device=lm.device)  # [n, w]
        found.append((batch.rows, logprobs.gather(-1, chosen).cpu().numpy()))
    result = np.empty((len(texts), len(words[0])), dtype=np.float64)
    for rows, values in gather_object(found):
        result[rows] = values
    return result


def last_logits(lm: LM, batch: Batch) -> Tensor:
    """The logits after each row's last token; a shared prefix is run once and its cache handed to its rows. [n, v]"""
    rests = torch.tensor(batch.rests, device=lm.device)
    cache = None
    if batch.prefixes[0]:
        cache = DynamicCache(config=lm.model.config)
        prefixes = torch.tensor(batch.prefixes, device=lm.device)
        with head_inputs(lm):
            lm.model(input_ids=prefixes, past_key_values=cache, use_cache=True)
        cache.batch_select_indices(torch.tensor(batch.prefix_of, device=lm.device))
    with head_inputs(lm) as read:
        lm.model(input_ids=rests, past_key_values=cache, use_cache=cache is not None)
    return through_head(lm, read[0][:, -1])


def shared_prefix_batches(encoded: Sequence[Sequence[int]], tokens: int) -> list[Batch]:
    """Group rows by the lengths of prefix and rest, and cut the groups so that a batch has about `tokens` tokens."""
    groups: dict[tuple[int, int], list[tuple[tuple[int, ...], tuple[int, ...], int]]] = defaultdict(list)
    for prefix, rows in worthwhile(clusters(encoded), sum(len(row) for row in encoded)):
        for row in rows:
            rest = tuple(encoded[row][len(prefix) :])
            groups[len(prefix), len(rest)].append((prefix, rest, row))
    batches = []
    for (head, tail), members in sorted(groups.items(), reverse=True):
        size = max(1, tokens // (head + tail))
        for start in range(0, len(members), size):
            part = members[start : start + size]
            prefixes = list(dict.fromkeys(prefix for prefix, _, _ in part))
            place = {prefix: index for index, prefix in enumerate(prefixes)}
            batches.append(
                Batch(
                    prefixes,
                    [place[prefix] for prefix, _, _ in part],
                    [rest for _, rest, _ in part],
                    [r for *_, r in part],
                )
            )
    return batches


def worthwhile(found: list[tuple[tuple[int, ...], list[int]]], tokens: int) -> list[tuple[tuple[int, ...], list[int]]]:
    """The clusters, or all rows unshared where sharing would save less than a quarter of the tokens: it takes two
    passes in place of one and cuts the rows into more and smaller batches."""
    saved = sum((len(rows) - 1) * len(prefix) for prefix, rows in found)
    return found if 4 * saved >= tokens else [((), sorted(row for _, rows in found for row in rows))]


def clusters(encoded: Sequence[Sequence[int]]) -> list[tuple[tuple[int, ...], list[int]]]:
    """Rows with a common beginning. In sorted order, a row joins the cluster before it when that saves more tokens than
    the row would save with the next one."""
    order = sorted(range(len(encoded)), key=lambda row: tuple(encoded[row]))
    ordered = [encoded[row] for row in order]
    following = [*(common_length(a, b) for a, b in itertools.pairwise(ordered)), 0]
    found: list[tuple[tuple[int, ...], list[int]]] = []
    start, shared = 0, 0
    for index in range(1, len(order) + 1):
        count = index - start
        if index < len(order):
            common = common_length(ordered[start], ordered[index])
            common = common if count == 1 else min(common, shared)
            if common and count * common >= (count - 1) * shared + following[index]:
                shared = common
                continue
        found.append((tuple(ordered[start][:shared]), order[start:index]))
        start, shared = index, 0
    return found


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two rows share from the start; never a whole row, for its last token must be run."""
    limit = min(len(one), len(other)) - 1
    return next((same for same in range(limit) if one[same] != other[same]), max(limit, 0))


@torch.inference_mode()
def token_nll(lm: LM, ids: Sequence[int], window: int, stride: int, run: Run, what: str) -> np.ndarray:
    """Minus the log-probability of every token of a long text but the first, each read with up to `window` before it.

    Windows advance by `stride` and only new tokens are scored. The prefix stands before each window, unscored."""
    lm.require("causal", what)
    prefix = lm.tokenizer(lm.prefix).input_ids if lm.prefix else []
    # A window's first token has nothing before it, so every window starts with one that is scored already.
    stride = max(1, min(stride, window - 1))
    nll = np.zeros(len(ids))
    windows = [(max(0, end - window), start, end) for start, end in window_ends(len(ids), window, stride)]
    size = 1 if lm.device.type == "cpu" else 16
    batches = [windows[i : i + size] for i in range(0, len(windows), size)]
    mine = batches[processes().process_index :: processes().num_processes]
    found: list[tuple[int, int, np.ndarray]] = []
    for batch in run.progress(mine, what):
        found += batch_nll(lm, [(prefix, ids, *place) for place in batch])
    for start, end, values in gather_object(found):
        nll[start:end] = values
    return nll[1:]


def window_ends(length: int, window: int, stride: int) -> list[tuple[int, int]]:
    """From which token to which each window scores; the text's first token has nothing before it."""
    ends = [*range(min(window, length), length, stride), length]
    starts = [1, *ends[:-1]]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]


def batch_nll(
    lm: LM, places: list[tuple[list[int], Sequence[int], int, int, int]]
) -> list[tuple[int, int, np.ndarray]]:
    """Score windows together, right-padded: a causal model never looks at what comes later."""
    rows = [prefix + list(ids[first:end]) for prefix, ids, first, _, end in places]
    longest = max(len(row) for row in rows)
    inputs = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=lm.device)
    lengths = [end - start for *_, start, end in places]
    at_row = torch.tensor([index for index, length in enumerate(lengths) for _ in range(length)], device=lm.device)
    at = torch.tensor(
        [len(row) - length + k for row, length in zip(rows, lengths, strict=True) for k in range(length)],
        device=lm.device,
    )
    with head_inputs(lm) as read:
        lm.model(input_ids=inputs, use_cache=False)
    logits = through_head(lm, read[0][at_row, at - 1])  # [m, v]
    values = torch.nn.functional.cross_entropy(logits, inputs[at_row, at], reduction="none").cpu().double().numpy()
    cut = np.cumsum(lengths)[:-1]
    return [(start, end, part) for (*_, start, end), part in zip(places, np.split(values, cut), strict=True)]
