"""The documents' commands run, and what they name exists."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import tiny_folder

ROOT = Path(__file__).parents[1]


def commands(document: str) -> list[str]:
    """The lines of a document's fenced blocks that call evenhand."""
    blocks = re.findall(r"```\w*\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), flags=re.DOTALL)
    return [
        line.split("   #")[0].strip() for block in blocks for line in block.splitlines() if line.startswith("evenhand ")
    ]


def test_every_command_of_the_guide_runs(tmp_path: Path) -> None:
    """In order, in an empty folder, on a tiny model in place of SmolLM2."""
    model = tmp_path / "tiny"
    tiny_folder(model, "llama")
    lines = commands("docs/using.md")
    assert len(lines) >= 10
    script = "import sys; from evenhand.cli import main\nfor line in sys.stdin.read().splitlines():\n"
    script += "    import shlex; sys.argv = shlex.split(line)\n"
    script += "    try: main()\n    except SystemExit as end:\n        assert not end.code, line\n"
    given = "\n".join(
        shlex.join(str(model) if word == "smollm2" else word for word in shlex.split(line)) for line in lines
    )
    done = subprocess.run([sys.executable, "-c", script], input=given, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    for made in ("runs/base/results.json", "runs/fair/report.html", "runs/fair-model/model.safetensors", "runs/again"):
        assert (tmp_path / made).exists(), made


@pytest.mark.parametrize(
    "document",
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "PAPERS.md", "docs/results.md", "docs/classifiers.md"],
)
def test_files_that_documents_name_exist(document: str) -> None:
    """A path in backquotes or a link is there."""
    text = (ROOT / document).read_text(encoding="utf-8")
    named = re.findall(r"`((?:evenhand|tests|benchmarks|docs)/[\w/.-]*\w/?)`", text) + re.findall(
        r"\]\(([\w/.-]+)\)", text
    )
    missing = [name for name in named if not (ROOT / name).exists() and "my_method" not in name]
    assert not missing


def test_every_module_has_its_line_in_the_architecture() -> None:
    """A new room is written into the plan."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    modules = [
        path.stem
        for path in (ROOT / "evenhand").rglob("*.py")
        if path.stem != "__init__" or path.parent.name == "evenhand"
    ]
    assert [name for name in modules if f"`{name}`" not in text and f"/{name}.py`" not in text] == []
