"""Context managers that look into a model or start it in the middle; nothing is left on it afterwards.

n rows, s positions, d hidden size, m positions read."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from evenhand.lm import LM

__all__ = ["attention_shown", "block_inputs", "head_inputs", "narrowed", "starting_at", "through_head"]


GIVE_TUPLES = ("bloom", "falcon")
"""The families whose blocks return their attention beside the hidden states."""


@contextlib.contextmanager
def hooked(handles: list[Any]) -> Iterator[None]:
    """Remove hooks on the way out, whatever happens."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The hidden states a block is called with."""
    return args[0] if args else kwargs["hidden_states"]


@contextlib.contextmanager
def attention_shown(lm: LM) -> Iterator[None]:
    """Only plain ("eager") attention shows its maps; the model gets its own back."""
    before = lm.model.config._attn_implementation
    # Blocks and masks ask the config at every pass; `set_attn_implementation` would leave Falcon as it is.
    lm.model.config._attn_implementation = "eager"
    try:
        yield
    finally:
        lm.model.config._attn_implementation = before


@contextlib.contextmanager
def block_inputs(lm: LM, blocks: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """What each of these blocks reads in the next forward pass; number len(blocks) is what the last one writes."""
    seen: dict[int, Tensor] = {}

    def reader(block: int) -> Callable[..., None]:
        def read(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen[block] = given(args, kwargs)

        return read

    def written(_: nn.Module, __: Any, output: Any) -> None:
        seen[len(lm.blocks)] = output[0] if isinstance(output, tuple) else output

    handles: list[Any] = [
        lm.blocks[block].register_forward_pre_hook(reader(block), with_kwargs=True)
        for block in blocks
        if block < len(lm.blocks)
    ]
    if len(lm.blocks) in blocks:
        handles.append(lm.blocks[-1].register_forward_hook(written))
    with hooked(handles):
        yield seen


@contextlib.contextmanager
def head_inputs(lm: LM) -> Iterator[list[Tensor]]:
    """What the output head would read: the hidden states after the final norm. The head itself gets nothing to do,
    because it is much of the work and few of its positions are ever needed: `through_head` gives those."""
    seen: list[Tensor] = []

    def withhold(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        seen.append(args[0])
        return (args[0][:, :0], *args[1:])

    with hooked([lm.head.register_forward_pre_hook(withhold)]):
        yield seen


def through_head(lm: LM, states: Tensor) -> Tensor:
    """The logits of states that the head would read [m, d]: one pass for all of them. [m, v]

    The model's own forward is used, because some families cap or scale the logits behind the head."""

    def replace(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (states.unsqueeze(0), *args[1:])

    nothing = torch.zeros(1, 1, dtype=torch.long, device=lm.device)
    with starting_at(lm, len(lm.blocks), states), hooked([lm.head.register_forward_pre_hook(replace)]):
        return lm.model(input_ids=nothing, use_cache=False).logits[0].float()


@contextlib.contextmanager
def narrowed(lm: LM, positions: Tensor) -> Iterator[None]:
    """Let the last block's MLP work on one position of each row [n], where nothing else is read behind it.

    Its output [n, 1, d] is added to every position of the residual stream, which is right at the one that counts."""
    if not lm.plain_mlp:
        yield
        return

    def select(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        rows = torch.arange(len(positions), device=positions.device)
        return (args[0][rows, positions].unsqueeze(1), *args[1:])

    with hooked([lm.blocks[-1].get_submodule("mlp").register_forward_pre_hook(select)]):
        yield


@contextlib.contextmanager
def starting_at(lm: LM, block: int, hidden: Tensor) -> Iterator[None]:
    """Run the model from a block on, as if the blocks below had written `hidden` [n, s, d].

    The model's own forward still makes masks and positions, so this holds for every family."""

    def replace(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (hidden, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": hidden}

    def skip(*args: Any, **kwargs: Any) -> Any:
        states = given(args, kwargs)
        return (states, None) if lm.model.config.model_type in GIVE_TUPLES else states

    below = lm.blocks[:block]
    for module in below:
        module.forward = skip
    try:
        first = lm.blocks[block : block + 1]
        with hooked([module.register_forward_pre_hook(replace, with_kwargs=True) for module in first]):
            yield
    finally:
        for module in below:
            del module.forward
