"""Scoring: trees, masks, vectors, generation and strided windows against plain calls of the model, one at a time."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import CAUSAL, quiet_run, tiny_lm, tiny_model, tiny_tokenizer

from evenhand import scoring
from evenhand.config import Refusal
from evenhand.data._rows import Text
from evenhand.data.genbiaseval import ACTIONS, GenBiasEval
from evenhand.data.plain_text import PlainText
from evenhand.lm import LM
from evenhand.metrics.perplexity import SEPARATOR, Perplexity
from evenhand.run import Run
from evenhand.scoring import (
    can_branch,
    continuations,
    greedy,
    masked_logprobs,
    next_token_logprobs,
    token_logprobs,
    token_nll,
    vectors,
    window_ends,
)
from evenhand.trees import Tree, plant

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
PREFIX = "Treat women and men alike. "
# Ragged: the same beginnings, the same text twice, one that is the beginning of others, one token.
TEXTS = [
    "The nurse smiled because",
    "The nurse waited outside the building until the rain had stopped because",
    "The nurse waited outside the building until the rain had stopped",
    "The registered nurse waited outside the building until the rain had stopped because",
    "The nurse smiled because",
    "The anthropologist called the office; by race, the anthropologist is",
    "The anthropologist called the office; by religion, the anthropologist is",
    "The",
    "A marathon is a little over forty-two kilometres long.",
    *(f"The {who} {what} because" for who in ("actor", "baker", "clerk", "coach") for what in ("smiled", "hesitated")),
]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return quiet_run(tmp_path)


@torch.no_grad()
def logprobs(lm: LM, ids: Sequence[int]) -> np.ndarray:
    """The next token's log-probabilities by one plain call. [v]"""
    return lm.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1].log_softmax(-1).numpy()


def slow(lm: LM, texts: Sequence[str], words: Sequence[Sequence[int]]) -> np.ndarray:
    """One text at a time. [n, w]"""
    return np.stack([logprobs(lm, lm.encode([text])[0])[list(own)] for text, own in zip(texts, words, strict=True)])


def words_of(texts: Sequence[str]) -> list[list[int]]:
    """Three candidate tokens for each row, other ones in other rows."""
    return [[300 + row, 400 + row, 699 - row] for row in range(len(texts))]


@pytest.mark.parametrize("family", CAUSAL)
def test_next_token_logprobs_equal_a_loop(family: str, run: Run) -> None:
    lm = tiny_lm(family)
    texts = TEXTS + ([""] if lm.encode([""])[0] else [])
    found = next_token_logprobs(lm, texts, words_of(texts), run, "test")
    np.testing.assert_allclose(found, slow(lm, texts, words_of(texts)), **CLOSE)
    assert np.ptp(found[:, 0]) > 0.1, "the model says different things about different texts"
    one = next_token_logprobs(lm, texts[1:2], words_of(texts)[1:2], run, "test")
    np.testing.assert_allclose(one, found[1:2], **CLOSE)


@torch.no_grad()
def slow_target(lm: LM, context: Sequence[int], target: Sequence[int]) -> np.ndarray:
    """Every token of a target by one plain call over both."""
    logp = lm.model(input_ids=torch.tensor([[*context, *target]]), use_cache=False).logits[0].log_softmax(-1)
    return np.array([float(logp[len(context) - 1 + place, token]) for place, token in enumerate(target)])


@pytest.mark.parametrize("window", [8, 64])
@pytest.mark.parametrize("family", CAUSAL)
def test_token_logprobs_equal_a_loop(family: str, window: int, run: Run) -> None:
    """With branches where the family can take them, also where a sliding window is shorter than the texts."""
    lm = tiny_lm(family, **({"sliding_window": window} if family in ("gemma2", "gemma3", "mistral") else {}))
    items = [lm.split(text[:cut], text[cut:]) for text in TEXTS for cut in (0, 3) if len(text) > cut]
    items += [(context, target[:2]) for context, target in items] + [([1], [5]), ([1, 5], [6, 7])]
    found = token_logprobs(lm, items, run, "test")
    for (context, target), values in zip(items, found, strict=True):
        np.testing.assert_allclose(values, slow_target(lm, context, target), **CLOSE)


def test_which_families_may_branch() -> None:
    assert can_branch(tiny_lm("llama"), 10**6)
    assert not can_branch(tiny_lm("bloom"), 4)
    assert not can_branch(tiny_lm("falcon", alibi=True), 4)
    assert can_branch(tiny_lm("mistral"), 8)
    assert not can_branch(tiny_lm("mistral"), 9), "a token must see everything before it, and the window is shorter"


def test_what_texts_share_is_run_once(run: Run) -> None:
    lm = tiny_lm("llama")
    prompt = "The nurse waited outside the building until the rain had stopped because"
    passed: list[int] = []
    handle = lm.blocks[0].register_forward_pre_hook(
        lambda _, args, __: passed.append(args[0].shape[1]), with_kwargs=True
    )
    found = continuations(lm, [prompt] * 2, [[" he left", " she left", " they left"]] * 2, run, "test")
    handle.remove()
    length = len(lm.split(prompt, " he left")[0])
    # One row: the prompt, and behind it every option without its last token; the head's own pass has one token.
    assert [size for size in passed if size > 1] == [
        length + sum(len(lm.split(prompt, f" {who} left")[1]) - 1 for who in ("he", "she", "they"))
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_empty_target_is_refused(run: Run) -> None:
    with pytest.raises(Refusal, match="empty text"):
        continuations(tiny_lm("llama"), ["The nurse"], [[""]], run, "test")


def test_a_model_that_answers_nan_is_refused(run: Run) -> None:
    lm = tiny_lm("llama")
    with torch.no_grad():
        lm.blocks[1].mlp.down_proj.weight[0, 0] = float("nan")  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(Refusal, match="answers NaN"):
        next_token_logprobs(lm, TEXTS, words_of(TEXTS), run, "test")


def test_a_batch_that_does_not_fit_is_halved(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny_lm("bloom")
    expected = next_token_logprobs(lm, TEXTS, words_of(TEXTS), run, "test")
    states, sizes = scoring.tree_states, []

    def scarce(lm: LM, trees: list[Tree]) -> torch.Tensor:
        sizes.append(len(trees))
        if len(trees) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return states(lm, trees)

    monkeypatch.setattr(scoring, "tree_states", scarce)
    room = 2
    np.testing.assert_allclose(next_token_logprobs(lm, TEXTS, words_of(TEXTS), run, "test"), expected, **CLOSE)
    assert max(sizes) > 2
    room = 0
    with pytest.raises(Refusal, match="not even one text fits"):
        next_token_logprobs(lm, TEXTS, words_of(TEXTS), run, "test")


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_masked_logprobs_equal_a_loop(family: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny_lm(family)
    mask = lm.tokenizer.mask_token_id
    items = []
    for ids in lm.encode(TEXTS[:9]):
        for place in range(1, len(ids) - 1, 3):
            items.append(([*ids[:place], mask, *ids[place + 1 :]], place, ids[place]))
    found = masked_logprobs(lm, items, run, "test")
    for (ids, place, token), value in zip(items, found, strict=True):
        with torch.no_grad():
            logp = lm.model(input_ids=torch.tensor([ids])).logits[0, place].log_softmax(-1)
        assert value == pytest.approx(float(logp[token]), abs=1e-5)
    monkeypatch.setattr(scoring, "BATCH_TOKENS", {"cpu": 1})
    np.testing.assert_allclose(masked_logprobs(lm, items, run, "test"), found, **CLOSE)
    with pytest.raises(Refusal, match="masked"):
        masked_logprobs(tiny_lm("llama"), items, run, "test")


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "t5"])
def test_vectors_are_the_mean_of_the_last_hidden_states(family: str, run: Run) -> None:
    lm = tiny_lm(family)
    found = vectors(lm, TEXTS, run, "test")
    for text, vector in zip(TEXTS, found, strict=True):
        ids = torch.tensor([lm.encode([text])[0]])
        with torch.no_grad():
            body = lm.model.get_encoder() if family == "t5" else lm.model.base_model
            states = body(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
        np.testing.assert_allclose(vector, states.mean(0).numpy(), **CLOSE)
    np.testing.assert_array_equal(found[0], found[4])


def test_greedy_equals_a_loop(run: Run) -> None:
    lm = tiny_lm("llama")
    found = greedy(lm, TEXTS[:6], 5, run, "test")
    for text, continuation in zip(TEXTS, found, strict=False):
        ids = lm.encode([text])[0]
        for _ in range(5):
            ids.append(int(logprobs(lm, ids).argmax()))
            if ids[-1] == lm.tokenizer.eos_token_id:
                break
        assert continuation == lm.tokenizer.decode(ids[len(lm.encode([text])[0]) :], skip_special_tokens=True)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "bloom"])
@pytest.mark.parametrize("budget", [1, 40, 100_000])
def test_batches_do_not_matter(family: str, budget: int, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny_lm(family)
    texts = [row.text for row in GenBiasEval().take("test", 12)] + TEXTS
    words = [[300, 400]] * len(texts)
    expected = next_token_logprobs(lm, texts, words, run, "test")
    monkeypatch.setattr(scoring, "BATCH_TOKENS", {"cpu": budget})
    np.testing.assert_allclose(next_token_logprobs(lm, texts, words, run, "test"), expected, **CLOSE)
    order = np.random.default_rng(budget).permutation(len(texts))
    shuffled = next_token_logprobs(lm, [texts[row] for row in order], words, run, "test")
    np.testing.assert_allclose(shuffled, expected[order], **CLOSE)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_prefix_is_text_before_the_text(family: str, run: Run) -> None:
    lm = tiny_lm(family)
    plain = next_token_logprobs(lm, TEXTS, words_of(TEXTS), run, "test")
    written = next_token_logprobs(lm, [PREFIX + text for text in TEXTS], words_of(TEXTS), run, "test")
    lm.prefix = PREFIX
    found = next_token_logprobs(lm, TEXTS, words_of(TEXTS), run, "test")
    np.testing.assert_allclose(found, written, **CLOSE)
    assert np.abs(found - plain).max() > 0.01


def test_an_end_token_is_not_what_the_word_follows(run: Run) -> None:
    """Some tokenizers close every text; the next word is still asked for after the text."""
    model = tiny_model("llama")
    plain, closed = (LM(model, tiny_tokenizer(True, end), "tiny") for end in (False, True))
    words = words_of(TEXTS)
    expected = next_token_logprobs(plain, TEXTS, words, run, "test")
    np.testing.assert_allclose(next_token_logprobs(closed, TEXTS, words, run, "test"), expected, **CLOSE)


def test_other_kinds_are_refused(run: Run) -> None:
    with pytest.raises(Refusal, match="causal"):
        next_token_logprobs(tiny_lm("bert"), TEXTS, words_of(TEXTS), run, "test")
    with pytest.raises(Refusal, match="causal"):
        token_nll(tiny_lm("t5"), [1, 2, 3], 4, 2, run, "test")


def test_prompts_share_much_of_their_work() -> None:
    prompts = [
        GenBiasEval().prompt(scale, action, who) for scale in ACTIONS for action in range(3) for who in range(20)
    ]
    encoded = [tuple(ids) for ids in tiny_lm("llama").encode([row.text for row in prompts])]
    trees, _ = plant(encoded, True)
    assert sum(len(tree.tokens) for tree in trees) < 0.8 * sum(map(len, encoded))


def some_tokens(length: int) -> list[int]:
    """A text of random tokens."""
    return torch.randint(4, 700, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def slow_nll(lm: LM, prefix: list[int], ids: list[int], window: int, stride: int) -> list[float]:
    """Windows of `window` tokens, each `stride` further on; one call of the model for every token not yet scored."""
    found: list[float] = []
    end = min(window, len(ids))
    while len(found) < len(ids) - 1:
        for place in range(len(found) + 1, end):
            before = ids[max(0, end - window) : place]
            found.append(-float(logprobs(lm, prefix + before)[ids[place]]))
        end = min(end + stride, len(ids))
    return found


@pytest.mark.parametrize("prefix", ["", PREFIX])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_token_nll_equals_a_loop(family: str, prefix: str, run: Run) -> None:
    lm = tiny_lm(family)
    lm.prefix = prefix
    before = lm.tokenizer(prefix).input_ids if prefix else []
    for length, window, stride in [(1, 8, 4), (2, 8, 4), (7, 8, 4), (8, 8, 4), (9, 8, 4), (30, 8, 3), (30, 16, 1)]:
        ids = some_tokens(length)
        found = token_nll(lm, ids, window, stride, run, "test")
        assert len(found) == length - 1, "only the text's own tokens count"
        np.testing.assert_allclose(found, slow_nll(lm, before, ids, window, stride), **CLOSE)


@torch.no_grad()
def possible(lm: LM, ids: list[int], window: int) -> list[list[float]]:
    """For each token but the first, its value after each of the texts of up to `window` tokens that end before it."""
    values: list[list[float]] = [[] for _ in ids]
    for first in range(len(ids)):
        logp = lm.model(input_ids=torch.tensor([ids[first:]]), use_cache=False).logits[0].log_softmax(-1)
        for place in range(first + 1, min(first + window + 1, len(ids))):
            values[place].append(-float(logp[place - first - 1, ids[place]]))
    return values[1:]


@pytest.mark.parametrize(("window", "stride"), [(6, 6), (6, 5), (6, 9), (2, 2), (2, 1), (40, 40)])
def test_every_token_is_read_after_what_stands_before_it(window: int, stride: int, run: Run) -> None:
    """Also where windows do not overlap: no token may be read after nothing, or after what comes later."""
    lm = tiny_lm("llama")
    ids = some_tokens(21)
    found = token_nll(lm, ids, window, stride, run, "test")
    for value, allowed in zip(found, possible(lm, ids, window), strict=True):
        assert min(abs(value - each) for each in allowed) < 1e-4


def test_windows_score_every_token_but_the_first_once() -> None:
    for length, window, stride in itertools.product(range(1, 30), range(2, 12), range(1, 12)):
        scored = [place for start, end in window_ends(length, window, stride) for place in range(start, end)]
        assert scored == list(range(1, length)), (length, window, stride)


def sentences(count: int) -> list[Text]:
    return PlainText().take("test", count)  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_perplexity_of_a_text_in_one_window_is_the_models_own_loss(family: str, run: Run) -> None:
    lm = tiny_lm(family)
    rows = sentences(2)
    metric = Perplexity()
    table = metric.score(lm, rows, run)
    ids = torch.tensor(
        [[lm.start, *lm.tokenizer(SEPARATOR.join(row.text for row in rows), add_special_tokens=False).input_ids]]
    )
    assert ids.shape[1] < 128
    with torch.no_grad():
        loss = float(lm.model(input_ids=ids, labels=ids).loss)
    assert metric.summarise(table).value == pytest.approx(np.exp(loss), rel=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_perplexity_gives_every_row_its_own_tokens(family: str, run: Run) -> None:
    lm = tiny_lm(family)
    rows = [*sentences(8), Text(id="ü", text="Größe: 42 µm, naïve – 漢字 🙂"), *sentences(10)[8:]]
    metric = Perplexity(window=64, stride=32)
    table = metric.score(lm, rows, run)
    own = [len(lm.tokenizer(row.text, add_special_tokens=False).input_ids) for row in rows]
    assert table["tokens"].tolist() == [count + 2 for count in own[:-1]] + own[-1:]
    whole = lm.tokenizer(SEPARATOR.join(row.text for row in rows), add_special_tokens=False).input_ids
    nll = token_nll(lm, [lm.start, *whole], 64, 32, run, "test")
    assert table["nll"].sum() == pytest.approx(nll.sum())
    ends = np.cumsum(table["tokens"])
    np.testing.assert_allclose(table["nll"], [part.sum() for part in np.split(nll, ends[:-1])])
    assert metric.summarise(table).value == pytest.approx(np.exp(table["nll"].sum() / table["tokens"].sum()))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_perplexity_never_looks_at_what_comes_later(family: str, run: Run) -> None:
    """With the default options, on a model that can read less than them."""
    lm = tiny_lm(family)
    rows = sentences(10)
    tables = [Perplexity().score(lm, end, run) for end in (rows, [*rows[:4], *(turned(row) for row in rows[4:])])]
    assert tables[0]["tokens"].tolist() == tables[1]["tokens"].tolist()
    # The second window begins before what differs and ends behind it.
    assert 128 < tables[0]["tokens"][:4].sum() < 250 < tables[0]["tokens"].sum()
    assert not np.allclose(tables[0]["nll"][4:], tables[1]["nll"][4:], rtol=1e-2)
    np.testing.assert_allclose(tables[0]["nll"][:4], tables[1]["nll"][:4], rtol=1e-5)


def turned(row: Text) -> Text:
    """The same tokens, most of them in another order."""
    words = row.text.split(" ")
    return Text(id=row.id, text=" ".join([words[0], *words[-2:0:-1], words[-1]]))


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_perplexity_behind_a_prefix_counts_the_same_tokens(family: str, run: Run) -> None:
    """The prefix takes room in the window, which no model can read beyond."""
    lm = tiny_lm(family)
    rows = sentences(10)
    plain = Perplexity().score(lm, rows, run)
    lm.prefix = PREFIX
    behind = Perplexity().score(lm, rows, run)
    assert plain["tokens"].tolist() == behind["tokens"].tolist()
    assert np.isfinite(behind["nll"]).all()
    assert not np.allclose(plain["nll"], behind["nll"])
