"""LM: the parts of every family are found, words are single tokens, and what is loaded is safe and right."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tiny import BLOCKS, CAUSAL, KINDS, tiny_folder, tiny_lm, tiny_model, tiny_tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from evenhand import lm as lm_module
from evenhand.config import Refusal
from evenhand.data.genbiaseval import GenBiasEval
from evenhand.data.genhinteval import GenHintEval
from evenhand.hooks import block_inputs
from evenhand.lm import LM
from evenhand.words import AXES

LLAMA_LIKE = ("self_attn.o_proj", "mlp.down_proj")
NAMES = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "gemma2", "gemma3", "mistral", "phi3", "olmo2"), LLAMA_LIKE),
    "gpt2": ("attn.c_proj", "mlp.c_proj"),
    "opt": ("self_attn.out_proj", "fc2"),
    "gpt_neox": ("attention.dense", "mlp.dense_4h_to_h"),
    "falcon": ("self_attention.dense", "mlp.dense_4h_to_h"),
    "bloom": ("self_attention.dense", "mlp.dense_4h_to_h"),
    "bert": ("attention.output.dense", "output.dense"),
    "roberta": ("attention.output.dense", "output.dense"),
    "mpnet": ("attention.attn.o", "output.dense"),
    "t5": ("layer.0.SelfAttention.o", "layer.2.DenseReluDense.wo"),
}
TEXT = "The nurse smiled because"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask nobody for models that are not here."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def last_logits(lm: LM) -> Tensor:
    """The logits after a prompt."""
    with torch.no_grad():
        return lm.model(input_ids=torch.tensor(lm.encode([TEXT]))).logits[0, -1].float()


@pytest.mark.parametrize("family", KINDS)
def test_parts_of_every_family(family: str, tmp_path: Path) -> None:
    lm = LM.load(str(tiny_folder(tmp_path, family)), device="cpu")
    assert lm.kind == KINDS[family]
    assert len(lm.blocks) == BLOCKS
    assert lm.projections == NAMES[family]
    for block in lm.blocks:
        for name in lm.projections:
            weight = block.get_submodule(name).weight
            assert 32 in weight.shape, "a projection writes into the residual stream"


@pytest.mark.parametrize("family", CAUSAL)
def test_projections_are_all_that_a_block_writes(family: str) -> None:
    """With both projections at zero, every block must pass on what it reads."""
    lm = tiny_lm(family)
    for block in lm.blocks:
        for name in lm.projections:
            for parameter in block.get_submodule(name).parameters():
                parameter.data.zero_()
    with torch.no_grad(), block_inputs(lm, [0, BLOCKS]) as states:
        lm.model(input_ids=torch.tensor(lm.encode([TEXT])))
    assert states[0].abs().max() > 0.1
    torch.testing.assert_close(states[BLOCKS], states[0])


def test_decoder_blocks_of_an_encoder_decoder() -> None:
    lm = tiny_lm("t5")
    assert lm.blocks == list(lm.model.decoder.block)


def test_unknown_projections_name_the_line_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(lm_module.PROJECTIONS, "gpt2")
    with pytest.raises(Refusal, match=r"projections of 'gpt2'.*PROJECTIONS in evenhand/lm\.py"):
        tiny_lm("gpt2")
    monkeypatch.setitem(lm_module.PROJECTIONS, "gpt2", ("attn.no_such", "mlp.c_proj"))
    with pytest.raises(Refusal, match=r"PROJECTIONS in evenhand/lm\.py"):
        tiny_lm("gpt2")


def test_unknown_blocks_name_the_line_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(lm_module.BLOCK_CLASSES, "mpnet")
    model = tiny_model("mpnet")
    monkeypatch.setattr(model, "_no_split_modules", None)
    with pytest.raises(Refusal, match=r"blocks of 'mpnet'.*BLOCK_CLASSES in evenhand/lm\.py"):
        LM(model, tiny_tokenizer(), "unknown", "masked")


@pytest.mark.parametrize("family", CAUSAL)
def test_block_parameters(family: str) -> None:
    """Attention, MLP and the norms outside of them make up a block; the blocks share nothing."""
    lm = tiny_lm(family)
    seen: set[str] = set()
    every = dict(lm.model.named_parameters())
    for number, block in enumerate(lm.blocks):
        whole, attention, mlp = (lm.block_parameters(number, part) for part in ("block", "attention", "mlp"))
        assert {id(parameter) for parameter in whole.values()} == {id(parameter) for parameter in block.parameters()}
        assert all(every[name] is parameter for name, parameter in whole.items())
        assert not set(attention) & set(mlp)
        rest = set(whole) - set(attention) - set(mlp)
        norms = {
            id(parameter)
            for name, module in block.named_modules()
            if "norm" in type(module).__name__.lower() and name.split(".")[0] != lm.projections[0].split(".")[0]
            for parameter in module.parameters()
        }
        assert {id(whole[name]) for name in rest} == norms
        for name, part in zip(lm.projections, (attention, mlp), strict=True):
            assert any(parameter is block.get_submodule(name).weight for parameter in part.values())
        assert not seen & set(whole)
        seen |= set(whole)


def test_block_parameters_by_name() -> None:
    lm = tiny_lm("llama")
    start = "model.layers.1."
    assert set(lm.block_parameters(1, "attention")) == {f"{start}self_attn.{x}_proj.weight" for x in "qkvo"}
    assert set(lm.block_parameters(1, "mlp")) == {f"{start}mlp.{x}_proj.weight" for x in ("gate", "up", "down")}
    assert set(tiny_lm("opt").block_parameters(2, "mlp")) == {
        f"model.decoder.layers.2.fc{x}.{kind}" for x in (1, 2) for kind in ("weight", "bias")
    }


def test_block_parameters_of_an_encoder_decoder() -> None:
    """In T5 attention and MLP are both under `layer`."""
    lm = tiny_lm("t5")
    attention, mlp = lm.block_parameters(0, "attention"), lm.block_parameters(0, "mlp")
    assert not set(attention) & set(mlp)
    assert "decoder.block.0.layer.0.SelfAttention.o.weight" in attention
    assert "decoder.block.0.layer.2.DenseReluDense.wo.weight" in mlp


@pytest.mark.parametrize("block", [-1, BLOCKS])
def test_no_such_block(block: int) -> None:
    with pytest.raises(Refusal, match=f"blocks 0 to {BLOCKS - 1}; there is no block {block}"):
        tiny_lm("llama").block_parameters(block)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(("start", "end"), [(True, False), (False, False), (True, True)])
def test_words_are_the_tokens_that_follow_a_space(axis: Any, start: bool, end: bool) -> None:
    lm = LM(tiny_model("llama"), tiny_tokenizer(start, end), "tiny")
    words = AXES[axis].words
    expected = [lm.tokenizer.convert_tokens_to_ids(f"Ġ{word}") for word in words]
    assert None not in expected
    for data in (GenBiasEval(axis=axis), GenHintEval(axis=axis)):
        for row in data.take("test", 3):
            assert lm.word_ids(words, row.text) == expected


def test_words_without_their_space_are_others() -> None:
    lm = tiny_lm("gpt2")
    assert lm.word_ids(["he"], TEXT) != lm.tokenizer("he").input_ids[-1:]
    # The token before it may be the word itself.
    assert lm.word_ids(["he", "she"], f"{TEXT} he") == lm.word_ids(["he", "she"], TEXT)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_word_of_several_tokens_is_refused(family: str) -> None:
    with pytest.raises(Refusal, match=r"'anthropologist' is not one token in tiny .*' an' \+"):
        tiny_lm(family).word_ids(["he", "anthropologist"], TEXT)


def test_start_token() -> None:
    lm = tiny_lm("llama")
    assert lm.start == lm.tokenizer.bos_token_id == lm.encode([TEXT])[0][0]
    lm.tokenizer.bos_token = None
    assert lm.start == lm.tokenizer.eos_token_id


def test_prefix_stands_before_every_text() -> None:
    lm = tiny_lm("llama")
    plain = lm.encode([f"Be fair. {TEXT}"])
    lm.prefix = "Be fair. "
    assert lm.encode([TEXT]) == plain


def test_loads_by_id_from_the_hub_cache(tmp_path: Path) -> None:
    """In a process of its own, because the hub's settings are read on import; with the net off, as on many clusters."""
    repository = tmp_path / "hub" / "models--org--name"
    commit = "0123456789abcdef0123456789abcdef01234567"
    tiny_folder(repository / "snapshots" / commit, "llama", seed=3)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    code = f"""
import torch
from evenhand.config import Refusal
from evenhand.lm import LM
lm = LM.load("org/name", device="cpu")
print(lm.name, lm.model(torch.tensor(lm.encode([{TEXT!r}]))).logits[0, -1].tolist()[:5], sep="|")
try:
    LM.load("org/other", device="cpu")
except Refusal as refusal:
    print(refusal)
"""
    hub = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    env = hub | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.strip().splitlines()
    name, numbers = first.split("|")
    assert name == "org/name"
    torch.testing.assert_close(torch.tensor(json.loads(numbers)), last_logits(tiny_lm("llama", seed=3))[:5])
    assert "There is no model 'org/other'" in second
    assert "smollm2" in second


@pytest.mark.usefixtures("offline")
def test_a_wrong_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(Refusal, match=r"no model 'smolm2'.*did you mean 'smollm2'\?"):
        LM.load("smolm2", device="cpu")


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"without config\.json"):
        LM.load(str(tmp_path), device="cpu")


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.marker), "w")


def test_pickled_weights_are_refused_and_never_read(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "works")))
    assert (tmp_path / "works").exists()
    folder = tiny_folder(tmp_path / "model", "gpt2")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "marker")))
    with pytest.raises(Refusal, match="no safetensors weights"):
        LM.load(str(folder), device="cpu")
    assert not (tmp_path / "marker").exists()


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, "gpt2")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(Refusal, match="could not be loaded"):
        LM.load(str(folder), device="cpu")


def write_custom(folder: Path, marker: Path, model_type: str) -> None:
    """Make a folder's config point to code of its own that makes a file when it is run."""
    code = f"""
from transformers import LlamaConfig, LlamaForCausalLM
open({str(marker)!r}, "w").close()
class CustomConfig(LlamaConfig):
    model_type = {model_type!r}
class CustomModel(LlamaForCausalLM):
    config_class = CustomConfig
"""
    (folder / "custom.py").write_text(code)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": model_type, "architectures": ["CustomModel"]}
    config["auto_map"] = {"AutoConfig": "custom.CustomConfig", "AutoModelForCausalLM": "custom.CustomModel"}
    (folder / "config.json").write_text(json.dumps(config))


def test_code_of_a_model_is_not_run_without_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    marker = tmp_path / "marker"
    folder = tiny_folder(tmp_path / "model", "llama")
    expected = last_logits(LM.load(str(folder), device="cpu"))
    write_custom(folder, marker, "unheard_of")
    with pytest.raises(Refusal, match="--trust-remote-code"):
        LM.load(str(folder), device="cpu")
    assert not marker.exists()
    trusted = LM.load(str(folder), device="cpu", trust_remote_code=True)
    assert marker.exists()
    torch.testing.assert_close(last_logits(trusted), expected)


def test_code_beside_a_known_model_is_passed_over(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    folder = tiny_folder(tmp_path / "model", "llama")
    write_custom(folder, marker, "llama")
    lm = LM.load(str(folder), device="cpu")
    assert type(lm.model).__module__.startswith("transformers.models.llama")
    assert not marker.exists()


def adapter(base: Path, folder: Path) -> Path:
    """A LoRA adapter that changes what the model says."""
    model = AutoModelForCausalLM.from_pretrained(base)
    tuned = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
    torch.manual_seed(1)
    for name, parameter in tuned.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    tuned.save_pretrained(folder)
    return folder


def test_an_adapter_is_loaded_merged(tmp_path: Path) -> None:
    base = tiny_folder(tmp_path / "base", "llama")
    folder = adapter(base, tmp_path / "adapter")
    lm = LM.load(str(folder), device="cpu")
    assert not any("lora" in name for name, _ in lm.model.named_parameters())
    own = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(folder)).eval()
    with torch.no_grad():
        expected = own(input_ids=torch.tensor(lm.encode([TEXT]))).logits[0, -1]
    torch.testing.assert_close(last_logits(lm), expected, atol=1e-5, rtol=1e-5)
    assert (expected - last_logits(tiny_lm("llama"))).abs().max() > 0.1


def test_a_pickled_adapter_is_refused_and_never_read(tmp_path: Path) -> None:
    base = tiny_folder(tmp_path / "base", "llama")
    folder = adapter(base, tmp_path / "adapter")
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "marker")))
    with pytest.raises(Refusal, match="safetensors"):
        LM.load(str(folder), device="cpu")
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtypes(dtype: str, tmp_path: Path) -> None:
    lm = LM.load(str(tiny_folder(tmp_path, "llama")), dtype=dtype, device="cpu")
    assert {parameter.dtype for parameter in lm.model.parameters()} == {getattr(torch, dtype)}


@pytest.mark.parametrize("dtype", ["float15", "nn", "int8", ""])
def test_other_dtypes_are_refused(dtype: str, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"no dtype .*bfloat16|not a floating-point dtype"):
        LM.load(str(tiny_folder(tmp_path, "gpt2")), dtype=dtype, device="cpu")


def test_another_kind_is_refused() -> None:
    tiny_lm("llama").require("causal", "this")
    with pytest.raises(Refusal, match="this needs a causal language model; tiny bert is a masked one"):
        tiny_lm("bert").require("causal", "this")


def test_parameters_are_counted_once_where_tied() -> None:
    lm = tiny_lm("gpt2")
    assert lm.head.weight is lm.model.get_input_embeddings().weight
    assert lm.parameter_count() == sum({id(p): p.numel() for p in lm.model.parameters()}.values())
    assert tiny_lm("llama").parameter_count() == 2 * 700 * 32 + 32 + 3 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 64)


def test_a_folder_wins_over_a_bundled_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_folder(tmp_path / "smollm2", "gpt2")
    monkeypatch.chdir(tmp_path)
    assert LM.load("smollm2", device="cpu").model.config.model_type == "gpt2"
