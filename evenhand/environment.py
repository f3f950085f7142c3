"""What a result was made with: versions, machine, code, seeds and checksums."""

import hashlib
import importlib.metadata
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["environment", "fingerprint"]

PACKAGES = ("torch", "transformers", "peft", "accelerate", "datasets", "numpy", "scipy", "pandas")


def environment() -> dict[str, Any]:
    """Versions, device and code; the same for every command."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "evenhand": importlib.metadata.version("evenhand") if installed("evenhand") else "not installed",
        "commit": commit(),
        "command": shlex.join(["evenhand", *sys.argv[1:]]),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(0) if cuda else f"cpu, {torch.get_num_threads()} threads",
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES if installed(name)},
    }


def installed(package: str) -> bool:
    """Whether a package is there."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def commit() -> str:
    """The commit of the checkout evenhand runs from, with a mark when files differ from it."""
    folder = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return found.stdout.strip() or "unknown"


def fingerprint(model: Any) -> str:
    """Twelve hexadecimal digits from the shape and the ends of every weight: cheap, and changed by any training."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        flat = tensor.detach().flatten()
        ends = (flat[:512].float().cpu().numpy().tobytes(), flat[-512:].float().cpu().numpy().tobytes())
        digest.update(name.encode() + str(tuple(tensor.shape)).encode() + ends[0] + ends[1])
    return digest.hexdigest()[:12]
