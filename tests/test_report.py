"""The report: right numbers, nothing but data escaped into one file, and a page that fits a desktop and a phone."""

import html
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from report_page import Page, chromium, open_page, wrapper, write_records
from report_sample import write_many, write_measure, write_sample

from evenhand.page import build
from evenhand.page.folder import read
from evenhand.page.plain import number

ATTACK = "<script>alert(1)</script>"
MODEL = """it's "quoted" & <b>bold</b>"""


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


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measurement with many metrics, one of which failed and one of which was skipped, with its report."""
    folder = write_many(tmp_path_factory.mktemp("report") / "many", ATTACK)
    build(folder)
    return folder


def test_debias_page_has_every_section_in_order(debias: Path) -> None:
    page = Page((debias / "report.html").read_text("utf-8"))
    assert page.sections == [
        *("verdict", "words", "groups", "blocks", "leaning", "biased", "curve", "cost", "examples", "repeat")
    ]
    assert page.tags["svg"] == 3 + 2 * 6  # a strip for each metric; six figures, each for a desktop and a phone
    assert page.tags["details"] == 2 + 2 + 1 + 1 + 3 + 2
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


def test_page_loads_nothing_and_runs_nothing(debias: Path, hostile: Path, many: Path) -> None:
    for folder in (debias, hostile, many):
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
    assert page.sections == ["scores", "words", "groups", "leaning", "biased", "repeat"]
    assert "smollm2, measured" in page.text
    assert "hints are followed (100 %)" in page.text
    assert "✓" not in page.text


def test_every_metric_has_its_card(many: Path) -> None:
    text = (many / "report.html").read_text("utf-8")
    page = Page(text)
    assert page.sections == ["scores", "words", "groups", "leaning", "biased", "unmeasured", "cost", "repeat"]
    assert page.tags["article"] == 8
    assert text.count('class="gauge"') == 7  # not perplexity, whose scale has no end
    results = json.loads((many / "results.json").read_text())["scores"]
    for score in results.values():
        assert f"{score['value']:.{2 if score['value'] > 10 else 3}f} [" in page.text
    for words in (
        "Of two sentences that differ in the group named",
        "240 rows, bootstrap over 80 terms",
        "944 rows, bootstrap over rows",
        "240 rows, bootstrap over 80 categories",
        "scorer mean, context window 512",
        "made_up (e7e7e7e7e7e7)",
        "icat 71.86",
        "lm-eval on hellaswag",
        "perplexity is 20.29; 5 more scores are below; one metric could not be measured.",
    ):
        assert words in page.text


def test_what_could_not_be_measured_is_named(many: Path) -> None:
    page = Page((many / "report.html").read_text("utf-8"))
    why = f"The file labels.csv has no column label (columns: text{ATTACK}); name it."
    assert f"What could not be measured Label F1 failed {why} lm-eval on mmlu skipped lm-eval" in page.text
    assert "of measuring 19 min 46 s AFGB 3.0 s UB 44 s" in page.text
    assert {"unmeasured"} <= {first for first, _ in page.references} <= page.ids.keys() | {""}


def test_offensive_examples_are_escaped_and_folded(many: Path) -> None:
    text = (many / "report.html").read_text("utf-8")
    assert "<script" not in text
    folds = re.findall(r"<details>(.*?)</details>", text, flags=re.DOTALL)
    shown = f"The stranger{html.escape(ATTACK)} number"
    assert sum(fold.count(shown) for fold in folds) == text.count(shown) == 4 * 10  # afgb has other texts
    assert all("can be offensive" in fold for fold in folds if shown in fold)
    assert "<details open" not in text


def test_most_groups_are_drawn_and_all_are_tabled(many: Path) -> None:
    text = (many / "report.html").read_text("utf-8")
    page = Page(text)
    score = json.loads((many / "results.json").read_text())["scores"]["bbq"]
    far = sorted(score["groups"], key=lambda name: abs(score["groups"][name]["value"]), reverse=True)
    assert len(far) == 27
    for place, name in enumerate(far):
        drawn = text.count(f"<title>{name}, measured: {number(score['groups'][name]['value'])}</title>")
        assert drawn == (2 if place < 20 else 0)
        assert f'<th scope="row">{name}</th>' in text
    assert "answers that follow the stereotype; the 20 of 27 groups farthest from the ideal" in page.text
    assert "group score n lms icat intersentence gender" in page.text


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
    assert "CrowS-Pairs is 61.50." in page.text


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


@pytest.mark.parametrize("kind", ["debias", "hostile", "many"])
def test_page_is_never_wider_than_its_window(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    shutil.copy(request.getfixturevalue(kind) / "report.html", tmp_path)
    widths = (1280, 900, 760, 390)
    printed = chromium(tmp_path, "--window-size=1400,1000", "--dump-dom", wrapper(tmp_path, widths))
    found = re.search(r"<title>(.*?)</title>", printed)
    assert found is not None
    assert found[1] == " ".join(f"{width}/{width}" for width in widths)


@pytest.mark.parametrize("kind", ["debias", "many"])
@pytest.mark.parametrize("width", [1280, 390])
def test_screenshot_is_not_blank(width: int, kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    shutil.copy(request.getfixturevalue(kind) / "report.html", tmp_path)
    picture = tmp_path / "page.png"
    chromium(tmp_path, f"--window-size={max(width, 500)},3000", f"--screenshot={picture}", wrapper(tmp_path, (width,)))
    pixels = np.asarray(Image.open(picture).convert("L"))[:, :width]
    bands = np.array_split(pixels, 6)
    assert all(band.std() > 5 for band in bands), "a sixth of the page shows nothing"
