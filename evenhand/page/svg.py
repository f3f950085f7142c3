"""Matplotlib figures as inline SVG that takes its colours and its font from the page."""

import io
import re
import warnings
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDE, NARROW = 1020, 350  # in CSS pixels: the text column of the page on a desktop and on a phone
POINT = 72  # matplotlib's SVG units in an inch

# Matplotlib needs real colours; these near-blacks stand for the page's own, so that one figure suits light and dark.
INK, MUTED, LINE, PAGE, QUIET, BEFORE, AFTER = (f"#0101{n:02x}" for n in range(1, 8))
PARTS = tuple(f"#0102{n:02x}" for n in range(1, 5))
PAGE_COLOURS = {
    INK: "currentColor",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    PAGE: "var(--page)",
    QUIET: "var(--quiet)",
    BEFORE: "var(--before)",
    AFTER: "var(--after)",
    **{colour: f"var(--part{n})" for n, colour in enumerate(PARTS, 1)},
}
SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",  # real text: sharp at any size, found by a search, read aloud
    "text.parse_math": False,  # a "$" in the data is a dollar sign
    "axes.unicode_minus": True,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": LINE,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelpad": 8,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 6,
    "ytick.major.pad": 6,
    "lines.solid_capstyle": "round",
}


class Sheet:
    """One figure in one width, and the words shown when the pointer rests on a mark."""

    def __init__(self, width: int) -> None:
        self.narrow = width == NARROW
        self.width = width
        self.figure = Figure(layout="constrained")
        self.figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1, wspace=0.03, hspace=0.05)  # type: ignore[union-attr]
        self.hints: dict[str, list[str]] = {}

    def size(self, height: float) -> Figure:
        """The figure, made this many pixels high."""
        self.figure.set_size_inches(self.width / POINT, height / POINT)
        return self.figure

    def panels(self, rows: int, columns: int, height: float, **options: Any) -> list[Axes]:
        """Panels filling the sheet, `height` pixels in all."""
        return list(self.size(height).subplots(rows, columns, squeeze=False, **options).flat)

    def hint(self, artist: Artist, words: list[str]) -> None:
        """Give an artist's marks, in order, the words to show on hover (no script needed)."""
        gid = f"hint{len(self.hints)}"
        artist.set_gid(gid)
        self.hints[gid] = [clean(word) for word in words]


def clean(text: object, longest: int = 60) -> str:
    """Text fit for a figure: no control characters, which XML forbids, and not too long for a label."""
    words = " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", " ", str(text)).split())
    return words if len(words) <= longest else words[: longest - 1] + "…"


def inline(name: str, title: str, paint: Callable[[Sheet], None]) -> Markup:
    """Paint a figure for a desktop and for a phone; the stylesheet shows one of the two.

    `name` must be unique on the page: every id inside the figure begins with it.
    """
    shapes = []
    for kind, width, font in (("wide", WIDE, 13.0), ("narrow", NARROW, 11.5)):
        sizes = {"font.size": font, "axes.titlesize": font, "axes.labelsize": font - 1}
        ticks = {"xtick.labelsize": font - 1, "ytick.labelsize": font - 1}
        settings: dict[Any, Any] = {**SETTINGS, **sizes, **ticks, "svg.hashsalt": name}
        with mpl.rc_context(settings), warnings.catch_warnings():
            # The browser's font has the letters that matplotlib's lacks.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            sheet = Sheet(width)
            paint(sheet)
            shapes.append(f'<div class="{kind}">{_page_svg(sheet, f"{name}-{kind}", title)}</div>')
    return Markup("".join(shapes))


def _page_svg(sheet: Sheet, name: str, title: str) -> str:
    file = io.BytesIO()
    sheet.figure.savefig(file, format="svg")
    root = ElementTree.fromstring(file.getvalue())
    _strip_names(root)
    _add_hints(root, sheet.hints)
    _rename_ids(root, name)
    _use_page_style(root)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": clean(title, 300)}
    head = ElementTree.Element("title")
    head.text = clean(title, 300)
    root.insert(0, head)
    return ElementTree.tostring(root, encoding="unicode")


def _strip_names(root: ElementTree.Element) -> None:
    """Drop XML namespaces, which HTML does not need, and the parts that would reach outside the figure."""
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        for child in list(element):
            # <metadata> holds today's date; <style> has a rule for "*", which would restyle the whole page.
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                element.remove(child)


def _add_hints(root: ElementTree.Element, hints: dict[str, list[str]]) -> None:
    for group in root.iter("g"):
        words = hints.get(group.get("id", ""))
        if not words:
            continue
        defined = {id(e) for d in group.iter("defs") for e in d.iter()}
        marks = [e for e in group.iter() if e.tag in ("use", "path") and id(e) not in defined]
        # matplotlib leaves out a mark that lies outside the figure; a hint on its neighbour would be a lie.
        if len(marks) == len(words):
            for mark, word in zip(marks, words, strict=True):
                ElementTree.SubElement(mark, "title").text = word


def _rename_ids(root: ElementTree.Element, name: str) -> None:
    """Keep only the ids that something points to, and put the figure's name before them."""
    used = dict.fromkeys(
        match
        for e in root.iter()
        for value in e.attrib.values()
        for match in re.findall(r"^#(.+)|url\(#(.+?)\)", value)
    )
    new = {a or b: f"{name}-{n}" for n, (a, b) in enumerate(used)}
    for element in root.iter():
        old = element.attrib.pop("id", None)
        if old in new:
            element.set("id", new[old])
        for key, value in element.attrib.items():
            if value.startswith("#") and value[1:] in new:
                element.set(key, "#" + new[value[1:]])
            elif value.startswith("url(#"):
                element.set(key, f"url(#{new[value[5:-1]]})")


def _use_page_style(root: ElementTree.Element) -> None:
    for element in root.iter():
        style = element.get("style")
        if style is None:
            continue
        style = re.sub(r"#[0-9a-f]{6}", lambda m: PAGE_COLOURS.get(m[0], m[0]), style)
        if element.tag in ("text", "tspan"):
            style = re.sub(r"font(-family)?: ([\d.]+px)?[^;]*", lambda m: f"font-size: {m[2]}" if m[2] else "", style)
        element.set("style", style.strip("; "))
