"""Saved CrAWD models are ordinary transformers folders: for the Auto classes, generation, pipelines and the Trainer."""

import json
import os
import subprocess
import sys
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from test_modeling_crawd import REFERENCE, logits, model_with_head, shaken, some_ids
from tiny import quiet_run, tiny_lm, tiny_model
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    GenerationConfig,
    Trainer,
    TrainingArguments,
    pipeline,
)

from evenhand import registering
from evenhand.crawd_layer import CrawdConfig, CrawdHead
from evenhand.lm import LM
from evenhand.modeling_crawd import (
    CrawdForCausalLM,
    CrawdForSeq2SeqLM,
    CrawdForSequenceClassification,
    register,
    remember,
)
from evenhand.scoring import token_logprobs

register()
AUTO = {"llama": "AutoModelForCausalLM", "gpt2": "AutoModelForCausalLM", "t5": "AutoModelForSeq2SeqLM"}

LOAD = """
import sys, torch
from pathlib import Path
import transformers
for name, auto in {auto}.items():
    folder = Path({folder!r}) / name
    model = getattr(transformers, auto).from_pretrained(folder, **{how})
    given = torch.load(folder / "expected.pt")
    with torch.no_grad():
        found = model(**given["inputs"]).logits
        # Another process may add up in another order.
        assert torch.allclose(found, given["logits"], atol=1e-5), (found - given["logits"]).abs().max()
        model.save_pretrained(folder / {again!r})
        again = getattr(transformers, auto).from_pretrained(folder / {again!r}, **{how})
        assert torch.equal(again(**given["inputs"]).logits, found)
    print(type(model).__module__)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model of each family, tokenizer and expected logits beside it."""
    root = tmp_path_factory.mktemp("crawd")
    for family in AUTO:
        model, head = model_with_head(family, scope="matrix", output="wide" if family == "gpt2" else "fuse")
        wrapped = (CrawdForSeq2SeqLM if family == "t5" else CrawdForCausalLM).around(model, head.config)
        wrapped.save_pretrained(root / family)
        tiny_lm(family).tokenizer.save_pretrained(root / family)
        inputs = {"input_ids": some_ids(2, 7)} | ({"decoder_input_ids": some_ids(2, 4)} if family == "t5" else {})
        # With gradients torch would choose other attention kernels, which round differently.
        with torch.no_grad():
            torch.save({"inputs": inputs, "logits": wrapped(**inputs).logits}, root / family / "expected.pt")
    return root


def started(code: str, folder: Path) -> subprocess.Popen[str]:
    """Python code in a process of its own that keeps remote code in this folder."""
    settings = os.environ | {"HF_MODULES_CACHE": str(folder / "modules"), "HF_HUB_OFFLINE": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], env=settings, stdout=pipe, stderr=pipe, text=True)


def test_loads_with_and_without_evenhand(folders: Path) -> None:
    """After `import evenhand`, which loads neither torch nor transformers, without remote code and without a question;
    where there is no evenhand, by the code in the folder, and what is saved from there brings it along."""
    registered = (
        "import sys, evenhand\n"
        "from evenhand.registering import register_when_loaded\n"
        "register_when_loaded(); register_when_loaded()\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    alone = "import sys\nsys.modules['evenhand'] = None"
    ways = ((registered, {}, "again"), (alone, {"trust_remote_code": True}, "and_again"))
    running = [
        started(first + LOAD.format(auto=AUTO, folder=str(folders), how=how, again=again), folders)
        for first, how, again in ways
    ]
    for process, home in zip(running, ("evenhand.modeling_crawd", "transformers_modules."), strict=True):
        printed, errors = process.communicate()
        assert process.returncode == 0, errors
        assert len(printed.split()) == 3
        assert all(name.startswith(home) for name in printed.split())


def test_registering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the Auto classes are there already they learn it at once; where it fails, transformers still loads."""
    monkeypatch.delitem(CONFIG_MAPPING._extra_content, "crawd")
    assert "crawd" not in CONFIG_MAPPING
    registering.register_when_loaded()
    assert "crawd" in CONFIG_MAPPING
    spec = registering.AfterAuto().find_spec(registering.AUTO, list(transformers.models.auto.__path__))
    assert spec is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "evenhand.modeling_crawd", None)
    with pytest.warns(UserWarning, match="will not know"):
        spec.loader.exec_module(module)  # pyright: ignore[reportOptionalMemberAccess]
    assert hasattr(module, "AutoModelForCausalLM")
    assert registering.AfterAuto().find_spec("json") is None


def test_the_folder(folders: Path) -> None:
    """Config, tied weights once, the reference and the cutoff."""
    config = json.loads((folders / "gpt2" / "config.json").read_text())
    assert config["auto_map"] == {
        "AutoConfig": "crawd_layer.CrawdConfig",
        "AutoModelForCausalLM": "modeling_crawd.CrawdForCausalLM",
    }
    assert config["base_config"]["model_type"] == "gpt2"
    assert (config["reference_length"], config["output"], config["share"]) == (5, "wide", 0.4)
    model = AutoModelForCausalLM.from_pretrained(folders / "gpt2")
    head = model.get_output_embeddings()
    assert isinstance(head, CrawdHead)
    assert head.head.weight is model.get_input_embeddings().weight
    assert torch.equal(head.block.threshold, torch.full((8,), 0.22))
    assert head.block.reference_mask.all()
    assert (model.config.vocab_size, model.config.hidden_size, model.config.num_hidden_layers) == (700, 32, 3)
    model.config.pad_token_id = 3
    assert model.base.config.pad_token_id == 3
    assert model.config.get_text_config() is model.base.config
    seq2seq = AutoModelForSeq2SeqLM.from_pretrained(folders / "t5")
    assert seq2seq.config.is_encoder_decoder
    eager = AutoModelForCausalLM.from_pretrained(folders / "llama", attn_implementation="eager")
    assert eager.base.config._attn_implementation == "eager"


def test_generate_and_pipeline(folders: Path) -> None:
    """Greedy tokens are those of a loop of plain forwards, in a pipeline too."""
    text = pipeline("text-generation", str(folders / "llama"), device="cpu")
    ids = text.tokenizer("the nurse said that", return_tensors="pt").input_ids
    grown = ids
    for _ in range(5):
        grown = torch.cat([grown, logits(text.model, grown)[:, -1:].argmax(-1)], 1)
    how = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    assert torch.equal(text.model.generate(ids, **how), grown)
    (answer,) = text("the nurse said that", return_tensors=True, **how)
    assert answer["generated_token_ids"] == grown[0].tolist()
    beams = text.model.generate(ids, num_beams=3, **how)
    assert beams.shape == grown.shape
    text.model.generation_config = GenerationConfig(max_new_tokens=2, do_sample=False)
    assert torch.equal(text.model.generate(ids), grown[:, :-3])


def test_wrapping_initialises_nothing_twice() -> None:
    """A model made from its config starts at its base model's answers, and one that is wrapped keeps all it has."""
    made = CrawdForCausalLM(CrawdConfig(tiny_model("llama").config)).eval()
    head = made.get_output_embeddings()
    ids = some_ids(2, 6)
    with torch.no_grad():
        plain = head.head(made.base_model(input_ids=ids).last_hidden_state)
    assert torch.equal(logits(made, ids), plain)
    model, _ = model_with_head("llama")
    new = torch.nn.Linear(32, 32, bias=False)
    model.model.layers[1].self_attn.o_proj = new
    weight = new.weight.detach().clone()
    before = logits(model, ids)
    wrapped = CrawdForCausalLM.around(model)
    assert torch.equal(logits(wrapped, ids), before)
    assert torch.equal(new.weight, weight)
    assert wrapped.get_output_embeddings() is model.get_output_embeddings()


def test_training_is_told_of_padding(folders: Path) -> None:
    """In training a padded row has the exact cutoff of the row alone."""
    for family in ("llama", "t5"):
        model, head = model_with_head(family, dropout=0.0)
        wrapped = (CrawdForSeq2SeqLM if family == "t5" else CrawdForCausalLM).around(model)
        head.block.train()
        wrapped.training = True
        ids, mask = some_ids(1, 7), torch.tensor([[1] * 4 + [0] * 3])
        labels = ids.masked_fill(mask == 0, -100)
        with torch.no_grad():
            if family == "t5":
                padded = wrapped(input_ids=ids, labels=labels).logits
                alone = wrapped(input_ids=ids, labels=labels[:, :4]).logits
            else:
                padded = wrapped(input_ids=ids, attention_mask=mask).logits
                alone = wrapped(input_ids=ids[:, :4]).logits
        torch.testing.assert_close(padded[:, :4], alone, rtol=1e-4, atol=1e-4)


def test_evenhand_reads_a_saved_folder(folders: Path, tmp_path: Path) -> None:
    """The engine finds blocks and head inside the wrapper and gives what a plain forward gives."""
    for family in ("llama", "gpt2"):
        lm = LM.load(str(folders / family), device="cpu")
        assert lm.kind == "causal"
        assert len(lm.blocks) == 3
        items = [([1, 20, 30], [40, 50]), ([1, 20, 30], [40, 60])]
        found = token_logprobs(lm, items, quiet_run(tmp_path / family), "test")
        for (context, target), values in zip(items, found, strict=True):
            logp = logits(lm.model, torch.tensor([context + target])).log_softmax(-1)[0]
            assert values == pytest.approx([logp[2, target[0]].item(), logp[3, target[1]].item()], abs=1e-4)


def trained(model: Any, rows: list[dict[str, Any]], folder: Path) -> tuple[float, float]:
    """The loss on the rows before and after three steps of the Trainer."""
    batch = {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}

    def loss() -> float:
        with torch.no_grad():
            return model.eval()(**batch).loss.item()

    before = loss()
    settings = TrainingArguments(
        str(folder), max_steps=3, per_device_train_batch_size=4, learning_rate=5e-3, report_to=[], use_cpu=True
    )
    trainer = Trainer(model, settings, train_dataset=rows)  # pyright: ignore[reportArgumentType]
    trainer.train()
    return before, loss()


@pytest.mark.parametrize("family", list(AUTO))
def test_trainer(folders: Path, tmp_path: Path, family: str) -> None:
    """Three steps lower the loss, the block learns, and the cutoff follows the batches."""
    model = CrawdForSeq2SeqLM if family == "t5" else CrawdForCausalLM
    model = model.from_pretrained(folders / family)
    head = model.get_output_embeddings()
    head.block.threshold.fill_(torch.nan)
    before = {name: value.clone() for name, value in head.named_parameters()}
    ids = some_ids(4, 8).tolist()
    rows = [{"input_ids": row, "attention_mask": [1] * 6 + [0] * 2, "labels": row[:6] + [-100] * 2} for row in ids]
    first, last = trained(model, rows, tmp_path)
    assert last < first - 0.05
    assert 0 < head.block.threshold.min() <= head.block.threshold.max() < 1
    assert not [name for name, value in head.named_parameters() if torch.equal(value, before[name])]
    assert head.told.x_mask is None
    model.save_pretrained(tmp_path / "saved")
    reloaded = type(model).from_pretrained(tmp_path / "saved")
    more: dict[str, Tensor] = {"attention_mask": torch.ones(4, 8)}
    assert torch.equal(logits(reloaded, torch.tensor(ids), **more), logits(model, torch.tensor(ids), **more))


def test_classifier_is_saved(tmp_path: Path) -> None:
    """Logits, labels and the reference come back through the Auto class; the Trainer trains it."""
    body = tiny_model("bert").base_model
    torch.manual_seed(0)
    config = CrawdConfig(body.config, id2label={0: "calm", 1: "angry"}, label2id={"calm": 0, "angry": 1})
    model = CrawdForSequenceClassification.from_base(body, config)
    assert torch.equal(model.body.encoder.layer[0].output.dense.weight, body.encoder.layer[0].output.dense.weight)
    shaken(model.block)
    remember(model, REFERENCE)
    rows = [{"input_ids": row, "labels": k % 2} for k, row in enumerate(some_ids(4, 6).tolist())]
    first, last = trained(model, rows, tmp_path)
    assert last < first
    model.save_pretrained(tmp_path / "saved")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert isinstance(loaded, CrawdForSequenceClassification)
    assert loaded.config.id2label == {0: "calm", 1: "angry"}
    with torch.no_grad():
        assert torch.equal(loaded(some_ids(3, 9)).logits, model(some_ids(3, 9)).logits)
