"""One engine for every likelihood: each distinct text is run once, what texts share is run once, and the output head
only sees the positions that are read.

n rows, s positions, d hidden size, m positions read, v vocabulary."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor

from evenhand.config import Refusal
from evenhand.hooks import head_inputs, through_head
from evenhand.lm import LM
from evenhand.run import Run, processes
from evenhand.trees import Tree, batches, plant, sees

__all__ = [
    "continuations",
    "greedy",
    "masked_logprobs",
    "next_token_logprobs",
    "token_logprobs",
    "token_nll",
    "vectors",
]

Item = tuple[Sequence[int], Sequence[int]]
T = TypeVar("T")

# A CPU is as fast on 256 tokens as on more, and smaller batches have less to pad.
BATCH_TOKENS = {"cpu": 256, "cuda": 32768}
HEAD_NUMBERS = {"cpu": 2**25, "cuda": 2**28}
"""How many logits are held at once."""
# Writing reads all weights for one token of each row, so it wants more rows at once than reading does.
WIDER = 16
# Families whose positions come from the mask (ALiBi), so that a token cannot be told how deep it stands.
NO_TREES = ("bloom", "mpt")


def token_logprobs(lm: LM, items: Sequence[Item], run: Run, what: str) -> list[np.ndarray]:
    """For each (context, target) the log-probability of every token of the target after what stands before it."""
    lm.require("causal", what)
    distinct = list(dict.fromkeys((tuple(context), tuple(target)) for context, target in items))
    if not distinct:
        return []
    runs = list(dict.fromkeys(context + target[:-1] for context, target in distinct))
    if not all(context and target for context, target in distinct):
        raise Refusal(f"{what}: there is an empty text; delete its row.")
    fits(lm, max(map(len, runs)), what)
    trees, places = plant(runs, can_branch(lm, max(map(len, runs))))
    # What is wanted from each tree: at which places, and which token there.
    place_of = dict(zip(runs, places, strict=True))
    wanted: list[list[tuple[int, np.ndarray, tuple[int, ...]]]] = [[] for _ in trees]
    for number, (context, target) in enumerate(distinct):
        tree, path = place_of[context + target[:-1]]
        wanted[tree].append((number, path[len(context) - 1 :], target))

    def score(part: list[int]) -> list[tuple[int, np.ndarray]]:
        return batch_logprobs(lm, [trees[number] for number in part], [wanted[number] for number in part])

    parts = batches(trees, budget(lm))
    found = spread(parts, score, run, what, [sum(len(trees[number].tokens) for number in part) for part in parts])
    check_numbers(found.values(), what)
    by_item = {item: found[number] for number, item in enumerate(distinct)}
    return [by_item[tuple(context), tuple(target)] for context, target in items]


def fits(lm: LM, longest: int, what: str) -> None:
    """Refuse a text that is longer than the model can read."""
    most = getattr(lm.model.config.get_text_config(), "max_position_embeddings", None) or longest
    if longest > most:
        raise Refusal(f"{what}: a text has {longest} tokens and {lm.name} reads {most}; shorten or delete it.")


def can_branch(lm: LM, longest: int) -> bool:
    """Whether texts that begin alike may share a row: the family must take positions and a mask as they are given."""
    config = lm.model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    positions = config.model_type not in NO_TREES and not getattr(config, "alibi", False)
    return positions and (window is None or longest <= window)


@torch.inference_mode()
def batch_logprobs(
    lm: LM, trees: list[Tree], wanted: list[list[tuple[int, np.ndarray, tuple[int, ...]]]]
) -> list[tuple[int, np.ndarray]]:
    """One forward pass over the trees, then the head where something is read."""
    states = tree_states(lm, trees)  # [n, s, d]
    flat = [(row, number, path, target) for row, each in enumerate(wanted) for number, path, target in each]
    size = states.shape[1]
    at = np.concatenate([row * size + path for row, _, path, _ in flat])
    targets = np.concatenate([target for *_, target in flat])
    places, which = np.unique(at, return_inverse=True)
    values = np.empty(len(at))
    step = max(1, HEAD_NUMBERS.get(lm.device.type, 2**25) // lm.model.config.get_text_config().vocab_size)
    order = np.argsort(which, kind="stable")
    sorted_which = which[order]
    for start in range(0, len(places), step):
        chosen = torch.from_numpy(places[start : start + step]).to(lm.device)
        z = through_head(lm, states.flatten(0, 1)[chosen])  # [m, v]
        mine = order[np.searchsorted(sorted_which, start) : np.searchsorted(sorted_which, start + len(chosen))]
        rows = torch.from_numpy(which[mine] - start).to(lm.device)
        columns = torch.from_numpy(targets[mine]).to(lm.device)
        values[mine] = (z[rows, columns] - z.logsumexp(-1)[rows]).double().cpu().numpy()
    cut = np.cumsum([len(target) for *_, target in flat])[:-1]
    return [(number, part) for (_, number, *_), part in zip(flat, np.split(values, cut), strict=True)]


def tree_states(lm: LM, trees: list[Tree]) -> Tensor:
    """What the head would read at every token of every tree, padded on the right. [n, s, d]"""
    size = max(len(tree.tokens) for tree in trees)
    ids = torch.tensor([tree.tokens + [0] * (size - len(tree.tokens)) for tree in trees], device=lm.device)
    extra: dict[str, Tensor] = {}
    # A causal model never looks at what comes later, so padding on the right needs no mask; only branches do.
    if not all(tree.is_chain for tree in trees):
        depths = [tree.depths + [0] * (size - len(tree.depths)) for tree in trees]
        mask = torch.zeros(len(trees), 1, size, size, dtype=lm.model.dtype, device=lm.device)
        hidden = ~sees(trees, size, lm.device)[:, None]
        extra["attention_mask"] = mask.masked_fill_(hidden, torch.finfo(lm.model.dtype).min)
        extra["position_ids"] = torch.tensor(depths, device=lm.device)
    with head_inputs(lm) as read:
        lm.model(input_ids=ids, use_cache=False, **extra)
    return read[0]


def budget(lm: LM) -> int:
    """How many tokens a batch may have."""
    return BATCH_TOKENS.get(lm.device.type, 2048)


def spread(
    parts: Sequence[list[int]], work: Callable[[list[int]], list[tuple[int, T]]], run: Run, what: str, sizes: list[int]
) -> dict[int, T]:
    """Work on parts of row numbers, shared out among the processes, and give each process all results by number."""
    here = processes()
    mine = slice(here.process_index, None, here.num_processes)
    found: list[tuple[int, T]] = []
    problem: Exception | None = None
    try:
        for part in run.progress(parts[mine], what, sizes=sizes[mine]):
            found += fitted(part, work, what)
    except Exception as error:  # told to all processes, or the others would wait for this one
        problem = error
    every = gather_object([(found, problem)])
    for _, told in every:
        if told is not None:
            raise told
    return dict(itertools.chain.from_iterable(each for each, _ in every))


def fitted(part: list[int], work: Callable[[list[int]], list[T]], what: str) -> list[T]:
    """The results of a part, or of its halves where memory runs out."""
    try:
        return work(part)
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "not enough memory" not in str(error):
            raise
    if len(part) == 1:
        raise Refusal(f"{what}: not even one text fits into memory; use --dtype bfloat16 or a smaller model.")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = len(part) // 2
    return fitted(part[:middle], work, what) + fitted(part[middle:], work, what)


def check_numbers(values: Any, what: str) -> None:
    """Refuse a model that answers with something that is no number."""
    if any(np.isnan(each).any() for each in values):
        raise Refusal(f"{what}: the model answers NaN; try --dtype float32, or look at its weights.")


def next_token_logprobs(
    lm: LM, texts: Sequence[str], words: Sequence[Sequence[int]], run: Run, what: str
) -> np.ndarray:
    """The log-probability of each row's candidate tokens as the next token of its text. [n, w]"""
    encoded = lm.encode(texts)
    items = [(ids, (word,)) for ids, candidates in zip(encoded, words, strict=True) for word in candidates]
    return np.concatenate(token_logprobs(lm, items, run, what)).reshape(len(texts), -1)


def continuations(
    lm: LM, contexts: Sequence[str], options: Sequence[Sequence[str]], run: Run, what: str
) -> list[list[np.ndarray]]:
    """The log-probability of every token of each option as the continuation of its context (or of the start token)."""
    items = [lm.split(context, option) for context, some in zip(contexts, options, strict=True) for option in some]
    found = iter(token_logprobs(lm, items, run, what))
    return [list(itertools.islice(found, len(some))) for some in options]


def token_nll(lm: LM, ids: Sequence[int], window: int, stride: int, run: Run, what: str) -> np.ndarray:
    """Minus the log-probability of every token of a long text but the first, each read with up to `window` before it.

    Windows advance by `stride` and only new tokens are scored. The prefix stands before each window, unscored."""
    prefix = lm.tokenizer(lm.prefix).input_ids if lm.prefix else []
    # A window's first token has nothing before it, so every window starts with one that is scored already.
    stride = max(1, min(stride, window - 1))
    places = [(max(0, end - window), start, end) for start, end in window_ends(len(ids), window, stride)]
    items = [([*prefix, *ids[first:start]], ids[start:end]) for first, start, end in places]
    return -np.concatenate([np.empty(0), *token_logprobs(lm, items, run, what)])


def window_ends(length: int, window: int, stride: int) -> list[tuple[int, int]]:
    """From which token to which each window scores; the text's first token has nothing before it."""
    ends = [*range(min(window, length), length, stride), length]
    starts = [1, *ends[:-1]]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]


def masked_logprobs(lm: LM, items: Sequence[tuple[Sequence[int], int, int]], run: Run, what: str) -> np.ndarray:
    """For each (ids with masks in it, place, token) the log-probability of the token at that place. [n]"""
    lm.require("masked", what)
    distinct = list(dict.fromkeys((tuple(ids), place, token) for ids, place, token in items))
    padding = lm.tokenizer.pad_token_id or 0
    fits(lm, max((len(ids) for ids, *_ in distinct), default=0), what)

    @torch.inference_mode()
    def score(part: list[int]) -> list[tuple[int, float]]:
        rows = [list(distinct[number][0]) for number in part]
        size = max(map(len, rows))
        ids = torch.tensor([row + [padding] * (size - len(row)) for row in rows], device=lm.device)
        mask = torch.tensor([[1] * len(row) + [0] * (size - len(row)) for row in rows], device=lm.device)
        with head_inputs(lm) as read:
            lm.model(input_ids=ids, attention_mask=mask)
        places = torch.tensor([distinct[number][1] for number in part], device=lm.device)
        tokens = torch.tensor([[distinct[number][2]] for number in part], device=lm.device)
        z = lm.head(read[0][torch.arange(len(part), device=lm.device), places]).float()  # [n, v]
        values = z.log_softmax(-1).gather(-1, tokens)[:, 0].double().cpu().tolist()
        return list(zip(part, values, strict=True))

    parts = by_length([len(ids) for ids, *_ in distinct], budget(lm))
    found = spread(parts, score, run, what, [len(part) for part in parts])
    check_numbers([np.array(list(found.values()))], what)
    by_item = {item: found[number] for number, item in enumerate(distinct)}
    return np.array([by_item[tuple(ids), place, token] for ids, place, token in items])


def vectors(lm: LM, texts: Sequence[str], run: Run, what: str, *, started: bool = False) -> np.ndarray:
    """The mean of each text's last hidden states (after the final norm), special tokens included; `started` reads a
    text behind the start token, as inside a longer one, and leaves that token out of the mean. [n, d]"""
    distinct = list(dict.fromkeys(texts))
    encoded = [[lm.start, *lm.split("a", f" {text}")[1]] for text in distinct] if started else lm.encode(distinct)
    body = lm.model.get_encoder() if lm.kind == "seq2seq" else lm.model.base_model
    fits(lm, max(map(len, encoded)), what)
    # The prefix stands before every text and is no part of it.
    skipped = len(lm.opened(lm.tokenizer(lm.prefix.rstrip(" ")).input_ids)) if lm.prefix else 0
    skipped = 1 if started else skipped

    @torch.inference_mode()
    def embed(part: list[int]) -> list[tuple[int, np.ndarray]]:
        ids = torch.tensor([encoded[number] for number in part], device=lm.device)
        states = body(input_ids=ids, **({} if lm.kind != "causal" else {"use_cache": False})).last_hidden_state
        means = states[:, skipped:].float().mean(1).double().cpu().numpy()
        return list(zip(part, means, strict=True))

    parts = same_size([len(ids) for ids in encoded], budget(lm))
    found = spread(parts, embed, run, what, [len(part) for part in parts])
    check_numbers(found.values(), what)
    by_text = {text: found[number] for number, text in enumerate(distinct)}
    return np.stack([by_text[text] for text in texts])


def greedy(lm: LM, prompts: Sequence[str], new_tokens: int, run: Run, what: str) -> list[str]:
    """The likeliest continuation of each prompt, without the prompt; prompts of one length together, so none is padded
    and the batch changes nothing."""
    lm.require("causal", what)
    distinct = list(dict.fromkeys(prompts))
    encoded = lm.encode(distinct)
    padding = lm.tokenizer.pad_token_id if lm.tokenizer.pad_token_id is not None else lm.start
    fits(lm, max(map(len, encoded)) + new_tokens, what)
    # Generating hides a model that answers NaN: it takes some token all the same.
    next_token_logprobs(lm, distinct[:1], [[0]], run, what)

    @torch.inference_mode()
    def write(part: list[int]) -> list[tuple[int, str]]:
        ids = torch.tensor([encoded[number] for number in part], device=lm.device)
        output = lm.model.generate(  # pyright: ignore[reportCallIssue]
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=new_tokens,
            pad_token_id=padding,
            # Whatever the model's own settings for chatting are, the likeliest token is taken.
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
        )
        texts = lm.tokenizer.batch_decode(output[:, ids.shape[1] :], skip_special_tokens=True)
        return list(zip(part, texts, strict=True))

    parts = same_size([len(ids) + new_tokens for ids in encoded], WIDER * budget(lm))
    found = spread(parts, write, run, what, [len(part) for part in parts])
    by_prompt = {prompt: found[number] for number, prompt in enumerate(distinct)}
    return [by_prompt[prompt] for prompt in prompts]


def by_length(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Row numbers of about one length together, the longest first, at most `tokens` a part with what pads them."""
    parts: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if parts and (len(parts[-1]) + 1) * lengths[parts[-1][0]] <= tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


def same_size(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Row numbers of exactly one length together, at most `tokens` a part."""
    groups: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        groups.setdefault(length, []).append(row)
    parts = []
    for length, rows in sorted(groups.items(), reverse=True):
        step = max(1, tokens // length)
        parts += [rows[start : start + step] for start in range(0, len(rows), step)]
    return parts
