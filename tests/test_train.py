"""Training: what the losses pull towards, frozen blocks computed once, trainings that can be repeated and resumed."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import BLOCKS, CAUSAL, quiet_run, tiny_lm
from torch import Tensor

from evenhand.lm import LM
from evenhand.losses import NEAR, balance, divergence, evened, hinted, towards
from evenhand.methods.lftf import LFTF, Pull
from evenhand.run import Run
from evenhand.train import Fit, Schedule, base_logits, best_cut, logits, prepare, same_length, train

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
NO_DROPOUT = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "opt": {"dropout": 0.0},
}
TEXTS = [
    "The nurse smiled because",
    "The plumber waited outside the building until the rain had stopped because",
    "The anthropologist called the office because",
    "The",
    "The taxi driver looked at the clock on the wall and started to laugh because",
    "The judge hesitated because",
    "The dancer apologized because",
]
START = (0.05, 0.50, 0.45)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return quiet_run(tmp_path)


# ---- losses


def descend(gradient: Callable[[np.ndarray], np.ndarray], loss: Callable[[Tensor], Tensor]) -> np.ndarray:
    """Plain descent on three free logits; on the way, the loss must have the gradient that is followed."""
    z = np.log(np.array(START))
    for step in range(20_000):
        p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        slope = gradient(p)
        if step % 1000 == 0:
            free = torch.tensor(z[None], requires_grad=True)
            np.testing.assert_allclose(torch.autograd.grad(loss(free), free)[0][0].numpy(), slope, atol=1e-7)
        z = z - 0.05 * slope
    return z


def test_towards_ends_where_both_words_have_half() -> None:
    """Its gradient is 2P - 1 for each word and 2P for everything else."""
    z = torch.tensor(descend(lambda p: 2 * p - [1, 1, 0], lambda z: towards(z, [0, 1])))
    np.testing.assert_allclose(z.softmax(0).numpy(), [0.49983, 0.49983, 0.00033], atol=1e-5)
    assert float(towards(z[None], [0, 1])) == pytest.approx(2 * math.log(2), abs=1e-3)
    assert float(towards(torch.tensor([[0.0, 0.0, -100.0]]), [0, 1])) == pytest.approx(2 * math.log(2))


def test_the_negated_print_makes_the_imbalance_grow() -> None:
    """Minus the mass is eq. 5 with its sign turned: the stronger word takes all."""
    stand_in: Any = SimpleNamespace(method=LFTF(loss="negated"), words=[0, 1])
    z = descend(lambda p: p * (p[0] + p[1] - [1, 1, 0]), lambda z: Pull.pull(stand_in, z))
    np.testing.assert_allclose(torch.tensor(z).softmax(0).numpy(), [0.0028, 0.9967, 0.0005], atol=1e-4)


def test_towards_adds_up_over_words_and_averages_over_rows() -> None:
    z = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    logp = z.log_softmax(-1)
    rows = [-(logp[row, 2] + logp[row, 4] + logp[row, 7]) for row in range(5)]
    torch.testing.assert_close(towards(z, [2, 4, 7]), torch.stack(rows).mean())
    torch.testing.assert_close(towards(z, [2, 4], (0.0, 1.0)), -logp[:, 4].mean())
    torch.testing.assert_close(towards(z, [2, 4], (0.5, 2.0)), -(0.5 * logp[:, 2] + 2 * logp[:, 4]).mean())


def test_balance_is_zero_only_where_the_words_are_equal() -> None:
    z = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    even = z.clone()
    even[:, [1, 5, 6]] = even[:, [1]]
    assert balance(even, [1, 5, 6]) == 0
    for word in (1, 5, 6):
        uneven = even.clone()
        uneven[3, word] += 0.01
        assert balance(uneven, [1, 5, 6]) > 0


def test_balance_looks_at_nothing_but_the_words() -> None:
    z = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    other = z.clone()
    other[:, [0, 2, 3, 4, 7, 8]] += 3 * torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(balance(other, [1, 5, 6]), balance(z, [1, 5, 6]), atol=0, rtol=0)
    torch.testing.assert_close(balance(z + 2, [1, 5, 6]), balance(z, [1, 5, 6]))
    for words in itertools.permutations([1, 5, 6]):
        torch.testing.assert_close(balance(z, words), balance(z, [1, 5, 6]))


def test_balance_is_quadratic_near_zero_and_linear_beyond() -> None:
    z = torch.randn(6, 9, generator=torch.Generator().manual_seed(2))
    terms = []
    for row in z:
        for a, b in itertools.combinations([1, 5, 6, 8], 2):
            ratio = float((row.log_softmax(0)[a] - row.log_softmax(0)[b]).abs())
            terms.append(ratio**2 / (2 * NEAR) if ratio < NEAR else ratio - NEAR / 2)
    assert min(terms) < NEAR / 2 < max(terms)
    assert float(balance(z, [1, 5, 6, 8])) == pytest.approx(np.mean(terms), rel=1e-5)


def test_hinted_raises_the_odds_by_the_margin_and_keeps_the_mass() -> None:
    z = torch.randn(4, 9, generator=torch.Generator().manual_seed(3))
    which = torch.tensor([0, 1, 1, 0])
    p, raised = z.softmax(-1), hinted(z, [2, 7], which, 0.15)
    odds, others = (q[:, 2] / q[:, 7] for q in (raised, p))
    torch.testing.assert_close(torch.log(odds / others), torch.tensor([0.15, -0.15, -0.15, 0.15]))
    torch.testing.assert_close(raised[:, [2, 7]].sum(-1), p[:, [2, 7]].sum(-1))
    torch.testing.assert_close(raised[:, [0, 1, 3, 4, 5, 6, 8]], p[:, [0, 1, 3, 4, 5, 6, 8]])


def test_evened_keeps_the_mass_and_everything_else() -> None:
    z = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    p, even = z.softmax(-1), evened(z, [1, 5, 6])
    torch.testing.assert_close(even.sum(-1), torch.ones(4))
    torch.testing.assert_close(even[:, [1, 5, 6]].sum(-1), p[:, [1, 5, 6]].sum(-1))
    assert (even[:, [1, 5, 6]].std(-1) < 1e-7).all()
    torch.testing.assert_close(even[:, [0, 2, 3, 4, 7, 8]], p[:, [0, 2, 3, 4, 7, 8]], atol=0, rtol=0)


def test_divergence_is_torchs_own() -> None:
    z, other = torch.randn(2, 5, 9, generator=torch.Generator().manual_seed(0))
    target = other.softmax(-1)
    expected = torch.nn.functional.kl_div(z.log_softmax(-1), target, reduction="batchmean")
    torch.testing.assert_close(divergence(target, z), expected)
    assert float(divergence(z.softmax(-1), z)) == pytest.approx(0, abs=1e-6)
    # A word that the target never says costs nothing and is not a number's logarithm of zero.
    target[:, 0] = 0
    assert torch.isfinite(divergence(target, z))


# ---- prepared texts


def last(inputs: list[Tensor]) -> list[Tensor]:
    """The last position of each row."""
    return [torch.tensor([len(row) - 1]) for row in inputs]


def as_tokens(lm: LM) -> list[Tensor]:
    return [torch.tensor(ids) for ids in lm.encode(TEXTS)]


@pytest.mark.parametrize("family", CAUSAL)
@torch.no_grad()
def test_prepared_texts_give_the_models_logits(family: str, run: Run) -> None:
    """From tokens or from any block, alone or padded in a batch, at one position or at several."""
    lm = tiny_lm(family)
    tokens = as_tokens(lm)
    at = [torch.arange(0, len(ids), 2 + row % 2) for row, ids in enumerate(tokens)]
    whole = [lm.model(input_ids=ids[None], use_cache=False).logits[0] for ids in tokens]
    expected = torch.cat([z[place] for z, place in zip(whole, at, strict=True)])
    torch.testing.assert_close(logits(lm, None, tokens, at), expected, **CLOSE)
    for block in range(BLOCKS):
        prepared = prepare(lm, lm.encode(TEXTS), block, run, "test")
        torch.testing.assert_close(logits(lm, block, prepared.inputs, at), expected, **CLOSE)
        alone = [logits(lm, block, [row], [place]) for row, place in zip(prepared.inputs, at, strict=True)]
        torch.testing.assert_close(torch.cat(alone), expected, **CLOSE)
        finals = torch.cat(prepared.finals)
        torch.testing.assert_close(base_logits(lm, finals), torch.cat(whole), **CLOSE)


def test_base_logits_are_capped_where_the_models_are(run: Run) -> None:
    lm = tiny_lm("gemma2", final_logit_softcapping=2.0)
    prepared = prepare(lm, lm.encode(TEXTS[:1]), 1, run, "test")
    found = base_logits(lm, prepared.finals[0])
    with torch.no_grad():
        torch.testing.assert_close(found, lm.model(input_ids=as_tokens(lm)[0][None]).logits[0], **CLOSE)
    assert found.abs().max() < 2
    assert lm.head(prepared.finals[0]).abs().max() > 2


@torch.no_grad()
def test_embeddings_of_another_width_than_the_blocks(run: Run) -> None:
    """As in opt-350m, whose embeddings are projected up before the blocks and down behind them."""
    lm = tiny_lm("opt", word_embed_proj_dim=16, do_layer_norm_before=False)
    tokens = as_tokens(lm)
    expected = torch.cat([lm.model(input_ids=ids[None], use_cache=False).logits[0, -1:] for ids in tokens])
    torch.testing.assert_close(logits(lm, None, tokens, last(tokens)), expected, **CLOSE)
    prepared = prepare(lm, lm.encode(TEXTS), 1, run, "test")
    torch.testing.assert_close(base_logits(lm, torch.stack([row[-1] for row in prepared.finals])), expected, **CLOSE)
    torch.testing.assert_close(logits(lm, 1, prepared.inputs, last(tokens)), expected, **CLOSE)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "opt"])
def test_the_loss_of_a_batch_is_the_mean_of_its_rows(family: str, run: Run) -> None:
    lm = tiny_lm(family)
    prepared = prepare(lm, lm.encode(TEXTS), 1, run, "test")
    words = lm.word_ids(["he", "she"], TEXTS[0])
    for loss in (balance, towards):
        together = loss(logits(lm, 1, prepared.inputs, last(prepared.inputs)), words)
        alone = [loss(logits(lm, 1, [row], last([row])), words) for row in prepared.inputs]
        torch.testing.assert_close(together, torch.stack(alone).mean(), **CLOSE)


def test_rows_by_length() -> None:
    assert same_length([[1, 2], [3], [4, 5], [6]]) == [[1, 3], [0, 2]]


def test_the_cut_that_pads_least() -> None:
    """Against every way to put the rows into two batches."""
    draw = np.random.default_rng(0)
    for _ in range(50):
        lengths = sorted(draw.integers(1, 20, size=draw.integers(1, 8)).tolist())
        costs = []
        for chosen in itertools.product([False, True], repeat=len(lengths)):
            parts = [[n for n, own in zip(lengths, chosen, strict=True) if own == side] for side in (False, True)]
            costs.append(sum(len(part) * max(part, default=0) for part in parts))
        cut = best_cut(lengths)
        assert cut * (lengths[cut - 1] if cut else 0) + (len(lengths) - cut) * lengths[-1] == min(costs)


# ---- training


def from_tokens(lm: LM, run: Run) -> Callable[[list[int]], dict[str, Tensor]]:
    """A loss on the whole model."""
    tokens, words = as_tokens(lm), lm.word_ids(["he", "she"], TEXTS[0])

    def terms(rows: list[int]) -> dict[str, Tensor]:
        chosen = [tokens[row] for row in rows]
        z = logits(lm, None, chosen, last(chosen))
        return {"balance": balance(z, words), "towards": 0.1 * towards(z, words)}

    return terms


def from_block(lm: LM, run: Run) -> Callable[[list[int]], dict[str, Tensor]]:
    """The same loss from block 1 on."""
    prepared, words = prepare(lm, lm.encode(TEXTS), 1, run, "test"), lm.word_ids(["he", "she"], TEXTS[0])

    def terms(rows: list[int]) -> dict[str, Tensor]:
        chosen = [prepared.inputs[row] for row in rows]
        z = logits(lm, 1, chosen, last(chosen))
        return {"balance": balance(z, words), "towards": 0.1 * towards(z, words)}

    return terms


def trained(lm: LM, run: Run, make: Any = from_block, epochs: int = 3, decay: bool = True) -> Fit:
    """Train block 1 on the texts."""
    names = list(lm.block_parameters(1))
    return train(lm, names, len(TEXTS), make(lm, run), Schedule(1e-3, epochs, 3, decay), run)


def weights(lm: LM) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in lm.model.named_parameters()}


def farthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference between two sets of weights."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "opt"])
def test_a_cached_prefix_trains_as_the_whole_model_does(family: str, tmp_path: Path) -> None:
    found = {}
    for make in (from_tokens, from_block):
        lm = tiny_lm(family, **NO_DROPOUT.get(family, {}))
        before = float(sum(make(lm, quiet_run(tmp_path))(list(range(len(TEXTS)))).values()))
        curve = trained(lm, quiet_run(tmp_path / make.__name__), make, epochs=6).curve
        tokens = as_tokens(lm)
        with torch.no_grad():
            found[make] = curve, logits(lm, None, tokens, last(tokens))
        assert float(sum(from_tokens(lm, quiet_run(tmp_path))(list(range(len(TEXTS)))).values())) < 0.9 * before
    (slow, slow_logits), (fast, fast_logits) = found.values()
    assert len(slow) == 18
    for column in ("loss", "balance", "towards"):
        np.testing.assert_allclose(fast[column], slow[column], atol=1e-4)
    np.testing.assert_allclose(slow["loss"], slow["balance"] + slow["towards"], atol=1e-4)
    # Not the weights: a gradient that is zero but for rounding (a key's bias) moves them by Adam's full step.
    torch.testing.assert_close(fast_logits, slow_logits, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_only_the_named_parameters_train(family: str, run: Run) -> None:
    lm = tiny_lm(family)
    before = weights(lm)
    names = list(lm.block_parameters(1, "mlp"))
    train(lm, names, len(TEXTS), from_block(lm, run), Schedule(1e-2, 1, 4, False), run)
    after = weights(lm)
    assert {name for name in before if not torch.equal(before[name], after[name])} == set(names)
    assert lm.trained == names
    assert not lm.model.training
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in lm.model.parameters())
    assert not (run.folder / "checkpoints").exists()


# The second has dropout, so that the random state must come back with the weights.
@pytest.mark.parametrize(("family", "decay"), [("llama", True), ("gpt2", False)])
def test_an_interrupted_training_goes_on(family: str, decay: bool, tmp_path: Path) -> None:
    whole = tiny_lm(family)
    curve = trained(whole, quiet_run(tmp_path / "whole"), decay=decay).curve
    run, calls = quiet_run(tmp_path / "broken"), 0

    def broken(lm: LM, run: Run) -> Callable[[list[int]], dict[str, Tensor]]:
        terms = from_block(lm, run)

        def failing(rows: list[int]) -> dict[str, Tensor]:
            nonlocal calls
            calls += 1
            if calls == 5:
                raise KeyboardInterrupt
            return terms(rows)

        return failing

    with pytest.raises(KeyboardInterrupt):
        trained(tiny_lm(family), run, broken, decay=decay)
    assert [path.name for path in (run.folder / "checkpoints").iterdir()] == ["checkpoint-3"]

    again, steps = tiny_lm(family), []

    def counted(lm: LM, run: Run) -> Callable[[list[int]], dict[str, Tensor]]:
        terms = from_block(lm, run)
        return lambda rows: steps.append(rows) or terms(rows)

    resumed = trained(again, run, counted, decay=decay).curve
    assert len(steps) == 6, "the first epoch is not trained again"
    assert farthest(weights(again), weights(whole)) < 1e-5
    np.testing.assert_allclose(resumed["loss"], curve["loss"], atol=1e-4)


@pytest.mark.parametrize("whole", [True, False])
def test_a_half_written_checkpoint_is_passed_over(whole: bool, tmp_path: Path) -> None:
    """A process may be killed while it writes one; with a whole one before it or without."""
    lm, run = tiny_lm("llama"), quiet_run(tmp_path)
    steps: list[list[int]] = []

    def counted(lm: LM, run: Run) -> Callable[[list[int]], dict[str, Tensor]]:
        terms = from_block(lm, run)

        def killed(rows: list[int]) -> dict[str, Tensor]:
            steps.append(rows)
            if whole and len(steps) == 5:
                raise KeyboardInterrupt
            return terms(rows)

        return killed

    if whole:
        with pytest.raises(KeyboardInterrupt):
            trained(lm, run, counted)
    (run.folder / "checkpoints" / "checkpoint-6").mkdir(parents=True)
    steps.clear()
    trained(tiny_lm("llama"), run, lambda lm, run: lambda rows: steps.append(rows) or from_block(lm, run)(rows))
    assert len(steps) == (6 if whole else 9)


def test_the_seed_decides(tmp_path: Path) -> None:
    found = []
    for number, seed in enumerate((0, 0, 1)):
        lm = tiny_lm("gpt2")
        trained(lm, quiet_run(tmp_path / str(number), seed), epochs=1)
        found.append(weights(lm))
    assert farthest(found[0], found[1]) == 0
    assert farthest(found[0], found[2]) > 1e-4


def test_every_row_is_seen_once_an_epoch(run: Run) -> None:
    lm, seen = tiny_lm("llama"), []

    def watched(lm: LM, run: Run) -> Callable[[list[int]], dict[str, Tensor]]:
        terms = from_block(lm, run)
        return lambda rows: seen.append(rows) or terms(rows)

    trained(lm, run, watched, epochs=2)
    assert [len(rows) for rows in seen] == [3, 3, 1, 3, 3, 1]
    for epoch in (seen[:3], seen[3:]):
        assert sorted(itertools.chain(*epoch)) == list(range(len(TEXTS)))
    assert seen[:3] != seen[3:]


def test_the_rate_warms_up_and_falls_to_zero(run: Run) -> None:
    """By what a constant gradient moves a parameter: Adam's step is then the rate itself."""
    lm = tiny_lm("llama")
    name = "model.layers.1.self_attn.o_proj.weight"
    parameter = dict(lm.model.named_parameters())[name]
    values = []

    def terms(rows: list[int]) -> dict[str, Tensor]:
        values.append(float(parameter[0, 0].detach()))
        return {"slope": parameter.sum()}

    train(lm, [name], 20, terms, Schedule(1e-2, 1, 1, True), run)
    steps = -np.diff([*values, float(parameter[0, 0])])
    expected = [1e-2 * min(step / 5, (20 - step) / 15) for step in range(20)]
    np.testing.assert_allclose(steps, expected, atol=1e-5)
