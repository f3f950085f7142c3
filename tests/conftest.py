"""What every test stands on: all cores, no network, one process, and a tiny model."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CORES = str(len(os.sched_getaffinity(0)))
# Before torch, transformers and huggingface_hub are imported, for they read these once.
os.environ.setdefault("OMP_NUM_THREADS", CORES)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random llama as an ordinary transformers folder."""
    from tiny import tiny_folder

    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_folder(folder, "llama")
    return str(folder)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A test leaves the environment as it found it, and accelerate's shared state to nobody."""
    watched = ("EVENHAND_CACHE", "EVENHAND_DATA", "RANK", "WORLD_SIZE")
    before = {name: os.environ.get(name) for name in watched}
    yield
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
    assert {name: os.environ.get(name) for name in watched} == before


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own folder, as the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def base(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished measure run."""
    from roads import measuring, steps

    folder = tmp_path_factory.mktemp("runs") / "base"
    steps.measure(measuring(tiny), folder, quiet=True)
    return folder


@pytest.fixture(scope="session")
def fair(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished debias run."""
    from roads import debiasing, steps

    folder = tmp_path_factory.mktemp("runs") / "fair"
    steps.debias(debiasing(tiny), folder, quiet=True)
    return folder


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at numbers: a page takes longer than a tiny model's whole road."""
    from evenhand import steps

    monkeypatch.setattr(steps, "build_page", lambda folder: None)
