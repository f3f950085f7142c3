"""A model with CrAWD's layer leaves as it is with its code, or as ordinary weights that were taught; and the picture of
where it looks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import tiny_folder
from torch import Tensor
from typer.testing import CliRunner

from evenhand import steps
from evenhand.attending import attended
from evenhand.cli import app
from evenhand.crawd_layer import CrawdHead
from evenhand.distilling import distil
from evenhand.exporting import adds_layers, export
from evenhand.lm import LM
from evenhand.recipe import job_of

ROWS = [
    "The doctor said that he was late for work again",
    "The nurse said that she was early for work again",
    "A teacher wrote her name on the board and smiled",
    "The farmer sold his horses in the spring of that year",
]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the printed architecture on a tiny model."""
    root = tmp_path_factory.mktemp("printed")
    base = tiny_folder(root / "base", "llama")
    corpus = root / "texts.jsonl"
    corpus.write_text("\n".join(json.dumps({"text": text}) for text in ROWS * 8), encoding="utf-8")
    method = {"epochs": 3, "batch": 8, "rate": 1e-2, "dropout": 0.0}
    job = job_of(
        {
            "command": "debias",
            "model": str(base),
            "method": "crawd",
            "preset": "paper",
            "data": str(corpus),
            "metrics": ["perplexity"],
            "limit": 32,
            "settings": {"method": method},
        }
    )
    steps.debias(job, root / "run", quiet=True)
    return root / "run"


@torch.no_grad()
def logits_of(lm: LM) -> Tensor:
    return lm.model(input_ids=torch.tensor(lm.encode(["The doctor said that he"]))).logits[0]


def test_with_its_layer_it_loads_from_the_folder_alone(printed: Path, tmp_path: Path) -> None:
    assert adds_layers(printed)
    assert export(printed, tmp_path / "whole") < 1e-4
    loaded = LM.load(str(tmp_path / "whole"))
    assert isinstance(loaded.head, CrawdHead)
    assert torch.allclose(logits_of(loaded), logits_of(LM.load(str(printed))), atol=1e-5)
    # Where evenhand cannot be imported, the copy of the code in the folder does it.
    code = (
        "import sys; sys.modules['evenhand'] = None\n"
        "from transformers import AutoModelForCausalLM\n"
        f"m = AutoModelForCausalLM.from_pretrained({str(tmp_path / 'whole')!r}, trust_remote_code=True)\n"
        "print(type(m).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.split() == ["CrawdForCausalLM"]


def test_taught_to_the_base_architecture_it_agrees_and_says_how_far(printed: Path, tmp_path: Path) -> None:
    report = distil(printed, tmp_path / "plain")
    plain, run, base = LM.load(str(tmp_path / "plain")), LM.load(str(printed)), LM.load(str(printed.parent / "base"))
    assert type(plain.model).__name__ == "LlamaForCausalLM"
    assert not isinstance(plain.head, CrawdHead)
    z, wanted, untaught = (logits_of(lm).log_softmax(-1) for lm in (plain, run, base))
    apart = [(wanted.exp() * (wanted - other)).sum(-1).mean() for other in (z, untaught)]
    assert apart[0] < apart[1]
    assert report == json.loads((tmp_path / "plain" / "distilled.json").read_text(encoding="utf-8"))
    assert set(report["run"]) == set(report["exported"]) == {"perplexity"}
    assert report["agreement"]["positions"] > 100
    assert "taught to expect" in (tmp_path / "plain" / "README.md").read_text(encoding="utf-8")
    assert not list(tmp_path.glob("*.part*"))


def test_the_command_line_chooses_and_keeps_what_is_there(printed: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(printed), str(tmp_path / "out"), "--keep-layers"])
    assert done.exit_code == 0
    assert "logits equal" in done.output
    (tmp_path / "there").mkdir()
    done = CliRunner().invoke(app, ["export", str(printed), str(tmp_path / "there")])
    assert "exists already" in str(done.exception)


def test_where_it_looks(printed: Path, tmp_path: Path) -> None:
    """Of the layer: weights that add up to 1 before the decay and to less after it; of any model: one state."""
    table = attended(str(printed), "The doctor said", ["gender"])
    sums = table.groupby("place")[["before", "after"]].sum()
    assert sums["before"].to_numpy() == pytest.approx(1, rel=1e-4)
    assert (sums["after"] <= sums["before"] + 1e-6).all()
    assert (sums["after"] < 0.99).any()
    plain = attended(str(printed.parent / "base"), "The doctor said", ["gender", "age"])
    assert set(plain["word"]) == {"he", "she", "young", "old"}
    assert plain["after"].isna().all()
    page = tmp_path / "looks.html"
    base = str(printed.parent / "base")
    done = CliRunner().invoke(app, ["attention", base, "The <b>doctor</b> said", "--out", str(page)])
    assert done.exit_code == 0
    assert "token" in done.output
    assert "<b>doctor" not in page.read_text(encoding="utf-8")
    assert "exists already" in str(CliRunner().invoke(app, ["attention", base, "x", "--out", str(page)]).exception)
