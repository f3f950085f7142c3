"""Reading a report as a browser does, for the tests of the report."""

import json
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenhand.page import build

FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --hide-scrollbars --allow-file-access-from-files"
)


class Page(HTMLParser):
    """What a browser would make of the page: its tags, its ids, and where its references point."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.references: set[str] = set()
        self.attributes: set[str] = set()
        self.words: list[str] = []
        self.sections: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids[value or ""] += 1
            self.references |= set(re.findall(r"^#(.+)|url\(#(.+?)\)", value or ""))
        if tag == "section":
            self.sections.append(dict(attrs).get("id") or "")

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        """The words a reader sees, with ordinary spaces."""
        return " ".join(" ".join(self.words).replace("\u00a0", " ").split())


def open_page(folder: Path) -> Page:
    """Build a folder's report and read it back."""
    return Page(build(folder).read_text("utf-8"))


def write_records(folder: Path, results: dict[str, Any], **config: Any) -> Path:
    """A run folder with nothing but the three files that are always there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"command": "measure", "model": "smollm2", **config}))
    (folder / "environment.json").write_text("{}")
    (folder / "results.json").write_text(json.dumps(results))
    return folder


def chromium(folder: Path, *arguments: str) -> str:
    """Run a browser without a window in a profile of its own, and return what it prints."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed: the page's layout was not checked")
    command = [path, *FLAGS.split(" "), f"--user-data-dir={folder / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def wrapper(folder: Path, widths: tuple[int, ...]) -> str:
    """A page beside the report that shows it in frames: a browser's own window cannot be as narrow as a phone."""
    frames = "".join(f'<iframe src="report.html" style="border:0;width:{w}px;height:3000px"></iframe>' for w in widths)
    script = """onload = () => { document.title = [...document.querySelectorAll("iframe")].map(frame => {
        const page = frame.contentDocument;
        page.querySelectorAll("details").forEach(fold => { fold.open = true; });
        return page.documentElement.clientWidth + "/" + page.documentElement.scrollWidth;
    }).join(" "); }"""
    path = folder / "wrapper.html"
    path.write_text(f"<!doctype html><title></title><style>body{{margin:0}}</style>{frames}<script>{script}</script>")
    return path.as_uri()
