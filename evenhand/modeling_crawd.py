"""CrAWD as printed: ordinary transformers models that have its layer in front of their output.

A copy of this file and of the layer's travels in every saved folder, so both need torch and transformers and nothing
else; that is why the import of the layer is relative.
n rows, s positions, d width, m reference tokens."""

import copy
import inspect
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from .crawd_layer import CrawdConfig, CrawdHead, CrossAttentionDecay, given, insert

__all__ = [
    "CrawdForCausalLM",
    "CrawdForSeq2SeqLM",
    "CrawdForSequenceClassification",
    "register",
    "remember",
]


def remember(model: Any, ids: Tensor, mask: Tensor | None = None) -> None:
    """Encode the reference words, ids [m], with the model as it is now and look at them from now on: their last hidden
    states after the final norm, of the encoder where there is one. To be called again after training."""
    mask = torch.ones_like(ids) if mask is None else mask
    if isinstance(model, CrawdForSequenceClassification):
        body, block = model.body, model.block
    else:
        block = model.get_output_embeddings().block
        body = model.get_encoder() if model.config.is_encoder_decoder else model.base_model
    was_training = body.training
    body.eval()
    with torch.no_grad():
        states = body(input_ids=ids[None].to(body.device), attention_mask=mask[None].to(body.device))
    body.train(was_training)
    block.keep(states.last_hidden_state[0], mask)


class CrawdModel(PreTrainedModel):
    """What the saved models have in common."""

    config_class = CrawdConfig
    base_model_prefix = "base"
    supports_gradient_checkpointing = True
    # The base model knows what it supports and refuses the rest.
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    auto: ClassVar[Any]
    """The class that builds the base model."""
    config: Any

    def build(self, config: CrawdConfig, existing: Any, wanted: str | None) -> Any:
        """The base model: an existing one as it is, or one without weights yet."""
        if existing is None:
            how = {} if wanted is None else {"attn_implementation": wanted}
            dtype = torch.get_default_dtype()
            existing = self.auto.from_config(copy.deepcopy(config.base_config), dtype=dtype, **how)
        config.base_config = existing.config
        config._attn_implementation_internal = existing.config._attn_implementation
        return existing


class CrawdLM(CrawdModel):
    """A language model with a CrawdHead: what it is asked, the base model answers.

    Under a plain Trainer the remembered reference stays as it is; a step that lets b ride is `riding`."""

    base: Any

    def __init__(self, config: CrawdConfig, existing: PreTrainedModel | None = None) -> None:
        wanted = config._attn_implementation
        super().__init__(config)
        self.base = self.build(config, existing, wanted)
        if existing is None:
            insert(self.base, config)
        self.generation_config = self.base.generation_config
        self.post_init()

    @classmethod
    def around(cls, model: Any, config: CrawdConfig | None = None) -> "CrawdLM":
        """Wrap a model that has a CrawdHead, sharing its weights, to save it."""
        for module in model.modules():
            module._is_hf_initialized = True
        return cls(config or model.get_output_embeddings().config, model).train(model.training)

    @property
    def base_model(self) -> nn.Module:
        """The body that gives the last hidden states."""
        return self.base.base_model

    @property
    def accepts_loss_kwargs(self) -> bool:
        """Whether the base model divides its loss by the number of tokens that the Trainer counts."""
        kinds = [parameter.kind for parameter in inspect.signature(self.base.forward).parameters.values()]
        return getattr(self.base, "accepts_loss_kwargs", inspect.Parameter.VAR_KEYWORD in kinds)

    def get_input_embeddings(self) -> nn.Module:
        """The base model's."""
        return self.base.get_input_embeddings()

    def get_output_embeddings(self) -> CrawdHead:
        """The CrawdHead."""
        return self.base.get_output_embeddings()

    def get_encoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        """The base model's."""
        return self.base.get_encoder(*args, **kwargs)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """The base model's forward; in training the head is told which tokens are padding."""
        x_mask = attention_mask
        if self.config.is_encoder_decoder:
            x_mask = kwargs.get("decoder_attention_mask", None if labels is None else labels != -100)
        told = x_mask if self.training and x_mask is not None and x_mask.dim() == 2 else None
        with given(self.get_output_embeddings(), x_mask=told):
            return self.base(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The base model's, with the generation settings of this one."""
        self.base.generation_config = self.generation_config
        return self.base.generate(*args, **kwargs)

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The base model's, for those who write their own loop."""
        return self.base.prepare_inputs_for_generation(*args, **kwargs)


class CrawdForCausalLM(CrawdLM, GenerationMixin):
    """A decoder with a CrawdHead."""

    _auto_class = "AutoModelForCausalLM"
    auto = AutoModelForCausalLM


class CrawdForSeq2SeqLM(CrawdLM, GenerationMixin):
    """An encoder-decoder with a CrawdHead: H_x is the decoder's, H_b the encoder's."""

    _auto_class = "AutoModelForSeq2SeqLM"
    auto = AutoModelForSeq2SeqLM

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The base model's, for collators."""
        return self.base.prepare_decoder_input_ids_from_labels(labels)


class CrawdForSequenceClassification(CrawdModel):
    """A classifier on H_final = [H_x, H_cross] of the first token of an encoder, the last of a decoder."""

    _auto_class = "AutoModelForSequenceClassification"
    base_model_prefix = "body"
    auto = AutoModel
    body: Any

    def __init__(self, config: CrawdConfig, existing: PreTrainedModel | None = None) -> None:
        if config.is_encoder_decoder:
            raise ValueError("CrawdForSequenceClassification needs an encoder or a decoder, not both.")
        wanted = config._attn_implementation
        super().__init__(config)
        self.body = self.build(config, existing, wanted)
        width = getattr(config.base_config, "word_embed_proj_dim", config.hidden_size)
        self.block = CrossAttentionDecay(width, config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(2 * width, config.num_labels)
        if self.classifier.weight.device.type != "meta":
            for module in self.block.modules():
                module._is_hf_initialized = True
        self.post_init()

    @classmethod
    def from_base(cls, body: PreTrainedModel, config: CrawdConfig) -> "CrawdForSequenceClassification":
        """A classifier on a body that is there already."""
        for module in body.modules():
            module._is_hf_initialized = True
        return cls(config, body).to(body.device, body.dtype).train(body.training)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        reference_ids: Tensor | None = None,
        reference_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Logits of the labels. Given reference_ids [m], b rides through the body as a last row, with gradient."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        n, s = input_ids.shape
        if reference_ids is None:
            states, reference = self.body(input_ids=input_ids, attention_mask=mask, **kwargs).last_hidden_state, None
        else:
            b_mask = torch.ones_like(reference_ids) if reference_mask is None else reference_mask
            ids = nn.utils.rnn.pad_sequence([*input_ids, reference_ids], True)
            both = nn.utils.rnn.pad_sequence([*mask, b_mask.to(mask)], True)
            # Whatever else describes the tokens of x (token types) is 0 for b.
            extra = {name: nn.functional.pad(value, (0, ids.shape[1] - s, 0, 1)) for name, value in kwargs.items()}
            found = self.body(input_ids=ids, attention_mask=both, **extra).last_hidden_state
            states, reference, reference_mask = found[:n, :s], found[n, : len(reference_ids)], b_mask
        cross = self.block(states, reference, mask, reference_mask)
        final = torch.cat([states, cross.to(states.dtype)], -1)  # [n, s, 2d]
        # Multiplied by the place, the last token is the largest; by the place from the end, the first.
        place = torch.arange(1, s + 1, device=mask.device)
        place = place.flip(0) if self.config.base_config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES else place
        pooled = final[torch.arange(n, device=mask.device), (mask * place).argmax(-1)]
        logits = self.classifier(self.dropout(pooled).to(self.classifier.weight.dtype))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def register() -> None:
    """Let the Auto classes load saved folders without remote code."""
    AutoConfig.register("crawd", CrawdConfig, exist_ok=True)
    AutoModelForCausalLM.register(CrawdConfig, CrawdForCausalLM, exist_ok=True)
    AutoModelForSeq2SeqLM.register(CrawdConfig, CrawdForSeq2SeqLM, exist_ok=True)
    AutoModelForSequenceClassification.register(CrawdConfig, CrawdForSequenceClassification, exist_ok=True)
