"""Low-rank adapters inside a model: put in before training, folded into the weights when the training is over."""

from typing import NamedTuple

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

__all__ = ["Adapter", "add_adapters", "fold_adapters", "merge_adapters"]


class Adapter(NamedTuple):
    """The size of the adapters: W + alpha / rank * B A."""

    rank: int
    alpha: int
    dropout: float


def add_adapters(model: PreTrainedModel, adapter: Adapter) -> list[str]:
    """Adapters on every linear projection but the output head, in place; gives the names of what they can train."""
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)}
    head = model.get_output_embeddings()
    outside = {id(module) for module in head.modules()} if head is not None else set()
    targets = [name for name, module in linear.items() if id(module) not in outside]
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=targets,
        # GPT-2 keeps its weights the other way round.
        fan_in_fan_out=any(isinstance(linear[name], Conv1D) for name in targets),
    )
    inject_adapter_in_model(config, model)
    added = {name: parameter for name, parameter in model.named_parameters() if ".lora_" in name}
    for parameter in added.values():
        # Steps of Adam are smaller than what half precision can tell apart.
        parameter.data = parameter.data.float()
    return list(added)


def merge_adapters(model: nn.Module) -> None:
    """Add the adapters to the weights they stand beside: the model answers the same, as fast as without them.

    Beside weights of four bits they stay, because rounding the sum would change the answers."""
    for module in model.modules():
        if isinstance(module, LoraLayer) and not module.merged and can_merge(module):
            module.merge()


def can_merge(layer: LoraLayer) -> bool:
    """Whether the weights beside an adapter are ordinary numbers."""
    return torch.is_floating_point(layer.get_base_layer().weight)  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def fold_adapters(model: nn.Module) -> None:
    """Merge the adapters and take them out: what is left is a model of the ordinary architecture."""
    merge_adapters(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, LoraLayer) and can_merge(module):
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, module.base_layer)
