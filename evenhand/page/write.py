"""A page from its template, written whole or not at all."""

import os
import tempfile
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

HERE = Path(__file__).parent


def render(template: str, *styles: str, **values: Any) -> str:
    """A template of this folder, filled in, with the named stylesheets one after another."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = Markup("").join(Markup((HERE / name).read_text("utf-8")) for name in styles)
    return templates.get_template(template).render(style=style, **values)


def write(folder: Path, page: str) -> Path:
    """Write `folder/report.html`, and return its path."""
    path = folder / "report.html"
    # Written aside and renamed, so that a reader never meets half a page.
    handle, aside = tempfile.mkstemp(prefix=".report-", suffix=".html", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(page.encode("utf-8", errors="replace"))
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise
    return path
