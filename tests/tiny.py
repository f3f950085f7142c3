"""Tiny random models of every family and a real tokenizer trained on the project's own words; nothing is downloaded."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import ByteLevel as TrimmedOffsets
from tokenizers.processors import Sequence as Processors
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from evenhand.data.genbiaseval import GenBiasEval
from evenhand.data.genhinteval import GenHintEval
from evenhand.data.plain_text import PlainText
from evenhand.lm import AUTO, LM, Kind
from evenhand.run import Run
from evenhand.words import AXES

__all__ = [
    "BLOCKS",
    "CAUSAL",
    "KINDS",
    "assert_clean",
    "quiet_run",
    "tiny_folder",
    "tiny_lm",
    "tiny_model",
    "tiny_tokenizer",
]

CAUSAL = (
    "llama",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "mistral",
    "phi3",
    "olmo2",
    "gpt2",
    "opt",
    "gpt_neox",
    "falcon",
    "bloom",
)
KINDS: dict[str, Kind] = dict.fromkeys(CAUSAL, "causal") | {
    "bert": "masked",
    "roberta": "masked",
    "mpnet": "masked",
    "t5": "seq2seq",
}
# The families whose real tokenizers put a start token before a text, and those that also close it with an end token.
STARTED = ("llama", "gemma2", "gemma3", "mistral", "opt", "bert", "roberta", "mpnet")
ENDED = ("bert", "roberta", "mpnet", "t5")
VOCABULARY = 700
POSITIONS = 128
WINDOW = 8
BLOCKS = 3

PLAIN = {
    "hidden_size": 32,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": POSITIONS,
}
GROUPED = PLAIN | {"num_key_value_heads": 2}
# The sliding window is shorter than a prompt, so that a shared prefix outgrows it.
SIZES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "qwen2": GROUPED,
    "qwen3": GROUPED | {"head_dim": 8},
    "gemma2": GROUPED | {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8},
    "gemma3": GROUPED | {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8},
    "mistral": GROUPED | {"sliding_window": WINDOW},
    "phi3": GROUPED,
    "olmo2": GROUPED,
    "gpt2": {"n_embd": 32, "n_layer": BLOCKS, "n_head": 4, "n_positions": POSITIONS},
    "opt": {
        "hidden_size": 32,
        "num_hidden_layers": BLOCKS,
        "num_attention_heads": 4,
        "ffn_dim": 64,
        "max_position_embeddings": POSITIONS,
        "word_embed_proj_dim": 32,
    },
    "gpt_neox": PLAIN,
    "falcon": {"hidden_size": 32, "num_hidden_layers": BLOCKS, "num_attention_heads": 4},
    "bloom": {"hidden_size": 32, "n_layer": BLOCKS, "n_head": 4},
    "bert": PLAIN,
    "roberta": PLAIN,
    "mpnet": PLAIN,
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": BLOCKS, "num_decoder_layers": BLOCKS, "num_heads": 4},
}


@cache
def trained_bytes() -> str:
    """Byte-level BPE trained on the prompts, the words compared and the plain sentences, as tokenizers writes it."""
    texts = [row.text for split in PlainText.splits for row in PlainText().take(split)]
    for axis, content in AXES.items():
        for data in (GenBiasEval(axis=axis), GenHintEval(axis=axis)):  # pyright: ignore[reportArgumentType]
            texts += [row.text for row in data.take("train", 150)]
        # Seen this often, every compared word becomes one token.
        texts += [f"because {word} is {word}" for word in content.words] * 500
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    alphabet = sorted(ByteLevel.alphabet())
    special = ["<pad>", "<s>", "</s>", "<mask>"]
    trainer = BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str()


def tiny_tokenizer(start: bool = True, end: bool = False) -> PreTrainedTokenizerFast:
    """A fast tokenizer with bos, eos and pad; it may open a text with its start token and close it with its end."""
    tokenizer = Tokenizer.from_str(trained_bytes())
    single = " ".join(["<s>"] * start + ["$A"] + ["</s>"] * end)
    special = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    tokenizer.post_processor = Processors(
        [TrimmedOffsets(trim_offsets=True), TemplateProcessing(single=single, special_tokens=special)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", mask_token="<mask>"
    )


def config_of(family: str, **settings: Any) -> PretrainedConfig:
    """The config of a tiny model."""
    tokens = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if family == "t5":
        tokens["decoder_start_token_id"] = 0
    kind = "gemma3_text" if family == "gemma3" else family
    return CONFIG_MAPPING[kind](**(SIZES[family] | tokens | settings))


def build(config: PretrainedConfig, kind: Kind, seed: int = 0) -> PreTrainedModel:
    """A model with random weights, large enough that what it says depends on every token."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AUTO[kind].from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                drawn = torch.randn(parameter.shape)
                if parameter.dim() > 1:
                    parameter.copy_(0.25 * drawn)
                else:
                    parameter.add_(0.1 * drawn)
    return model.eval()


def tiny_model(family: str, seed: int = 0, **settings: Any) -> PreTrainedModel:
    """A fresh random model of a family; the same seed gives the same weights."""
    return build(config_of(family, **settings), KINDS[family], seed)


def tiny_lm(family: str, seed: int = 0, **settings: Any) -> LM:
    """A tiny model with the tokenizer its family would have."""
    tokenizer = tiny_tokenizer(family in STARTED, family in ENDED)
    return LM(tiny_model(family, seed, **settings), tokenizer, f"tiny {family}", KINDS[family])


def tiny_folder(path: Path, family: str, seed: int = 0, **settings: Any) -> Path:
    """The same as an ordinary transformers folder."""
    lm = tiny_lm(family, seed, **settings)
    lm.model.save_pretrained(path)
    lm.tokenizer.save_pretrained(path)
    return path


def assert_clean(lm: LM) -> None:
    """Nothing hangs on the model."""
    for name, module in lm.model.named_modules():
        assert not module._forward_hooks, name
        assert not module._forward_pre_hooks, name
        assert not module._backward_hooks, name
        assert "forward" not in vars(module), name


def quiet_run(folder: Path, seed: int = 0) -> Run:
    """A run that writes into a folder and says nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    return Run(folder, quiet=True, seed=seed)
