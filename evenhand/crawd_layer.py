"""CrAWD's layer as printed: one decayed cross-attention in front of a model's output head.

A copy of this file travels in every saved folder, so it needs torch and transformers and nothing else.
n rows, s positions, d width, m reference tokens, h heads, e width of a head, v vocabulary."""

import contextlib
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

__all__ = ["CrawdConfig", "CrawdHead", "CrossAttentionDecay", "given", "insert", "riding"]

# What generation, pipelines and the Trainer ask a config for; the base model's config answers.
DELEGATED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "tie_word_embeddings",
    "use_cache",
)
ABOVE = 2.0
"""A cutoff that no attention weight reaches."""
MOMENTUM = 0.1
"""How far one training step moves the remembered cutoff."""


class CrawdConfig(PretrainedConfig):
    """The base model's config and what CrAWD adds; heads that do not divide the width become the largest number below
    that does."""

    model_type = "crawd"
    _auto_class = "AutoConfig"

    def __init__(
        self,
        base_config: PretrainedConfig | dict[str, Any] | None = None,
        heads: int = 8,
        share: float = 0.4,
        decay: float = 0.2,
        scope: Literal["matrix", "row"] = "matrix",
        output: Literal["fuse", "wide"] = "fuse",
        feed_forward: int | None = None,
        dropout: float = 0.1,
        words: list[str] | None = None,
        reference_length: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name in DELEGATED:
            self.__dict__.pop(name, None)
        if isinstance(base_config, dict):
            base_config = AutoConfig.for_model(**base_config)
        self.base_config = base_config
        self.heads = heads
        self.share = share
        """The part of the weights that is decayed (the paper's K)."""
        self.decay = decay
        """What is left of a decayed weight (lambda)."""
        self.scope = scope
        """Whether the largest weights are looked for in a text's whole matrix, or in each position's row."""
        self.output = output
        """A map of [H_x, H_cross] to the width before the old head, or a second head for H_cross beside it."""
        self.feed_forward = feed_forward
        """Hidden size of the block's feed-forward layer; a quarter of the width where it is None."""
        self.dropout = dropout
        self.words = words or []
        """The reference words, for information."""
        self.reference_length = reference_length
        self.is_encoder_decoder = bool(base_config is not None and base_config.is_encoder_decoder)
        self.check()

    def check(self) -> None:
        """Refuse what the method is not defined for."""
        for name, most in (("share", 1.0), ("decay", 1.0), ("dropout", 1.0)):
            if not 0.0 <= getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie between 0 and {most:g}.")
        for name in ("heads", "feed_forward", "reference_length"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        for name, choices in (("scope", ("matrix", "row")), ("output", ("fuse", "wide"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be {' or '.join(choices)}.")

    def __getattr__(self, name: str) -> Any:
        """What the base model's config knows better."""
        base = self.__dict__.get("base_config")
        if name not in DELEGATED or base is None:
            raise AttributeError(f"CrawdConfig has no {name!r}")
        return getattr(base, name) if hasattr(base, name) else getattr(base.get_text_config(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        """The same on writing, so that the base model sees it."""
        base = self.__dict__.get("base_config")
        if name in DELEGATED and base is not None:
            setattr(base, name, value)
        else:
            super().__setattr__(name, value)

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PretrainedConfig:
        """The base model's."""
        base = self.__dict__.get("base_config")
        return self if base is None else base.get_text_config(decoder=decoder, encoder=encoder)


class Attention(NamedTuple):
    """The weights of every position on every reference token, for a heat map."""

    before: Tensor  # [n, h, s, m]
    after: Tensor  # [n, h, s, m]


class CrossAttentionDecay(nn.Module):
    """The cross-attention block (sections 4.3 and 4.4) and H_b, the states of the reference words it looks at.

    Scope "matrix" is exact in training. Later it could see neither later tokens nor a whole text that is written token
    by token, so it compares with `threshold`, the running mean of the cutoffs seen in training; every position is then
    on its own. Before the first training step there is none (NaN), and each row is cut by itself."""

    threshold: Tensor  # [h]
    reference: Tensor  # [m, d]
    reference_mask: Tensor  # [m]

    def __init__(self, width: int, config: CrawdConfig) -> None:
        super().__init__()
        self.config = config
        self.heads = next(heads for heads in range(min(config.heads, width), 0, -1) if width % heads == 0)
        hidden = config.feed_forward or max(1, width // 4)
        # Only its parameters are used: as it stands it lets nobody at the weights between softmax and values.
        self.attention = nn.MultiheadAttention(width, self.heads, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
        self.last_norm = nn.LayerNorm(width)
        self.trained = False
        """Whether a cutoff is known; asked once, because asking makes a GPU wait."""
        self.kept: tuple[Any, Tensor, Tensor] | None = None
        """Keys and values of the reference, and what they were made of."""
        self.register_buffer("threshold", torch.full((self.heads,), torch.nan))
        self.register_buffer("reference", torch.zeros(config.reference_length, width))
        self.register_buffer("reference_mask", torch.zeros(config.reference_length, dtype=torch.bool))

    def keep(self, reference: Tensor, mask: Tensor) -> None:
        """Look at these reference states [m, d] (mask [m]) from now on; they are saved with the weights."""
        self.reference = reference.detach().clone().to(self.reference)
        self.reference_mask = mask.to(self.reference_mask).clone()
        self.config.reference_length = len(reference)

    def forward(
        self,
        states: Tensor,
        reference: Tensor | None = None,
        x_mask: Tensor | None = None,
        b_mask: Tensor | None = None,
        exact: bool = False,
    ) -> Tensor:
        """H_cross of states [n, s, d]. `exact` takes the printed matrix cutoff outside of training too. [n, s, d]"""
        dtype = self.norm.weight.dtype
        own = reference is None
        reference = self.reference if reference is None else reference
        states, reference = states.to(dtype), reference.to(dtype)
        queries, keys, values = self.projected(states, reference, own)
        beta = self.decayed(self.compared(queries, keys, b_mask), x_mask, b_mask, exact)
        beta = nn.functional.dropout(beta, self.config.dropout, self.training).to(dtype)
        mixed = torch.einsum("nhsm,mhe->nshe", beta, values).flatten(2)
        between = self.norm(states + self.attention.out_proj(mixed))
        return self.last_norm(between + self.feed_forward(between))

    def projected(self, states: Tensor, reference: Tensor, own: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [n, s, h, e], keys and values [m, h, e]; `own` where the reference is the remembered one."""
        weight, bias = self.attention.in_proj_weight, self.attention.in_proj_bias
        width = states.shape[-1]
        queries = nn.functional.linear(states, weight[:width], bias[:width]).unflatten(-1, (self.heads, -1))
        # While a text is written token by token, nothing about the remembered reference changes.
        keeping = own and not torch.is_grad_enabled() and not any(x.is_inference() for x in (weight, self.reference))
        mark = [(id(x), x._version) for x in (weight, bias, self.reference)] if keeping else None
        if keeping and self.kept is not None and self.kept[0] == mark:
            return queries, *self.kept[1:]
        both = nn.functional.linear(reference, weight[width:], bias[width:]).chunk(2, -1)
        keys, values = (x.unflatten(-1, (self.heads, -1)) for x in both)
        self.kept = (mark, keys, values) if keeping else None
        return queries, keys, values

    def weights(self, states: Tensor, reference: Tensor, b_mask: Tensor | None = None) -> Tensor:
        """Attention of each position to the reference tokens (beta, eq. 1), padding left out, float32. [n, h, s, m]"""
        queries, keys, _ = self.projected(states, reference)
        return self.compared(queries, keys, b_mask)

    def compared(self, queries: Tensor, keys: Tensor, b_mask: Tensor | None) -> Tensor:
        """The same of queries and keys."""
        b_mask = self.reference_mask if b_mask is None else b_mask.bool()
        scores = torch.einsum("nshe,mhe->nhsm", queries, keys).float() / keys.shape[-1] ** 0.5
        # The product keeps a reference that is all padding at 0 instead of spreading over it.
        return scores.masked_fill(~b_mask, torch.finfo(scores.dtype).min).softmax(-1) * b_mask

    def decayed(
        self, beta: Tensor, x_mask: Tensor | None = None, b_mask: Tensor | None = None, exact: bool = False
    ) -> Tensor:
        """The largest share of the weights times `decay` (eq. 2), the rest as it is; not made to sum to 1 again, which
        would undo the decay where a whole row is chosen. [n, h, s, m]"""
        with torch.no_grad():
            valid = (self.reference_mask if b_mask is None else b_mask.bool()).expand_as(beta)
            if x_mask is not None:
                valid = valid & x_mask.bool()[:, None, :, None]
            chosen = (beta >= self.cutoff(beta, valid, exact)) & valid
        return torch.where(chosen, self.config.decay * beta, beta)

    def cutoff(self, beta: Tensor, valid: Tensor, exact: bool) -> Tensor:
        """The value from which on a weight is decayed (tau), to be compared with beta."""
        if self.config.scope == "row":
            return smallest_chosen(beta, valid, self.config.share)  # [n, h, s, 1]
        if not self.training and not exact:
            if not self.trained:
                self.trained = not bool(self.threshold.isnan().any())
            if self.trained:
                return self.threshold.float()[:, None, None]  # [h, 1, 1]
            return smallest_chosen(beta, valid, self.config.share)  # [n, h, s, 1]
        tau = smallest_chosen(beta.flatten(2), valid.flatten(2), self.config.share)  # [n, h, 1]
        if self.training:
            some = (tau <= 1)[..., 0]  # a row without a single chosen weight has nothing to say
            mean = (tau[..., 0] * some).sum(0) / some.sum(0).clamp(min=1)
            mean = torch.where(some.any(0), mean, ABOVE).to(self.threshold.dtype)  # [h]
            self.threshold.copy_(torch.where(self.threshold.isnan(), mean, self.threshold.lerp(mean, MOMENTUM)))
        return tau[..., None]


def smallest_chosen(values: Tensor, valid: Tensor, share: float) -> Tensor:
    """The smallest of the largest `share` of the valid values of the last axis [..., c]; above all where that is none.
    [..., 1]"""
    count = (share * valid.sum(-1, keepdim=True).float()).round().long()
    largest_first = values.masked_fill(~valid, -1.0).sort(-1, descending=True).values
    return largest_first.gather(-1, (count - 1).clamp(min=0)).masked_fill(count == 0, ABOVE)


class Told(NamedTuple):
    """What a forward pass was told about the reference and about padding."""

    rides: bool = False
    reference: Tensor | None = None
    b_mask: Tensor | None = None
    x_mask: Tensor | None = None


class CrawdHead(nn.Module):
    """Stands where the output head stood, so that the base model's own forward stays as it is: what families do before
    the head (T5 scales) and behind it (Gemma caps) is done to the printed H_final too."""

    def __init__(self, head: Any, config: CrawdConfig) -> None:
        super().__init__()
        self.head = head
        self.config = config
        self.out_features, self.in_features = v, d = head.weight.shape
        self.block = CrossAttentionDecay(d, config)
        # Both begin at exactly the base model's logits.
        if config.output == "fuse":
            self.fuse = nn.Linear(2 * d, d, bias=False)
            with torch.no_grad():
                self.fuse.weight.copy_(torch.eye(d, 2 * d))
        else:
            self.wide = nn.Linear(d, v, bias=False)
            nn.init.zeros_(self.wide.weight)
        self.told = Told()
        new = [module for name, module in self.named_modules() if name.split(".")[0] != "head"]
        for module in new:
            # The base model would give new layers its own random start.
            module._is_hf_initialized = head.weight.device.type != "meta"
        for module in new[1:]:
            module.to(head.weight.device, head.weight.dtype)

    @property
    def weight(self) -> nn.Parameter:
        """The old head's, which transformers and peft ask for."""
        return self.head.weight

    @property
    def bias(self) -> nn.Parameter | None:
        """The old head's."""
        return self.head.bias

    def forward(self, states: Tensor) -> Tensor:
        """Logits of states [n, s, d] or [n, d]; the last row of a batch in which b rides gets none. [n, s, v]"""
        _, reference, b_mask, x_mask = self.told
        if self.told.rides:
            states, reference = states[:-1], states[-1]
        cross = self.block(states if states.dim() > 2 else states[None], reference, x_mask, b_mask)
        cross = cross.view_as(states)
        if self.config.output == "wide":
            return self.head(states) + self.wide(cross.to(self.wide.weight.dtype)).to(states.dtype)
        both = torch.cat([states.to(self.fuse.weight.dtype), cross.to(self.fuse.weight.dtype)], -1)  # H_final
        return self.head(self.fuse(both).to(states.dtype))

    @torch.no_grad()
    def attention(self, states: Tensor) -> Attention:
        """The weights on the remembered reference for what the head reads [n, s, d], before and after the decay."""
        dtype = self.block.norm.weight.dtype
        beta = self.block.weights(states.to(dtype), self.block.reference.to(dtype))
        return Attention(beta, self.block.decayed(beta))


@contextlib.contextmanager
def telling(head: CrawdHead, told: Told) -> Iterator[None]:
    """Tell the head something for the forward passes inside."""
    before, head.told = head.told, told
    try:
        yield
    finally:
        head.told = before


def riding(head: CrawdHead, b_mask: Tensor, x_mask: Tensor | None = None) -> contextlib.AbstractContextManager[None]:
    """Inside, the last row of the batch is b (b_mask [s] marks its tokens), the rows before it are x (x_mask [n, s]).
    The gradient flows through b, and no loss may be asked of the base model, because b's row gets no logits."""
    return telling(head, Told(True, None, b_mask, x_mask))


def given(
    head: CrawdHead, reference: Tensor | None = None, b_mask: Tensor | None = None, x_mask: Tensor | None = None
) -> contextlib.AbstractContextManager[None]:
    """Inside, the reference states are these [m, d] (b_mask [m]) instead of the remembered ones; x_mask [n, s]."""
    if reference is not None and b_mask is None:
        b_mask = reference.new_ones(len(reference), dtype=torch.bool)
    return telling(head, Told(False, reference, b_mask, x_mask))


def insert(model: PreTrainedModel, config: CrawdConfig) -> CrawdHead:
    """Put the block in front of a model's output head; tied embeddings stay tied to the old head inside."""
    old = model.get_output_embeddings()
    if isinstance(old, CrawdHead):
        raise ValueError("The model has a CrawdHead already; load its base model to insert another.")
    head = CrawdHead(old, config).train(model.training)
    model.set_output_embeddings(head)
    where = next(name for name, module in model.named_modules() if module is head) + "."

    def inside(tied: dict[str, str] | None) -> dict[str, str]:
        return {
            name.replace(where, where + "head.", 1) if name.startswith(where) else name: source
            for name, source in (tied or {}).items()
        }

    model._tied_weights_keys = inside(model._tied_weights_keys)
    model.all_tied_weights_keys = inside(model.all_tied_weights_keys)
    return head
