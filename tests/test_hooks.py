"""Hooks: starting in the middle, reading a few positions, and a model that is left as it was found."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from tiny import BLOCKS, CAUSAL, assert_clean, tiny_lm
from torch import Tensor

from evenhand.hooks import block_inputs, head_inputs, starting_at, through_head
from evenhand.lm import LM

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def tokens(rows: int = 2, length: int = 14) -> Tensor:
    """Random tokens, more than a sliding window of them. [n, s]"""
    return torch.randint(4, 700, (rows, length), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module", params=CAUSAL)
def lm(request: pytest.FixtureRequest) -> LM:
    return tiny_lm(request.param)


@torch.no_grad()
def test_starting_at_any_block_gives_the_whole_models_logits(lm: LM) -> None:
    ids = tokens()
    with block_inputs(lm, range(BLOCKS + 1)) as states:
        whole = lm.model(input_ids=ids, use_cache=False).logits
    for block in range(BLOCKS):
        # What the model is given does not matter; only its shape does.
        blank = torch.zeros_like(states[block])
        with starting_at(lm, block, states[block]):
            found = lm.model(inputs_embeds=blank, use_cache=False).logits
        torch.testing.assert_close(found, whole, **CLOSE)
        with starting_at(lm, block, states[block].flip(-1)):
            moved = lm.model(inputs_embeds=blank, use_cache=False).logits
        assert (moved - whole).abs().max() > 1e-3, "the model does start from what it is given"
    assert_clean(lm)


@pytest.mark.parametrize("family", CAUSAL)
@torch.no_grad()
def test_starting_far_up_gives_the_whole_models_logits(family: str) -> None:
    """Many blocks are skipped, and behind the head's input all of them."""
    lm = tiny_lm(family, num_hidden_layers=6)
    ids = tokens()
    with block_inputs(lm, [5]) as states:
        whole = lm.model(input_ids=ids, use_cache=False).logits
    with starting_at(lm, 5, states[5]):
        found = lm.model(inputs_embeds=torch.zeros_like(states[5]), use_cache=False).logits
    torch.testing.assert_close(found, whole, **CLOSE)
    with starting_at(lm, 5, states[5]), head_inputs(lm) as read:
        lm.model(inputs_embeds=torch.zeros_like(states[5]), use_cache=False)
    torch.testing.assert_close(through_head(lm, read[0][1]), whole[1], **CLOSE)


@torch.no_grad()
def test_block_inputs_chain(lm: LM) -> None:
    """What a block reads is what the one before it has written."""
    written: dict[int, Tensor] = {}

    def write(number: int) -> Callable[..., None]:
        def keep(_: Any, __: Any, output: Any) -> None:
            written[number] = output[0] if isinstance(output, tuple) else output

        return keep

    handles = [block.register_forward_hook(write(number)) for number, block in enumerate(lm.blocks)]
    try:
        with block_inputs(lm, range(BLOCKS + 1)) as states:
            lm.model(input_ids=tokens(), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    assert sorted(states) == list(range(BLOCKS + 1))
    for number in range(BLOCKS):
        assert states[number].shape == (2, 14, 32)
        torch.testing.assert_close(states[number + 1], written[number], atol=0, rtol=0)


@pytest.mark.parametrize("family", CAUSAL)
@torch.no_grad()
def test_head_inputs_are_the_last_hidden_states(family: str) -> None:
    # A model of its own, because transformers leaves hooks behind when it is asked for hidden states.
    lm = tiny_lm(family)
    with head_inputs(lm) as read:
        output = lm.model(input_ids=tokens(), use_cache=False, output_hidden_states=True)
    assert len(read) == 1
    torch.testing.assert_close(read[0], output.hidden_states[-1])


@torch.no_grad()
def test_a_few_positions_through_the_head_equal_slicing(lm: LM) -> None:
    ids = tokens()
    whole = lm.model(input_ids=ids, use_cache=False).logits
    rows, positions = torch.tensor([1, 0, 0, 1, 1]), torch.tensor([13, 0, 7, 7, 13])
    with head_inputs(lm) as read:
        output = lm.model(input_ids=ids, use_cache=False)
    assert output.logits.shape == (2, 0, 700), "the head has nothing to do"
    torch.testing.assert_close(through_head(lm, read[0][rows, positions]), whole[rows, positions], **CLOSE)
    assert_clean(lm)


def managers(lm: LM) -> dict[str, AbstractContextManager[Any]]:
    """Every way to look into a model."""
    return {
        "block_inputs": block_inputs(lm, range(BLOCKS + 1)),
        "head_inputs": head_inputs(lm),
        "starting_at": starting_at(lm, 2, torch.zeros(1, 1, 32)),
        "starting_at the end": starting_at(lm, BLOCKS, torch.zeros(1, 1, 32)),
    }


def fail(lm: LM) -> None:
    """Go wrong while something hangs on the model."""
    modules = list(lm.model.modules())
    assert any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in modules)
    raise ZeroDivisionError


@pytest.mark.parametrize("name", list(managers(tiny_lm("llama"))))
def test_nothing_is_left_after_an_exception(lm: LM, name: str) -> None:
    with torch.no_grad():
        before = lm.model(input_ids=tokens(), use_cache=False).logits
    with pytest.raises(ZeroDivisionError), managers(lm)[name]:
        fail(lm)
    assert_clean(lm)
    with torch.no_grad():
        torch.testing.assert_close(lm.model(input_ids=tokens(), use_cache=False).logits, before, atol=0, rtol=0)


def test_nothing_is_left_when_the_model_itself_fails(lm: LM) -> None:
    wrong = torch.tensor([[10**6]])
    with pytest.raises((IndexError, RuntimeError)), starting_at(lm, 1, torch.zeros(1, 1, 32)), head_inputs(lm):
        lm.model(input_ids=wrong, use_cache=False)
    assert_clean(lm)


def test_gradients_pass_through_the_started_block() -> None:
    """From the captured input, the block's gradient is that of the whole model."""
    lm = tiny_lm("gemma2")
    ids = tokens()
    parameters = list(lm.blocks[1].parameters())
    whole = torch.autograd.grad(lm.model(input_ids=ids, use_cache=False).logits.pow(2).mean(), parameters)
    with torch.no_grad(), block_inputs(lm, [1]) as states:
        lm.model(input_ids=ids, use_cache=False)
    with starting_at(lm, 1, states[1]):
        output = lm.model(inputs_embeds=torch.zeros_like(states[1]), use_cache=False)
    for found, expected in zip(torch.autograd.grad(output.logits.pow(2).mean(), parameters), whole, strict=True):
        torch.testing.assert_close(found, expected, **CLOSE)
