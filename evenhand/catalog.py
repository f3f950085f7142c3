"""What there is, by name: the file's name is the name, so there is no list to keep in step."""

import ast
import importlib
from pathlib import Path
from typing import Any

from evenhand.config import Refusal, closest

__all__ = ["KINDS", "load", "names", "summary"]

KINDS = ("data", "metrics", "methods", "locators", "recipes")
ROOT = Path(__file__).parent


def names(kind: str) -> list[str]:
    """All names of a kind, from the files in its folder."""
    if kind not in KINDS:
        raise Refusal(f"There is no kind {kind!r}{closest(kind, KINDS)}. Kinds: {', '.join(KINDS)}.")
    pattern = "*.yaml" if kind == "recipes" else "*.py"
    return sorted(path.stem for path in (ROOT / kind).glob(pattern) if not path.stem.startswith("_"))


def load(kind: str, name: str) -> type[Any]:
    """The one class that a file offers."""
    if name not in names(kind):
        singular = "dataset" if kind == "data" else kind.removesuffix("s")
        raise Refusal(f"There is no {singular} {name!r}{closest(name, names(kind))}. Known: {', '.join(names(kind))}.")
    module = importlib.import_module(f"evenhand.{kind}.{name}")
    return getattr(module, module.__all__[0])


def summary(kind: str, name: str) -> str:
    """The first sentence of what a file offers, read without importing it (so that `ls` answers at once)."""
    if kind == "recipes":
        return (ROOT / kind / f"{name}.yaml").read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ")
    tree = ast.parse((ROOT / kind / f"{name}.py").read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    public = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    )[0]
    text = next(ast.get_docstring(node) or "" for node in classes if node.name == public)
    return text.split("\n", 1)[0]
