"""The page's evidence (the model's own words, associated tokens, heat maps) and the page of a table of runs."""

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from report_page import Page, chromium, open_page, wrapper, write_records

from evenhand.page import build, build_table_page
from evenhand.page.attention import about, attention
from evenhand.page.chips import associated
from evenhand.page.labels import Box, placed
from evenhand.page.own_words import chosen, marked, paired
from evenhand.page.table_page import axes_of, cell, headline
from evenhand.page.tradeoff import Point, family, wanted
from evenhand.page.write import HERE

ATTACK = "<script>alert(1)</script>"
SECTIONS = ("told", "associated", "looks")
PEOPLE = ("doctor", "nurse", "gardener", "singer", "captain", "baker", "lawyer", "dancer", "pilot", "clerk")
GENDERED = (
    "he told his brother that the letter had come, and that nobody in the village had opened it yet.",
    "she was tired, and her sister would have to wait until the evening for the keys.",
    "the man at the door had come about the roof again. He asked himself whether it would hold.",
)
NEUTRAL = (
    "the train was late again, and everybody on the platform looked at the clock above the stairs.",
    "there would be no meeting before noon, which gave them all an hour to read the report.",
    "nothing had been moved since the last visit except for the chairs near the window.",
)
WORDS = ("he, his, brother", "she, her, sister", "man, he")


def continuations(state: str, count: int) -> pd.DataFrame:
    """Beginnings and what a model made of them: gendered before in four of five, after in the last three."""
    rows: list[dict[str, Any]] = []
    for n in range(count):
        gendered = n % 5 != 4 if state == "before" else n >= count - 3
        told = (GENDERED if gendered else NEUTRAL)[n % 3]
        if n == 1:
            told = f"{ATTACK} {told} & more"
        text = f"The {PEOPLE[n % len(PEOPLE)]} number {n} said that"
        found = WORDS[n % 3] if gendered else ""
        rows.append({"id": f"row-{n}", "text": text, "continuation": told, "words": found, "hit": float(gendered)})
    return pd.DataFrame(rows)


def association_table() -> pd.DataFrame:
    """Made-up tokens of three attributes; gender has more than fit before the fold, and one is hostile."""
    rows: list[dict[str, Any]] = []
    for attribute, words, count in (
        ("gender", ("he", "she"), 52),
        ("race", ("north", "south"), 12),
        ("age", ("old",), 9),
    ):
        for word in words:
            for n in range(count):
                token = f" {word}-token{n}" if n else ATTACK
                rows.append({"attribute": attribute, "token": token, "word": word, "strength": 1 - n / count})
    twin = {"attribute": "gender", "token": "he-token1", "word": "he", "strength": 0.3}
    piece = {"attribute": "gender", "token": "\ufffd", "word": "he", "strength": 0.9}
    return pd.DataFrame([*rows, twin, piece])


def attention_table() -> pd.DataFrame:
    """Links of the tokens of five prompts to two words; one prompt is longer than a phone is wide."""
    draw = np.random.default_rng(3)
    prompts = ["The doctor said that", f"The {ATTACK} nurse", "I have a friend", "The audience applauded"]
    prompts.append("Every morning before the market opened the old baker of the town counted what had been left over")
    rows: list[dict[str, Any]] = []
    for prompt in prompts:
        for place, token in enumerate(prompt.split(" ")):
            for word in ("he", "she"):
                before = 0.9 if (token, word) == ("doctor", "she") else float(draw.uniform(0.02, 0.5))
                line = {"prompt": prompt, "place": place, "token": f" {token}", "word": word}
                rows.append(line | {"before": before, "after": 0.2 * before})
    return pd.DataFrame(rows)


def write_evidence(folder: Path, count: int = 80) -> Path:
    """A debias run with everything the new sections read, and a ranking, which stands between them."""
    results: dict[str, Any] = {"before": {}, "after": {}}
    for state in results:
        (folder / state).mkdir(parents=True)
        for name in ("gas", "gas:bug_openings"):
            table = continuations(state, count)
            table.to_parquet(folder / state / f"{name.replace(':', '-')}.parquet")
            results[state][name] = {"value": float(table["hit"].mean()), "ideal": 0, "headline": "gendered words"}
    write_records(folder, results, command="debias")
    pd.DataFrame({"block": [0, 1], "score": [0.2, 0.4]}).to_parquet(folder / "ranking.parquet")
    association_table().to_parquet(folder / "association.parquet")
    attention_table().to_parquet(folder / "attention.parquet")
    return folder


def write_table(folder: Path, ideals: bool = True) -> Path:
    """A table of runs: two methods with a curve each, two single rows, one of which fell apart."""
    draw = np.random.default_rng(5)
    rows = {
        **{f"crawd@{decay}": (0.12 + 0.55 * decay, 21.5 - 2.2 * decay) for decay in (0.0, 0.2, 0.5, 0.8)},
        **{f"debias_tuning/{size}": (0.66 - 0.1 * n, 18.6 + 0.5 * n) for n, size in enumerate(("small", "large"))},
        "full_finetune": (0.41, 23.0),
        f"ibm {ATTACK}": (0.3, 26.0),
    }
    table: dict[str, dict[str, list[float]]] = {
        "base": {"perplexity:wikitext": [18.24], "gas": [0.71], "gas male": [0.44], "crows_pairs": [58.1]}
    }
    for name, (gas, perplexity) in rows.items():
        noise = draw.normal(0, 1, (4, 3))
        table[name] = {
            "perplexity:wikitext": list(perplexity + 0.15 * noise[0]),
            "gas": list(gas + 0.02 * noise[1]),
            "gas male": list(gas / 2 + 0.02 * noise[2]),
            "crows_pairs": list(55 + noise[3]),
            "trained %": [0.8] * 3,
            "seconds": [412.0, 409.5, 415.2],
        }
    (folder / "base").mkdir(parents=True)
    (folder / "table.json").write_text(json.dumps(table))
    if ideals:
        aims = {"perplexity:wikitext": 1, "gas": 0, "crows_pairs": 50}
        write_records(folder / "base", {"scores": {name: {"value": 1, "ideal": aim} for name, aim in aims.items()}})
    return folder


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A debias run with all the evidence, and its report."""
    folder = write_evidence(tmp_path_factory.mktemp("page") / "evidence")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of runs with its report."""
    folder = write_table(tmp_path_factory.mktemp("page") / "decays")
    build_table_page(folder)
    return folder


def section(text: str, name: str) -> str:
    """One section of a page."""
    return text.partition(f'<section id="{name}">')[2].partition("</section>")[0]


def test_the_new_sections_stand_where_they_belong(evidence: Path) -> None:
    page = Page((evidence / "report.html").read_text("utf-8"))
    assert page.sections == ["verdict", "told", "blocks", "associated", "looks", "repeat"]
    assert max(page.ids.values()) == 1
    assert {first or second for first, second in page.references} <= page.ids.keys()


def test_without_the_files_the_page_has_not_a_byte_more(evidence: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(evidence, tmp_path / "bare")
    for path in [*bare.glob("a*.parquet"), *bare.glob("*/gas*.parquet")]:
        path.unlink()
    full = (evidence / "report.html").read_text("utf-8")
    for name in SECTIONS:
        full = full.replace(f'<section id="{name}">{section(full, name)}</section>\n\n', "")
    full = full.replace((HERE / "evidence.css").read_text("utf-8"), "")
    assert build(bare).read_text("utf-8") == full


def test_own_words_are_marked_and_escaped(evidence: Path) -> None:
    text = section((evidence / "report.html").read_text("utf-8"), "told")
    assert "<script" not in text
    assert text.count(html.escape(ATTACK)) == 2 * 2  # before and after, of two metrics
    before = f"{html.escape(ATTACK)} <mark>she</mark> was tired, and <mark>her</mark> <mark>sister</mark> would"
    assert before in text
    assert "& more" not in text
    assert "<mark>He</mark> asked <mark>himself</mark> whether" in text
    assert "<h3>GAS on bug openings</h3>" in text
    assert "Of 80 continuations, 64 named a gender before and 3 after: 62 lost it and 1 gained it." in text
    assert "Below are 8 of those that changed most, the last one for the worse; they are not typical." in text


def test_eight_rows_are_shown_and_the_rest_is_folded(evidence: Path) -> None:
    text = section((evidence / "report.html").read_text("utf-8"), "told").partition("<h3>GAS on bug openings")[0]
    shown, _, folded = text.partition("<details>")
    assert shown.count('<th scope="row">') == 8
    assert shown.count("got worse") == 1
    assert folded.count('<th scope="row">') == 40


def test_the_largest_changes_come_first_and_at_most_two_got_worse() -> None:
    #        lost three, lost one, kept, unchanged, gained one, gained two, gained three
    before = ["he, his, son", "he", "he, she", "he", "", "", ""]
    after = ["", "", "he", "he", "he", "he, she", "he, his, son"]
    states = {
        name: pd.DataFrame({"id": list("abcdefg"), "text": "x", "words": words}).assign(
            hit=lambda t: (t["words"] != "").astype(float), continuation=lambda t: "so " + t["words"]
        )
        for name, words in (("before", before), ("after", after))
    }
    first, rest = chosen(paired(states["before"], states["after"].iloc[::-1]))
    assert [line for line, _ in first] == ["a", "b", "c", "g", "f"]
    assert [line for line, _ in rest] == ["e"]


def test_a_mark_is_a_whole_word_the_metric_found() -> None:
    assert marked("The chef and His heir; HERSELF", "his") == "The chef and <mark>His</mark> heir; <mark>HERSELF</mark>"
    assert marked("he & <i>him</i>", "") == "he &amp; &lt;i&gt;him&lt;/i&gt;"


def test_a_run_that_wrote_the_same_has_no_section(tmp_path: Path) -> None:
    folder = write_evidence(tmp_path / "same", 12)
    (folder / "attention.parquet").unlink()
    for name in ("gas", "gas-bug_openings"):
        shutil.copy(folder / f"before/{name}.parquet", folder / "after")
    assert "told" not in open_page(folder).sections


def test_tokens_are_chips_by_attribute_and_word(evidence: Path) -> None:
    text = section((evidence / "report.html").read_text("utf-8"), "associated")
    shown, _, warned = text.partition('<p class="warning">')
    assert "104 tokens, found from he and she alone in the model&#39;s own embedding space." in shown
    assert "north-token" not in shown
    assert "24 tokens, found from north and south alone" in warned
    assert "<summary>race: 24 tokens, which can be offensive</summary>" in shown
    assert text.count(">he-token1<") == 1  # the twin with no space before it
    assert '<li class="s5" title="0.98">he-token1</li>' in text
    assert '<li class="s1" title="0.02">he-token51</li>' in text
    before_fold = shown.partition("<summary>12 more near he</summary>")[0]
    assert "he-token39" in before_fold
    assert "he-token40" not in before_fold
    assert "<script" not in text
    assert associated(None) is None
    assert associated(pd.DataFrame({"token": ["x"]})) is None


def test_heat_maps_name_their_strongest_link(evidence: Path) -> None:
    text = section((evidence / "report.html").read_text("utf-8"), "looks")
    peak = "Strongest link: before “doctor” to “she”, 0.90; after “doctor” to “she”, 0.18."
    assert text.count(f'aria-label="{peak} Links from the tokens of “The doctor said that” to he, she."') == 2
    assert f'<p class="lead">{peak}</p>' in text
    assert text.count("<title>doctor to she, before: 0.90</title>") == 2
    assert text.count("<title>doctor to she, after: 0.18</title>") == 2
    opacity = re.search(r'style="[^"]*?(?:fill-)?opacity: ([\d.]+)[^"]*"[^>]*><title>doctor to she, after', text)
    assert opacity is not None
    assert float(opacity[1]) == pytest.approx(0.6 * 0.18 / 0.9)  # the same scale before and after
    assert "the darkest" in text
    assert "<summary>1 more prompt</summary>" in text
    assert "<script" not in text


def test_heat_map_of_a_link_that_moved_and_of_missing_values() -> None:
    lines = pd.DataFrame({"prompt": "p", "place": [0, 1], "token": ["a", "b"], "word": "he"})
    told = about(lines.assign(before=[0.7, 0.1], after=[0.05, 0.3]))
    assert told == "Strongest link: before “a” to “he”, 0.70; after “b” to “he”, 0.30 (the first one is 0.05 now)."
    found = attention(lines.assign(before=[np.nan, 0.4], after=[0.0, 0.0]))
    assert found is not None
    assert "a to he, before" not in found.shown[0].figure
    assert "b to he, before: 0.40" in found.shown[0].figure


def test_table_page_has_table_and_tradeoff(table: Path) -> None:
    text = (table / "report.html").read_text("utf-8")
    page = Page(text)
    rows = json.loads((table / "table.json").read_text())
    assert page.sections == ["tradeoff", "table"]
    assert "<script" not in text
    assert html.escape(ATTACK) in text
    values = rows["crawd@0.0"]["gas"]
    change = 100 * (np.mean(values) / 0.71 - 1)
    assert f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f} −{-change:.0f} %" in page.text
    assert f"Of 8 rows, crawd@0.0 comes nearest to a fair GAS: it fell by {-change:.0f} %; perplexity on" in page.text
    assert "Better is towards the lower left corner." in page.text
    assert text.count("<title>crawd@0.2: Perplexity on wikitext") == 2
    assert "GAS male" in section(text, "table").partition("<details>")[2]
    assert not {"script", "link", "img"} & page.tags.keys()
    assert max(page.ids.values()) == 1
    again = (table / "report.html").read_bytes()
    assert build_table_page(table).read_bytes() == again


def test_table_page_without_perplexity_or_base_records(tmp_path: Path) -> None:
    folder = write_table(tmp_path / "bare", ideals=False)
    build_table_page(folder)
    assert "Better is towards the lower left" in (folder / "report.html").read_text("utf-8")
    rows = {"base": {"gas": [0.5]}, "one": {"gas": [None, 0.25], "seconds": [3.0, float("nan")]}}
    (folder / "table.json").write_text(json.dumps(rows))
    page = Page(build_table_page(folder).read_text("utf-8"))
    assert page.sections == ["table"]
    assert "One row beside the base model." in page.text
    assert "0.250 −50 %" in page.text


def test_axes_are_perplexity_and_the_first_bias() -> None:
    def chosen_axes(*names: str) -> Any:
        return axes_of({"base": {name: [1.0] for name in names}})

    assert chosen_axes("ub", "afgb", "gas:bug", "gas", "my_perplexity") == ("my_perplexity", "gas:bug")
    assert chosen_axes("ub", "afgb", "perplexity") == ("perplexity", "afgb")
    assert chosen_axes("ub", "perplexity", "perplexity tokens", "seconds") == ("perplexity", "ub")
    assert chosen_axes("perplexity", "seconds") is None
    assert chosen_axes("gas") is None


def test_headline_admits_that_nothing_helped() -> None:
    rows = {"base": {"gas": [0.2], "perplexity": [9.0]}, "one": {"gas": [0.4, 0.5], "perplexity": [9.0, 9.0]}}
    axes = axes_of(rows)
    assert headline(rows, axes, {}) == "None of the rows brings GAS nearer to its ideal."
    assert "one comes nearest to a fair GAS: it rose by 125" in headline(rows, axes, {"gas": 0.5})


def test_cells_and_corners() -> None:
    assert cell([1.0, 3.0], 4.0) == ("2.000", "±\u00a01.414", "−50\u00a0%")
    assert cell([2.0], 0.0) == ("2.000", "", "")
    assert cell(None, 1.0) == ("–", "", "")
    assert [family(name) for name in ("crawd@0.2", "crawd/x@1", "crawd")] == ["crawd"] * 3
    points = [Point("a", 10, 40), Point("b", 12, 60)]
    assert wanted(points, 1, 100) == "Better is towards the upper left corner."
    assert wanted(points, 1, 50) == "Better is near the dashed line at 50 and towards the left."


def test_names_of_points_keep_apart() -> None:
    bounds = Box(0, 0, 600, 400)
    draw = np.random.default_rng(2)
    points = [(float(x), float(y)) for x, y in draw.uniform((10, 10), (590, 390), (14, 2))]
    boxes = placed(points, [(70.0, 12.0)] * 14, bounds)
    assert all(box.shared(bounds) == pytest.approx(70 * 12) for box in boxes)
    assert not any(a.shared(b) for n, a in enumerate(boxes) for b in boxes[:n])
    assert not any(box.left < x < box.right and box.bottom < y < box.top for box in boxes for x, y in points)


@pytest.mark.parametrize("kind", ["evidence", "table"])
def test_page_is_never_wider_than_its_window(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    shutil.copy(request.getfixturevalue(kind) / "report.html", tmp_path)
    widths = (1280, 760, 390)
    printed = chromium(tmp_path, "--window-size=1400,1000", "--dump-dom", wrapper(tmp_path, widths))
    found = re.search(r"<title>(.*?)</title>", printed)
    assert found is not None
    assert found[1] == " ".join(f"{width}/{width}" for width in widths)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", [*SECTIONS, "table"])
def test_every_section_shows_something(name: str, width: int, evidence: Path, table: Path, tmp_path: Path) -> None:
    text = ((table if name == "table" else evidence) / "report.html").read_text("utf-8")
    if name != "table":
        start = text.index("<header>")
        text = f'{text[:start]}<section id="{name}">{section(text, name)}</section></main></body></html>'
    (tmp_path / "report.html").write_text(text)
    picture = tmp_path / "page.png"
    chromium(tmp_path, f"--window-size={max(width, 500)},1500", f"--screenshot={picture}", wrapper(tmp_path, (width,)))
    pixels = np.asarray(Image.open(picture).convert("L"))[:, :width]
    assert all(band.std() > 5 for band in np.array_split(pixels, 3)), "a third of the page shows nothing"
