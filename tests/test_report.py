"""The report: right numbers, nothing but data escaped into one file, and a page that fits a desktop and a phone."""

import html
import json
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from report_sample import write_measure, write_sample

from evenhand.page import build
from evenhand.page.folder import read
from evenhand.page.plain import amount, chance, duration, number, percent
from evenhand.page.story import headline
from evenhand.page.tables import changed

ATTACK = "<script>alert(1)</script>"
MODEL = """it's "quoted" & <b>bold</b>"""
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


@pytest.fixture(scope="module")
def debias(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A debias run with its report."""
    folder = write_sample(tmp_path_factory.mktemp("report") / "debias")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on three words whose every text tries to break out of the page, or out of its column."""
    names = [ATTACK, "$x^2$ \\frac & \"q\" 'r'", "x" * 300, "tab\there \x0b \x00", "护士"]
    folder = write_sample(tmp_path_factory.mktemp("report") / "hostile", ("white", "black", "Asian</title>"), names)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config |= {"model": MODEL, "method": {"name": ATTACK, "note": "y" * 300}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    environment = {"command": f"evenhand debias '{ATTACK}' " + "z" * 300, "versions": {ATTACK: ATTACK}}
    (folder / "environment.json").write_text(json.dumps(environment))
    results = json.loads((folder / "results.json").read_text())
    for state in ("before", "after"):
        results[state][ATTACK] = {"value": 1.0, "ideal": 0, "headline": ATTACK, "groups": {ATTACK: 0.5}}
        results[state]["afgb"]["groups"] |= {ATTACK: 0.5, "$x^2$ & y": 0.4}
    results["verdicts"][ATTACK] = {"delta": 0.0, "low": 0, "high": 0, "p": 1.0, "verdict": ATTACK}
    (folder / "results.json").write_text(json.dumps(results))
    build(folder)
    return folder


def test_debias_page_has_every_section_in_order(debias: Path) -> None:
    page = Page((debias / "report.html").read_text("utf-8"))
    assert page.sections == ["verdict", "words", "scale", "blocks", "leaning", "curve", "cost", "examples", "repeat"]
    assert page.tags["svg"] == 3 + 2 * 5  # a strip for each metric; five figures, each for a desktop and a phone
    assert page.tags["details"] == 1 + 1 + 3 + 2
    for text in ("✓ improved", "≈ inconclusive", "6 min 53 s", "3.5 M of 134.5 M", "3.2 GB", "Block 26 of 30"):
        assert text in page.text
    assert "evenhand debias smollm2 --method lftf" in page.text


def test_debias_page_tells_the_tables_numbers(debias: Path) -> None:
    page = Page((debias / "report.html").read_text("utf-8"))
    gaps = [pd.read_parquet(debias / state / "afgb.parquet")["gap"].mean() for state in ("before", "after")]
    assert f"The gap between he and she fell by {100 * (1 - gaps[1] / gaps[0]):.0f} %;" in page.text
    assert f"{gaps[0]:.3f} [" in page.text
    assert f"{gaps[1]:.3f} [" in page.text


def test_every_dot_tells_its_profession(debias: Path) -> None:
    page = (debias / "report.html").read_text("utf-8")
    table = pd.read_parquet(debias / "before/afgb.parquet")
    means = table.groupby("subject")[["p_he", "p_she"]].mean().loc["senior nurse"]
    assert page.count(f"<title>senior nurse: he {means['p_he']:.3f}, she {means['p_she']:.3f}</title>") == 2


def test_page_loads_nothing_and_runs_nothing(debias: Path, hostile: Path) -> None:
    for folder in (debias, hostile):
        text = (folder / "report.html").read_text("utf-8")
        page = Page(text)
        assert "http://" not in text
        assert "https://" not in text
        assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & page.tags.keys()
        assert "src" not in page.attributes
        assert not [name for name in page.attributes if name.startswith("on")]
        assert "@import" not in text
        assert not re.search(r"url\((?!#)", text)


def test_ids_are_unique_and_references_resolve(debias: Path) -> None:
    page = Page((debias / "report.html").read_text("utf-8"))
    assert max(page.ids.values()) == 1
    assert page.references
    assert {first or second for first, second in page.references} <= page.ids.keys()


def test_all_text_from_the_run_is_escaped(hostile: Path) -> None:
    text = (hostile / "report.html").read_text("utf-8")
    page = Page(text)
    assert "<script" not in text
    assert html.escape(ATTACK) in text
    assert page.tags["title"] == text.count("<title>") == text.count("</title>")
    assert "<b>bold" not in text
    assert f"{MODEL}, debiased with {ATTACK}" in page.text
    assert "$x^2$ \\frac & \"q\" 'r'" in page.text  # neither mathematics nor an entity
    assert len(re.findall(r"<text [^>]*>\$x\^2\$ &amp; y</text>", text)) == 2  # as a figure's label, for either width
    assert "护士" in page.text
    assert "\x0b" not in text


def test_two_builds_are_equal_and_leave_nothing_behind(debias: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(debias, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("report.html"))
    before = {path.relative_to(copy) for path in copy.rglob("*")}
    assert build(copy).read_bytes() == (debias / "report.html").read_bytes()
    assert {path.relative_to(copy) for path in copy.rglob("*")} - before == {Path("report.html")}


def test_three_words_are_shown_as_shares(hostile: Path) -> None:
    page = Page((hostile / "report.html").read_text("utf-8"))
    assert "The gap between white, black and Asian</title> fell by" in page.text
    table = pd.read_parquet(hostile / "before/afgb.parquet")
    means = table[table["subject"] == "nanny"][["p_white", "p_black", "p_Asian</title>"]].mean()
    assert f"nanny: white {means['p_white'] / means.sum():.3f} of the words' mass" in page.text


def test_measure_page(tmp_path: Path) -> None:
    page = open_page(write_measure(tmp_path / "measure"))
    assert page.sections == ["verdict", "words", "scale", "leaning", "repeat"]
    assert "smollm2, measured" in page.text
    assert "hints are followed (100 %)" in page.text
    assert "✓" not in page.text


def test_locate_page(tmp_path: Path) -> None:
    folder = write_records(tmp_path / "locate", {}, command="locate")
    blocks = np.arange(6)
    ranking = {"block": blocks, "score": blocks / 10, "chosen": blocks == 5}
    pd.DataFrame(ranking).to_parquet(folder / "ranking.parquet")
    page = open_page(folder)
    assert page.sections == ["blocks", "repeat"]
    assert "Block 5 of 6 was chosen as the one that carries the bias." in page.text
    readings = {"bmi_before_norm": 6.0 - blocks, "bmi_after_norm": blocks + 1.0}
    pd.DataFrame(ranking | readings).to_parquet(folder / "ranking.parquet")
    assert "block 0 when read before the final norm and to block 5 when read after it" in open_page(folder).text


def test_minimal_page(tmp_path: Path) -> None:
    page = open_page(write_records(tmp_path / "bare", {}))
    assert page.sections == ["repeat"]
    assert "No scores were taken in this run." in page.text


def test_scores_without_intervals_tables_or_values(tmp_path: Path) -> None:
    score = {"value": None, "low": None, "high": None, "ideal": 0, "n": 0, "groups": {"word": None}, "extra": None}
    page = open_page(write_records(tmp_path / "null", {"scores": {"afgb": score, "crows_pairs": {"value": 61.5}}}))
    assert "Crows pairs is 61.50." in page.text


def test_a_subject_missing_after_is_left_out(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "run")
    table = pd.read_parquet(folder / "after/afgb.parquet")
    first = read(folder).tables["afgb"]["before"]
    lean = (first["p_he"] - first["p_she"]).groupby(first["subject"]).mean().abs()
    table[table["subject"] != lean.idxmax()].to_parquet(folder / "after/afgb.parquet")
    assert f"{lean.idxmax()}, before:" in open_page(folder).text


def test_a_failed_build_keeps_the_old_report(tmp_path: Path) -> None:
    folder = write_records(tmp_path / "run", {})
    old = build(folder).read_bytes()
    (folder / "results.json").write_text("{")
    with pytest.raises(json.JSONDecodeError):
        build(folder)
    assert (folder / "report.html").read_bytes() == old
    assert not list(folder.glob(".report-*"))


def sentence(folder: Path, verdicts: dict[str, str], before: dict[str, float], after: dict[str, float]) -> str:
    """The headline of a debias run with these scores."""
    ideals = {"afgb": 0, "ub": 1, "perplexity": 1, "crows_pairs": 50}
    states = {
        name: {metric: {"value": value, "ideal": ideals[metric]} for metric, value in values.items()}
        for name, values in (("before", before), ("after", after))
    }
    results = {**states, "verdicts": {metric: {"verdict": verdict} for metric, verdict in verdicts.items()}}
    return headline(read(write_records(folder, results, command="debias"))).replace("\u00a0", " ")


def test_headline_says_what_happened(tmp_path: Path) -> None:
    before = {"perplexity": 20.0, "afgb": 0.5, "ub": 0.979}
    good = sentence(
        tmp_path,
        {"afgb": "improved", "ub": "inconclusive", "perplexity": "inconclusive"},
        before,
        {"perplexity": 20.06, "afgb": 0.08, "ub": 0.98},
    )
    assert good == (
        "The gap between the compared words fell by 84 %; "
        "hints are followed as before (UB 0.980); perplexity rose by 0.3 %."
    )
    bad = sentence(
        tmp_path,
        {"afgb": "inconclusive", "ub": "regressed", "crows_pairs": "regressed"},
        before | {"crows_pairs": 55.0},
        {"perplexity": 20.0, "afgb": 0.49, "ub": 0.6, "crows_pairs": 70.0},
    )
    assert bad == (
        "The gap between the compared words did not change measurably (0.500 before, 0.490 after); "
        "hints are followed less strongly (UB 0.979 before, 0.600 after); "
        "perplexity stayed the same; crows pairs got worse."
    )


def test_headline_counts_the_hints_that_are_followed(tmp_path: Path) -> None:
    score = {"value": 0.1, "ideal": 1}
    folder = write_records(tmp_path, {"scores": {"ub": score}})
    (folder / "tables").mkdir()
    p = {"p_he": [0.3, 0.2, 0.1, 0.4], "p_she": [0.1, 0.3, 0.2, 0.1]}
    pd.DataFrame({"axis": "gender", "hint": ["he", "she", "he", "he"], **p}).to_parquet(folder / "tables/ub.parquet")
    assert headline(read(folder)).replace("\u00a0", " ") == "Hints are followed (75 %)."


def test_headline_warns_when_the_words_are_avoided(tmp_path: Path) -> None:
    states = {
        state: {"afgb": {"value": value, "ideal": 0, "extra": {"mass": mass}}}
        for state, value, mass in (("before", 0.4, 0.6), ("after", 0.1, 0.15))
    }
    folder = write_records(tmp_path, {**states, "verdicts": {"afgb": {"verdict": "improved"}}}, command="debias")
    assert headline(read(folder)).endswith("the words themselves became less likely (0.600 before, 0.150 after).")


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (number(-0.2), "−0.200"),
        (number(-0.00001, 3, sign=True), "0.000"),
        (number(0.0000123), "1.2e−05"),
        (number(12345.6), "12,346"),
        (number(float("nan")), "–"),
        (percent(0.003), "0.3 %"),
        (percent(0.843), "84 %"),
        (percent(1.0), "100 %"),
        (percent(0.9951), "99.5 %"),
        (chance(0.0004), "< 0.001"),
        (duration(7210), "2 h 0 min"),
        (duration(3.21), "3.2 s"),
        (amount(134515008), "134.5 M"),
    ],
)
def test_numbers_are_written_for_people(made: str, wanted: str) -> None:
    assert made.replace("\u00a0", " ") == wanted


def test_examples_are_those_that_moved_most() -> None:
    ids = [f"row-{n}" for n in range(50)]
    before = pd.DataFrame({"id": ids, "group": "word", "text": ids, "p_he": 0.5, "p_she": 0.2})
    after = before.assign(p_he=0.5 - np.arange(50) / 100).sample(frac=1, random_state=0)
    rows = changed({"before": before, "after": after})
    assert [row.text for row in rows] == [f"row-{n}" for n in range(49, 39, -1)]
    assert rows[0].numbers == [("he", "0.500", "0.010"), ("she", "0.200", "0.200")]


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


@pytest.mark.parametrize("kind", ["debias", "hostile"])
def test_page_is_never_wider_than_its_window(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    shutil.copy(request.getfixturevalue(kind) / "report.html", tmp_path)
    widths = (1280, 900, 760, 390)
    printed = chromium(tmp_path, "--window-size=1400,1000", "--dump-dom", wrapper(tmp_path, widths))
    found = re.search(r"<title>(.*?)</title>", printed)
    assert found is not None
    assert found[1] == " ".join(f"{width}/{width}" for width in widths)


@pytest.mark.parametrize("width", [1280, 390])
def test_screenshot_is_not_blank(width: int, debias: Path, tmp_path: Path) -> None:
    shutil.copy(debias / "report.html", tmp_path)
    picture = tmp_path / "page.png"
    chromium(tmp_path, f"--window-size={max(width, 500)},3000", f"--screenshot={picture}", wrapper(tmp_path, (width,)))
    pixels = np.asarray(Image.open(picture).convert("L"))[:, :width]
    bands = np.array_split(pixels, 6)
    assert all(band.std() > 5 for band in bands), "a sixth of the page shows nothing"
