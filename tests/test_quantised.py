"""QLoRA: a base model in four bits with adapters beside it."""

import importlib.util
from pathlib import Path

import pytest
import torch
from tiny import quiet_run, tiny_folder
from torch import Tensor

from evenhand.config import Refusal, values
from evenhand.data._rows import Text
from evenhand.data.biographies import Biographies
from evenhand.environment import fingerprint
from evenhand.exporting import export, save_method
from evenhand.lm import LM
from evenhand.methods.crawd import CrAWD

needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed (evenhand[quant])"
)
ROWS = [row for row in Biographies().take("train", 16) if isinstance(row, Text)]


@torch.no_grad()
def logits_of(lm: LM) -> Tensor:
    return lm.model(input_ids=torch.tensor(lm.encode(["The nurse waited because"]))).logits[0].float()


@needs_bitsandbytes
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_four_bits_train_and_come_back_equal(preset: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "base", "llama", hidden_size=64, intermediate_size=128)
    lm = LM.load(str(folder), dtype="nf4", device="cpu")
    assert any(type(module).__name__ == "Linear4bit" for module in lm.model.modules())
    assert fingerprint(lm.model) != fingerprint(LM.load(str(folder), device="cpu").model)
    before = logits_of(lm)
    run = quiet_run(tmp_path / "run")
    settings = CrAWD.presets["paper"] if preset == "paper" else {}
    method = CrAWD(**{**settings, "epochs": 2, "batch": 8, "rate": 1e-2, "dropout": 0.0})
    state = method.fit(lm, ROWS, run)
    curve = run.read("curve.parquet")
    assert curve["cross_entropy"].iloc[-1] < curve["cross_entropy"].iloc[0]
    after = logits_of(lm)
    assert (after - before).abs().max() > 1e-3
    save_method(run, lm, str(folder), "crawd", values(method), state)
    again = LM.load(str(run.folder), dtype="nf4", device="cpu")
    assert torch.allclose(logits_of(again), after, atol=1e-4)
    if preset == "default":
        run.save("results.json", {"before": {}, "after": {}, "verdicts": {}, "train": {"trainable": 1, "total": 2}})
        assert export(run.folder, tmp_path / "plain") < 1e-4  # onto the unrounded base, as is usual


def test_without_the_package_it_says_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "base", "llama")
    monkeypatch.setattr("evenhand.lm.importlib.util.find_spec", lambda _: None)
    with pytest.raises(Refusal, match="pip install 'evenhand"):
        LM.load(str(folder), dtype="nf4", device="cpu")
