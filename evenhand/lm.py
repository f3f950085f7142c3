"""LM: a model, its tokenizer and where its parts are; found by name, saved as an ordinary transformers folder."""

import importlib.util
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from evenhand import catalog
from evenhand.bundled import BUNDLED, bundled_folder
from evenhand.config import Refusal, build, closest
from evenhand.hub import ask_hub
from evenhand.run import processes

__all__ = ["LM"]

Kind = Literal["causal", "masked", "seq2seq"]
AUTO = {"causal": AutoModelForCausalLM, "masked": AutoModelForMaskedLM, "seq2seq": AutoModelForSeq2SeqLM}

# The output projections of attention and MLP inside a block, for families whose config has no
# tensor-parallel plan. To support another family, add its row here.
PROJECTIONS = {
    "gpt2": ("attn.c_proj", "mlp.c_proj"),
    "opt": ("self_attn.out_proj", "fc2"),
    "falcon": ("self_attention.dense", "mlp.dense_4h_to_h"),
    "bloom": ("self_attention.dense", "mlp.dense_4h_to_h"),
    "bert": ("attention.output.dense", "output.dense"),
    "roberta": ("attention.output.dense", "output.dense"),
    "mpnet": ("attention.attn.o", "output.dense"),
    "t5": ("layer.0.SelfAttention.o", "layer.2.DenseReluDense.wo"),
}
BLOCK_CLASSES = {"mpnet": "MPNetLayer"}


@dataclass
class LM:
    """A language model with its parts named."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    kind: Kind = "causal"
    prefix: str = ""
    """Text put before everything the model reads; never part of what is scored."""
    trained: list[str] = field(default_factory=list)
    """The parameters that differ from the base model's."""

    def __post_init__(self) -> None:
        self.model.eval()
        self.blocks = find_blocks(self.model)
        self.projections = find_projections(self.model.config, self.blocks[0])

    @classmethod
    def load(
        cls,
        name: str,
        *,
        dtype: str = "float32",
        device: str | None = None,
        trust_remote_code: bool = False,
    ) -> "LM":
        """Load a run folder, an adapter, a transformers folder, a bundled name or a hub id."""
        where = device_of(device) if device else processes().device
        folder = Path(name)
        if (folder / "method.json").exists():
            return load_run(cls, folder, dtype=dtype, device=str(where), trust_remote_code=trust_remote_code)
        if (folder / "adapter_config.json").exists():
            return load_adapter(cls, folder, dtype=dtype, device=str(where), trust_remote_code=trust_remote_code)
        if folder.is_dir() and not (folder / "config.json").exists():
            raise Refusal(
                f"{name} is a folder without config.json: give a transformers folder or a finished debias run."
            )
        if not folder.is_dir() and name not in BUNDLED and "/" not in name and closest(name, BUNDLED):
            raise Refusal(f"There is no model {name!r}{closest(name, BUNDLED)}; a hub id has the form owner/name.")
        source = str(bundled_folder(name)) if name in BUNDLED and not folder.is_dir() else name
        model, tokenizer, kind = load_pretrained(source, name, dtype, trust_remote_code)
        return cls(model.to(where), tokenizer, name, kind)  # pyright: ignore[reportArgumentType]

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.model.device

    @property
    def head(self) -> nn.Module:
        """The projection from hidden state to vocabulary."""
        return self.model.get_output_embeddings()

    @property
    def start(self) -> int:
        """The token that stands before a text's first: the tokenizer's BOS, else its EOS."""
        token = self.tokenizer.bos_token_id
        return token if token is not None else self.tokenizer.eos_token_id

    @property
    def plain_mlp(self) -> bool:
        """Whether a block ends by adding `mlp(x)` to its residual stream, as the families with a parallel plan do."""
        return self.model.config.model_type not in PROJECTIONS and self.projections[1].startswith("mlp.")

    def require(self, kind: Kind, why: str) -> None:
        """Refuse a model of another kind."""
        if self.kind != kind:
            raise Refusal(f"{why} needs a {kind} language model; {self.name} is a {self.kind} one.")

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids, the tokenizer's own start token included, the prefix in front."""
        encoded = self.tokenizer([self.prefix + text for text in texts]).input_ids
        return [self.opened(ids) for ids in encoded] if self.kind == "causal" else encoded

    def opened(self, ids: list[int]) -> list[int]:
        """Without the end token that some tokenizers close a text with: the next word follows the text, not its end."""
        closed = len(ids) > 1 and ids[-1] in (self.tokenizer.eos_token_id, self.tokenizer.sep_token_id)
        return ids[:-1] if closed else ids

    def split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """The tokens of a context, prefix included, and of what continues it; they are cut where the context ends when
        both are tokenised together. Where nothing stands before, the start token does."""
        # A space at the end of a context belongs to the token that follows.
        before = (self.prefix + context).rstrip(" ")
        ids = self.tokenizer(self.prefix + context + continuation, add_special_tokens=False).input_ids
        cut = len(self.tokenizer(before, add_special_tokens=False).input_ids) if before else 0
        opens = self.tokenizer("a").input_ids[0] == self.tokenizer.bos_token_id
        return [self.start] * (opens or not cut) + ids[:cut], ids[cut:]

    def word_ids(self, words: Sequence[str], after: str) -> list[int]:
        """The token each word is when it follows a text (" he", not "he"); a word of several tokens is refused."""
        context = self.opened(self.tokenizer(after).input_ids)
        ids = []
        for word in words:
            with_word = self.opened(self.tokenizer(f"{after} {word}").input_ids)
            extra = with_word[len(context) :]
            if with_word[: len(context)] != context or len(extra) != 1:
                pieces = " + ".join(repr(self.tokenizer.decode([token])) for token in extra)
                raise Refusal(
                    f"The word {word!r} is not one token in {self.name} ({pieces}), and next-token probabilities "
                    "need one; choose another word or axis."
                )
            ids.append(extra[0])
        return ids

    def block_parameters(
        self, block: int, part: Literal["block", "attention", "mlp"] = "block"
    ) -> dict[str, nn.Parameter]:
        """The parameters of a block (or of its attention, or of its MLP without norms), by their name in the model."""
        if not 0 <= block < len(self.blocks):
            raise Refusal(f"{self.name} has blocks 0 to {len(self.blocks) - 1}; there is no block {block}.")
        paths = [name.split(".") for name in self.projections]
        # Where the two part: T5 has both under `layer`.
        depth = next(k for k, (a, b) in enumerate(zip(*paths, strict=False)) if a != b) + 1
        root = paths[0][:depth]
        chosen = {}
        known = {id(parameter): name for name, parameter in self.model.named_parameters()}
        for name, parameter in self.blocks[block].named_parameters():
            attention = name.split(".")[:depth] == root
            norm = re.search(r"norm|(^|\.)ln_", name) is not None
            if part == "block" or (part == "attention" and attention) or (part == "mlp" and not attention and not norm):
                chosen[known[id(parameter)]] = parameter
        return chosen

    def parameter_count(self) -> int:
        """How many numbers the model has; tied ones once."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def device_of(name: str) -> torch.device:
    """A device by its name, or a refusal."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise Refusal(
            f"There is no device {name!r} here ({str(error).splitlines()[0][:100]}); leave --device out."
        ) from None


def find_blocks(model: PreTrainedModel) -> list[nn.Module]:
    """The longest list of modules that transformers itself says must not be split (the decoder's, where two tie)."""
    known = set(model._no_split_modules or ()) | {BLOCK_CLASSES.get(model.config.model_type, "")}
    lists = [
        list(module)
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len(module) and type(module[0]).__name__ in known
    ]
    if not lists:
        raise Refusal(
            f"evenhand does not know the blocks of {model.config.model_type!r}: "
            "add its block class to BLOCK_CLASSES in evenhand/lm.py."
        )
    longest = max(len(blocks) for blocks in lists)
    return [blocks for blocks in lists if len(blocks) == longest][-1]


def find_projections(config: PretrainedConfig, block: nn.Module) -> tuple[str, str]:
    """Where attention and MLP write into the residual stream: the plan's two `rowwise` entries, else the table."""
    text = config.get_text_config(decoder=True)
    plan = getattr(text, "base_model_tp_plan", None) or {}
    rowwise = [name.split("*.", 1)[1] for name, how in plan.items() if "*" in name and how.startswith("rowwise")]
    found = tuple(rowwise[:2]) if len(rowwise) >= 2 else PROJECTIONS.get(text.model_type)
    inside = dict(block.named_modules())
    if found is None or any(name not in inside for name in found):
        raise Refusal(
            f"evenhand does not know the output projections of {text.model_type!r}: "
            "add a row for it to PROJECTIONS in evenhand/lm.py."
        )
    return found[0], found[1]


def load_pretrained(
    source: str, name: str, dtype: str, trust_remote_code: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Kind]:
    """From a folder or the hub: safetensors only, no code from the repository unless told to."""
    how = stored_as(dtype)
    if not Path(source).is_dir():
        ask_hub()
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        kind = kind_of(config)
        model = AUTO[kind].from_pretrained(
            source,
            config=config,
            **how,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
        )
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise Refusal(load_failure(name, " ".join(str(error).split()))) from error
    # A saved CrAWD model is its base model with another head, and that is what answers.
    return model.base if config.model_type == "crawd" else model, tokenizer, kind


def stored_as(dtype: str) -> dict[str, Any]:
    """How the weights are kept: as numbers of a type, or in four bits (QLoRA's nf4, quantised twice)."""
    if dtype == "nf4":
        if importlib.util.find_spec("bitsandbytes") is None:
            raise Refusal("nf4 needs the package bitsandbytes: pip install 'evenhand[quant]'.")
        compute = torch.bfloat16 if torch.cuda.is_available() else torch.float32
        four_bits = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=compute,
        )
        return {"quantization_config": four_bits, "dtype": compute}
    if not hasattr(torch, dtype) or not isinstance(getattr(torch, dtype), torch.dtype):
        raise Refusal(f"There is no dtype {dtype!r}; choose float32, bfloat16, float16 or nf4.")
    return {"dtype": getattr(torch, dtype)}


def load_failure(name: str, reason: str) -> str:
    """What went wrong on loading, with the remedy."""
    if "trust_remote_code" in reason or "custom code" in reason:
        return f"{name} needs code from its own repository; add --trust-remote-code if you trust it."
    if "safetensors" in reason and "deserializ" not in reason and not Path(name).is_file():
        return (
            f"{name} has no safetensors weights, and evenhand loads no pickled ones; convert it first ({reason[:200]})."
        )
    if Path(name).exists():
        return f"{name} could not be loaded: {reason[:300]}"
    return (
        f"There is no model {name!r}{closest(name, BUNDLED)}: not a folder, not a bundled name "
        f"({', '.join(BUNDLED)}), and the hub did not give it ({reason[:160]})."
    )


def kind_of(config: PretrainedConfig) -> Kind:
    """Causal, masked or encoder-decoder, from what the config declares."""
    declared = " ".join(config.architectures or ())
    if config.is_encoder_decoder:
        return "seq2seq"
    causal = config.model_type not in ("bert", "roberta", "mpnet", "distilbert", "electra", "deberta-v2", "modernbert")
    return "masked" if "MaskedLM" in declared or not causal else "causal"


def load_run(cls: type[LM], folder: Path, **how: Any) -> LM:
    """The base model, given the method's shape, with what was trained put in."""
    from evenhand.lora import fold_adapters

    saved = json.loads((folder / "method.json").read_text(encoding="utf-8"))
    lm = cls.load(saved["base"], **how)
    method = build(catalog.load("methods", saved["name"]), saved["options"], f"method {saved['name']}")
    method.attach(lm, saved["state"])
    lm.trained = saved["trained"]
    if lm.trained:
        put(lm.model, load_file(folder / "delta.safetensors"))
    fold_adapters(lm.model)
    lm.name = str(folder)
    return lm


def put(model: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Copy tensors into the parameters and buffers of the same names."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


def load_adapter(cls: type[LM], folder: Path, **how: Any) -> LM:
    """A PEFT adapter, merged into its base model."""
    from peft import PeftModel

    if not (folder / "adapter_model.safetensors").exists():
        raise Refusal(
            f"{folder} has no adapter_model.safetensors, and evenhand loads no pickled weights; convert it first."
        )
    base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
    lm = cls.load(base, **how)
    merged = PeftModel.from_pretrained(lm.model, str(folder)).merge_and_unload()
    return cls(merged, lm.tokenizer, str(folder), lm.kind)
