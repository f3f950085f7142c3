"""The printed CrAWD block and head against plain loops and against the base model."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from tiny import quiet_run, tiny_lm, tiny_model
from torch import Tensor, nn

from evenhand.crawd_layer import CrawdConfig, CrawdHead, CrossAttentionDecay, given, insert, riding
from evenhand.lm import LM
from evenhand.modeling_crawd import CrawdForSequenceClassification, remember
from evenhand.scoring import token_logprobs

FAMILIES = ("llama", "gpt2", "opt", "gemma2", "t5")
SCOPES = ("matrix", "row")
REFERENCE = torch.tensor([1, 20, 30, 40, 50])


def shaken(module: nn.Module, seed: int = 5) -> None:
    """Move every parameter of the block and of what follows it, as training would."""
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not name.startswith("head."):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=drawn))


def model_with_head(family: str, trained: bool = True, **options: Any) -> tuple[Any, CrawdHead]:
    """A tiny model with a head that remembers five reference tokens and, if trained, a cutoff too."""
    model = tiny_model(family)
    torch.manual_seed(0)
    head = insert(model, CrawdConfig(model.config, **options))
    remember(model, REFERENCE)
    if trained:
        shaken(head)
        head.block.threshold.fill_(0.22)
    return model, head


def some_ids(n: int, s: int, seed: int = 0) -> Tensor:
    """Token ids."""
    return torch.randint(5, 690, (n, s), generator=torch.Generator().manual_seed(seed))


def logits(model: Any, ids: Tensor, **more: Any) -> Tensor:
    """Logits in float32; an encoder-decoder reads the same ids on both sides."""
    if model.config.is_encoder_decoder:
        more["decoder_input_ids"] = ids
    with torch.no_grad():
        return model(input_ids=ids, **more).logits


def block_of(width: int = 12, heads: int = 3, **options: Any) -> CrossAttentionDecay:
    """A block by itself."""
    torch.manual_seed(1)
    return CrossAttentionDecay(width, CrawdConfig(heads=heads, reference_length=7, **options))


def slowly_decayed(beta: Tensor, x_mask: Tensor, b_mask: Tensor, config: CrawdConfig) -> Tensor:
    """Eq. 2 with loops over samples, heads, rows and entries."""
    result = beta.clone()
    n, h, s, m = beta.shape

    def cut(entries: list[tuple[int, ...]]) -> None:
        values = sorted((beta[entry].item() for entry in entries), reverse=True)
        count = round(config.share * len(values))
        for entry in entries:
            if count and beta[entry].item() >= values[count - 1]:
                result[entry] = config.decay * beta[entry]

    for row in range(n):
        for head in range(h):
            places = [[(row, head, i, j) for j in range(m) if b_mask[j]] if x_mask[row, i] else [] for i in range(s)]
            for entries in places if config.scope == "row" else [list(itertools.chain(*places))]:
                cut(entries)
    return result


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.4, 1.0])
def test_decay_is_the_loop(scope: Any, share: float) -> None:
    """Padding of x and b counts for nothing, ties are decayed together."""
    block = block_of(scope=scope, share=share).eval()
    beta = torch.rand(3, 3, 6, 7)
    beta[0, 0, 1, 2:5] = 0.9  # a tie
    x_mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    b_mask = torch.tensor([1, 1, 1, 1, 1, 0, 0])
    beta = beta * b_mask
    expected = slowly_decayed(beta, x_mask, b_mask, block.config)
    assert torch.equal(block.decayed(beta, x_mask, b_mask, exact=True), expected)
    assert torch.equal(block.train().decayed(beta, x_mask, b_mask), expected)


@pytest.mark.parametrize("scope", SCOPES)
def test_identities(scope: Any) -> None:
    """Lambda 1 and no share change nothing; the whole share scales everything."""
    beta = torch.rand(2, 3, 4, 7).softmax(-1)
    everything = torch.ones(7)
    for training in (False, True):
        for options in ({"decay": 1.0}, {"share": 0.0}):
            block = block_of(scope=scope, **options).train(training)
            assert torch.equal(block.decayed(beta, None, everything, exact=True), beta)
        block = block_of(scope=scope, share=1.0).train(training)
        assert torch.equal(block.decayed(beta, None, everything, exact=True), 0.2 * beta)


def test_undecayed_attention_is_torchs_own() -> None:
    """With lambda 1 the weights and what they mix are nn.MultiheadAttention's."""
    block = block_of(decay=1.0, dropout=0.0).eval()
    shaken(block)
    x, b, mask = torch.randn(2, 4, 12), torch.randn(7, 12), torch.tensor([1, 1, 1, 1, 1, 0, 1]).bool()
    keys = b.expand(2, -1, -1)
    mixed, beta = block.attention(
        x, keys, keys, key_padding_mask=(~mask).expand(2, -1), average_attn_weights=False, need_weights=True
    )
    torch.testing.assert_close(block.weights(x, b, mask), beta)
    between = block.norm(x + mixed)
    torch.testing.assert_close(block(x, b, None, mask), block.last_norm(between + block.feed_forward(between)))


def test_dropout_is_for_training() -> None:
    """It thins the weights in training, by the share asked for, and only there."""
    block, plain = block_of(dropout=0.5), block_of(dropout=0.0)
    x, b, everything = torch.randn(2, 4, 12), torch.randn(7, 12), torch.ones(7)
    assert torch.equal(block.eval()(x, b, None, everything), plain.eval()(x, b, None, everything))
    first, second = (block.train()(x, b, None, everything) for _ in range(2))
    assert not torch.allclose(first, second)


def test_parameter_counts() -> None:
    """The attention has 4d^2 + 4d numbers; 67,125,248 at the width of the paper's model."""
    for width in (12, 4096):
        with torch.device("meta"):
            block = CrossAttentionDecay(width, CrawdConfig())
        found = sum(parameter.numel() for parameter in block.attention.parameters())
        assert found == 4 * width**2 + 4 * width
    assert found == 67_125_248
    assert block.feed_forward[0].out_features == 1024
    assert [block_of(30, heads=8).heads, block_of(7, heads=8).heads, block_of(13, heads=8).heads] == [6, 7, 1]


def test_gradient_passes_the_decay_and_not_the_cutoff() -> None:
    """A finite difference on an entry that decays, one that does not, and the one the cutoff is read from."""
    block = block_of(share=0.3).train()
    beta = torch.rand(1, 1, 3, 7, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(1, 1, 3, 7, dtype=torch.float64)

    def value(given_beta: Tensor) -> Tensor:
        return (block.decayed(given_beta, None, torch.ones(7)) * weights).sum()

    (gradient,) = torch.autograd.grad(value(beta), beta)
    order = beta.detach().flatten().argsort(descending=True)
    factors = torch.where(beta.detach() >= beta.detach().flatten()[order[5]], 0.2, 1.0).double()
    torch.testing.assert_close(gradient, factors * weights, rtol=1e-6, atol=0)
    assert (factors < 1).sum() == 6
    for place in (order[0], order[5], order[-1]):
        moved = beta.detach().clone()
        moved.view(-1)[place] += 1e-7
        slope = (value(moved) - value(beta)).item() / 1e-7
        assert slope == pytest.approx(gradient.flatten()[place].item(), abs=1e-5)


def test_running_cutoff() -> None:
    """The first step is copied, later ones move a tenth; in use about the trained share is decayed."""
    block = block_of(share=0.4).train()
    x_mask, all_b = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]), torch.ones(7)
    taus = []
    for step in range(2):
        beta = torch.rand(2, 3, 4, 7, generator=torch.Generator().manual_seed(step)).softmax(-1)
        block.decayed(beta, x_mask, all_b)
        rows = [
            sorted(beta[row, :, :size].flatten(1).tolist()[h])[::-1] for row, size in ((0, 4), (1, 2)) for h in range(3)
        ]
        taus.append(torch.tensor([values[round(0.4 * len(values)) - 1] for values in rows]).view(2, 3).mean(0))
    torch.testing.assert_close(block.threshold, 0.9 * taus[0] + 0.1 * taus[1])
    before = block.threshold.clone()
    beta = torch.rand(40, 3, 4, 7).softmax(-1)
    share = (block.eval().decayed(beta, None, all_b) < beta).float().mean().item()
    assert share == pytest.approx(0.4, abs=0.08)
    assert torch.equal(block.threshold, before)
    # Without any training step each row is cut by itself.
    fresh, row = block_of().eval(), block_of(scope="row").eval()
    assert torch.equal(fresh.decayed(beta, None, all_b), row.decayed(beta, None, all_b))


@pytest.mark.parametrize("output", ["fuse", "wide"])
@pytest.mark.parametrize("family", FAMILIES)
def test_starts_at_the_base_model(family: str, output: Any) -> None:
    """Exactly the base model's logits, and another answer as soon as something moves; tied weights stay one."""
    base = logits(tiny_model(family), some_ids(2, 9))
    model, head = model_with_head(family, trained=False, output=output)
    assert torch.equal(logits(model, some_ids(2, 9)), base)
    inside = model.get_input_embeddings().weight is head.head.weight
    assert inside == bool(model.config.tie_word_embeddings)
    assert model.get_output_embeddings() is head
    assert head.weight is head.head.weight
    shaken(head)
    assert (logits(model, some_ids(2, 9)) - base).abs().max() > 0.1


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_nothing(family: str, scope: Any) -> None:
    """Padding x on either side, or the reference, leaves the logits of the real tokens."""
    model, _ = model_with_head(family, scope=scope)
    ids, pad = some_ids(1, 6), torch.zeros(1, 3, dtype=torch.long)
    alone, ones, zeros = logits(model, ids), torch.ones_like(ids), torch.zeros_like(pad)
    right = logits(model, torch.cat([ids, pad], 1), attention_mask=torch.cat([ones, zeros], 1))[:, :6]
    torch.testing.assert_close(right, alone, rtol=1e-4, atol=1e-4)
    if family != "t5":
        mask = torch.cat([zeros, ones], 1)
        places = (mask.cumsum(1) - 1).clamp(min=0)
        left = logits(model, torch.cat([pad, ids], 1), attention_mask=mask, position_ids=places)[:, 3:]
        torch.testing.assert_close(left, alone, rtol=1e-4, atol=1e-4)
    remember(model, torch.cat([REFERENCE, pad[0]]), torch.cat([torch.ones(5), zeros[0]]))
    torch.testing.assert_close(logits(model, ids), alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scope", SCOPES)
def test_training_ignores_padding_too(scope: Any) -> None:
    """The exact cutoff of a padded row in a batch is that of the row alone."""
    model, head = model_with_head("llama", scope=scope, dropout=0.0)
    ids = some_ids(2, 6)
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    head.block.train()
    with given(head, x_mask=mask):
        together = logits(model, ids, attention_mask=mask)
    with given(head, x_mask=mask[1:, :4]):
        alone = logits(model, ids[1:, :4])
    torch.testing.assert_close(together[1:, :4], alone, rtol=1e-4, atol=1e-4)
    unmasked = logits(model, ids, attention_mask=mask)
    assert torch.allclose(unmasked[1, :4], alone[0], atol=1e-4) == (scope == "row")


@pytest.mark.parametrize(("scope", "training"), [("matrix", False), ("row", False), ("row", True)])
def test_no_token_sees_a_later_one(scope: Any, training: bool) -> None:
    """Another last token leaves all earlier logits, and another row leaves this one."""
    for family in ("llama", "gpt2"):
        model, head = model_with_head(family, scope=scope, dropout=0.0)
        head.block.train(training)
        ids = some_ids(2, 7)
        other = ids.clone()
        other[:, -1] = 9
        torch.testing.assert_close(logits(model, ids)[:, :-1], logits(model, other)[:, :-1])
        assert not torch.allclose(logits(model, ids)[:, -1], logits(model, other)[:, -1])
        torch.testing.assert_close(logits(model, ids)[:1], logits(model, ids[:1]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_generation_with_a_cache(family: str, scope: Any) -> None:
    """The same greedy tokens with a cache, without one, and from a loop of plain forwards."""
    model, _ = model_with_head(family, scope=scope)
    ids = some_ids(2, 5)
    how = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "attention_mask": torch.ones_like(ids)}
    cached = model.generate(ids, use_cache=True, **how)
    assert torch.equal(cached, model.generate(ids, use_cache=False, **how))
    assert len({tuple(row) for row in cached[:, -4:].tolist()}) == 2
    grown = torch.zeros(2, 1, dtype=torch.long) if family == "t5" else ids
    for _ in range(4):
        with torch.no_grad():
            more = {"decoder_input_ids": grown} if family == "t5" else {}
            found = model(input_ids=ids if more else grown, **more).logits[:, -1:]
        grown = torch.cat([grown, found.argmax(-1)], 1)
    assert torch.equal(cached, grown)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "gemma2"])
def test_riding_is_the_reference_given(family: str) -> None:
    """b as the last row of the batch, with its padding, is the same as its states given and as those remembered."""
    model, head = model_with_head(family, dropout=0.0)
    x, x_mask = some_ids(2, 8), torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    b_mask = torch.tensor([1] * 5 + [0] * 3)
    ids = torch.cat([x, torch.cat([REFERENCE, torch.zeros(3, dtype=torch.long)])[None]])
    head.block.train()
    with riding(head, b_mask, x_mask):
        rode = model(input_ids=ids, attention_mask=torch.cat([x_mask, b_mask[None]])).logits
    assert rode.shape == (2, 8, 700)
    states = model.base_model(input_ids=REFERENCE[None]).last_hidden_state[0]
    with given(head, states, None, x_mask):
        told = model(input_ids=x, attention_mask=x_mask).logits
    with given(head, x_mask=x_mask):
        remembered = model(input_ids=x, attention_mask=x_mask).logits
    real = x_mask.bool()
    torch.testing.assert_close(rode[real], told[real], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rode[real], remembered[real], rtol=1e-4, atol=1e-4)
    embeddings = model.get_input_embeddings().weight
    (through,) = torch.autograd.grad(rode[0].square().sum(), embeddings)
    assert through[REFERENCE[2]].abs().sum() > 0
    assert head.told.x_mask is None


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_the_engine_reads_it(tmp_path: Any, family: str, scope: Any) -> None:
    """evenhand's own likelihoods, which share prefixes and call the head apart, are those of a plain forward."""
    model, _ = model_with_head(family, scope=scope)
    lm = LM(model, tiny_lm(family).tokenizer, "crawd", "causal")
    stem = some_ids(1, 5)[0].tolist()
    items = [(stem, [11, 12, 13]), (stem, [11, 14]), (stem[:2], [500, 600]), ([1], [7])]
    found = token_logprobs(lm, items, quiet_run(tmp_path), "test")
    for (context, target), values in zip(items, found, strict=True):
        logp = logits(model, torch.tensor([[*context, *target]])).log_softmax(-1)[0]
        plain = [logp[len(context) - 1 + k, token].item() for k, token in enumerate(target)]
        np.testing.assert_allclose(values, plain, atol=1e-4)


def test_heat_map_and_bfloat16() -> None:
    """The weights before the decay sum to one, those after are smaller; a model in bfloat16 keeps its dtype."""
    model, head = model_with_head("llama")
    with torch.no_grad():
        states = model.base_model(input_ids=some_ids(2, 6)).last_hidden_state
    before, after = head.attention(states)
    assert before.shape == (2, 8, 6, 5)
    torch.testing.assert_close(before.sum(-1), torch.ones(2, 8, 6))
    assert torch.equal(after, torch.where(before >= head.block.threshold[0], 0.2 * before, before))
    full = logits(model, some_ids(2, 6))
    model = model.to(torch.bfloat16)
    half = logits(model, some_ids(2, 6))
    assert half.dtype == torch.bfloat16
    assert torch.corrcoef(torch.stack([full.flatten(), half.float().flatten()]))[0, 1] > 0.99
    head.block.float()  # a block trained in full precision inside such a model
    assert logits(model, some_ids(2, 6)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [("share", 1.2, "1"), ("share", -0.1, "0"), ("decay", 2.0, "1"), ("heads", 0, "1"), ("scope", "all", "row")],
)
def test_refusals(name: str, value: Any, bound: str) -> None:
    """A value outside its range is refused with the bound."""
    with pytest.raises(ValueError, match=rf"{name} is .*must.*\b{bound}\b"):
        CrawdConfig(**{name: value})
    model, head = model_with_head("gpt2")
    with pytest.raises(ValueError, match="already"):
        insert(model, head.config)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_classifier(family: str) -> None:
    """It fits eight rows with b riding along, and padding on either side changes nothing."""
    body = tiny_model(family).base_model
    torch.manual_seed(0)
    model = CrawdForSequenceClassification.from_base(body, CrawdConfig(body.config, num_labels=3, dropout=0.0))
    ids, labels = some_ids(8, 6), torch.arange(8) % 3
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train()
    losses = []
    for _ in range(40):
        loss = model(ids, labels=labels, reference_ids=REFERENCE).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[0] > math.log(3) / 2
    assert losses[-1] < 0.05
    model.eval()
    remember(model, REFERENCE)
    with torch.no_grad():
        alone = model(ids).logits
        assert torch.equal(alone.argmax(-1), labels)
        torch.testing.assert_close(model(ids, reference_ids=REFERENCE).logits, alone, rtol=1e-4, atol=1e-4)
        states = model.body(input_ids=ids).last_hidden_state
        final = torch.cat([states, model.block(states)], -1)[:, 0 if family == "bert" else -1]
        torch.testing.assert_close(model.classifier(final), alone, rtol=1e-4, atol=1e-4)
        padding = torch.zeros(8, 4, dtype=torch.long)
        right = model(torch.cat([ids, padding], 1), torch.cat([torch.ones_like(ids), padding], 1)).logits
    torch.testing.assert_close(right, alone, rtol=1e-4, atol=1e-4)


def test_what_is_kept_for_inference_follows_the_weights() -> None:
    """Keys and values of the reference are computed once, and again after any change of weights or reference."""
    model = tiny_model("llama")
    head = insert(model, CrawdConfig(base_config=model.config, scope="row", share=0.5))
    shaken(head)
    states = torch.randn(2, 3, head.in_features)
    with torch.no_grad():
        for change in (
            lambda: head.block.keep(torch.randn(4, head.in_features), torch.tensor([1, 1, 1, 0])),
            lambda: head.block.attention.in_proj_weight.mul_(1.5),
            lambda: head.block.reference.add_(1.0),
            lambda: head.load_state_dict({name: 0.5 * value for name, value in head.state_dict().items()}),
        ):
            before = head(states)
            change()
            after = head(states)
            assert (after - before).abs().max() > 1e-4
            block = head.block
            with given(head, block.reference.clone(), block.reference_mask.bool()):  # computed there and then
                assert torch.allclose(head(states), after, atol=1e-6)
