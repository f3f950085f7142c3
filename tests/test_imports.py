"""The road: a module imports what stands to its left; and the command line starts before anything heavy is imported."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "evenhand"
ROAD = (
    ("crawd_layer", "lora"),
    ("modeling_crawd",),
    ("config", "words", "swapping", "catalog", "stats", "bundled", "hub", "run", "environment", "trees", "registering"),
    ("data",),
    ("lm",),
    ("hooks", "association"),
    ("scoring", "losses", "train", "attending"),
    ("locators",),
    ("methods",),
    ("metrics",),
    ("exporting",),
    ("page", "harness_results"),
    ("plan",),
    ("steps",),
    ("recipe", "tables", "show", "distilling", "classifying"),
    ("api",),
    ("cli",),
    ("__main__",),
)
PLACE = {name: place for place, names in enumerate(ROAD) for name in names}
EXEMPT = ("cli", "__init__", "__main__")
HEAVY = ("torch", "transformers", "pandas", "numpy", "scipy", "datasets", "accelerate", "matplotlib")
FILES = sorted(ROOT.rglob("*.py"))


def room(path: Path) -> str:
    """The module or folder right below evenhand that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The rooms a file imports from, wherever in it the import stands; a bare `evenhand` is the package itself."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # A saved model takes this file and the layer's along, and there they have no package.
            home = "evenhand." if path.name == "modeling_crawd.py" and node.level else ""
            assert home or node.level == 0, f"{path}: imports are absolute"
            names = [f"{home}{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.split(".")[0] == "evenhand" and "." in name}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_imports_what_stands_to_the_right(path: Path) -> None:
    here = room(path)
    if here == "__init__":
        return
    assert here in PLACE, f"give {here} its place on the road"
    assert imported(path) <= set(PLACE), f"{path} imports something that has no place on the road"
    if here not in EXEMPT:
        right = {name for name in imported(path) if PLACE[name] > PLACE[here]}
        assert not right, f"{here} imports {', '.join(sorted(right))}, which stand to its right"


def test_the_road_names_nothing_that_is_gone() -> None:
    assert set(PLACE) == {room(path) for path in FILES} - {"__init__"}
    assert imported(ROOT / "steps.py") >= {"catalog", "lm", "plan", "page", "run"}  # the reader of imports works


def test_the_page_needs_only_itself() -> None:
    for path in (ROOT / "page").glob("*.py"):
        assert imported(path) <= {"page"}, path.name


def test_the_command_line_imports_nothing_heavy() -> None:
    script = "import sys, evenhand.cli; print(*sorted(name for name in sys.modules))"
    loaded = set(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.split())
    assert "evenhand.cli" in loaded
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("arguments", [["ls"], ["--help"]])
def test_the_command_line_answers_within_a_second(arguments: list[str]) -> None:
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        found = subprocess.run([sys.executable, "-m", "evenhand", *arguments], capture_output=True, text=True)
        taken.append(time.perf_counter() - started)
        assert found.returncode == 0
        assert "evenhand" in found.stdout or "afgb" in found.stdout
    assert min(taken) < 1
