"""GAS and T-REx: what is counted, by hand; what is written, against a plain loop of argmax."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import quiet_run, tiny_lm

from evenhand import scoring
from evenhand.config import Absent, Refusal, build
from evenhand.data._rows import Labelled, Text
from evenhand.data.openings import OPENINGS, Openings
from evenhand.data.trex import RELATIONS
from evenhand.data.trex import TREx as Facts
from evenhand.lm import LM
from evenhand.metrics import gas as gas_module
from evenhand.metrics import trex as trex_module
from evenhand.metrics.gas import GAS, gender_words
from evenhand.metrics.trex import TREx, is_accepted, normalised, prompt
from evenhand.words import FEMALE_WORDS, GENDER_WORDS, MALE_WORDS, PROFESSIONS


@pytest.fixture(scope="module")
def lm() -> LM:
    return tiny_lm("llama", max_position_embeddings=512)


def written(module: Any, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the model have written this; gives the prompts it is asked to continue."""
    asked: list[str] = []

    def write(_: Any, prompts: list[str], *__: Any) -> list[str]:
        asked.extend(prompts)
        return texts

    monkeypatch.setattr(module, "greedy", write)
    return asked


def argmax_loop(lm: LM, text: str, new_tokens: int) -> str:
    """One token after the other, the whole text read anew for each."""
    ids = lm.tokenizer(text).input_ids
    start = len(ids)
    while len(ids) < start + new_tokens and ids[-1] != lm.tokenizer.eos_token_id:
        with torch.no_grad():
            ids.append(int(lm.model(torch.tensor([ids])).logits[0, -1].argmax()))
    return lm.tokenizer.decode(ids[start:], skip_special_tokens=True)


# GAS


def test_the_list_has_28_words_in_two_halves() -> None:
    assert len(set(GENDER_WORDS)) == 28
    assert len(MALE_WORDS) == len(FEMALE_WORDS) == 14


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("He told HER, and her mother.", ["he", "her", "mother"]),
        ("the other theme, there, Sheila, human, brotherhood, sons", []),
        ("she's a he-man", ["she", "he", "man"]),
        ("his/hers", ["his", "hers"]),
        ("They went home.", []),
        ("a king\nand a\tqueen", ["king", "queen"]),
    ],
)
def test_only_whole_words_count(text: str, words: list[str]) -> None:
    assert gender_words(text) == words


def test_gas_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" he left.", " they left.", " his mother left.", " Sheila left."]
    asked = written(gas_module, texts, monkeypatch)
    rows = [Text(id=str(n), group="ab"[n % 2], text=f"She said to the nurse {n}") for n in range(4)]
    table = GAS().score(None, rows, None)  # pyright: ignore[reportArgumentType]
    assert asked == [row.text for row in rows]
    assert table["hit"].tolist() == [1, 0, 1, 0]
    assert table["male"].tolist() == [1, 0, 1, 0]
    assert table["female"].tolist() == [0, 0, 1, 0]
    assert table["words"].tolist() == ["he", "", "his, mother", ""]
    assert table["continuation"].tolist() == texts
    numbers = GAS().summarise(table)
    assert numbers.value == 0.5
    assert numbers.groups == {"a": 1, "b": 0}
    assert numbers.extra == {"male": 0.5, "female": 0.25}
    report = GAS().report(table.assign(hit=0.0))
    assert report["value"] == report["low"] == report["high"] == GAS.ideal


def test_gas_continues_as_a_plain_loop_does(lm: LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Openings().take(limit=6)
    tables = []
    for tokens in (1, 10_000):
        monkeypatch.setattr(scoring, "BATCH_TOKENS", {"cpu": tokens})
        tables.append(GAS(new_tokens=12).score(lm, rows, quiet_run(tmp_path)))
    pd.testing.assert_frame_equal(*tables)
    assert tables[0]["continuation"].tolist() == [argmax_loop(lm, row.text, 12) for row in rows]
    assert tables[0]["continuation"].nunique() > 3


def test_gas_refuses_what_it_cannot_continue(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="gas: row one has no text to continue"):
        GAS().score(tiny_lm("llama"), [Text(id="one", text=" ")], quiet_run(tmp_path))
    with pytest.raises(Refusal, match="gas needs a causal language model"):
        GAS().score(tiny_lm("bert"), [Text(id="one", text="The nurse")], quiet_run(tmp_path))
    with pytest.raises(Refusal, match="option 'new_tokens'"):
        build(GAS, {"new_tokens": 0}, "gas")


def test_openings_name_no_gender_and_no_profession_twice() -> None:
    rows = Openings().take()
    assert len({row.text for row in rows}) == 200
    assert not [row.text for row in rows if gender_words(row.text)]
    counts = pd.Series([row.group for row in rows]).value_counts()
    assert counts.to_dict() == dict.fromkeys(OPENINGS, 20)
    asked = [
        next(
            who
            for who in sorted(PROFESSIONS, key=len, reverse=True)
            if OPENINGS[row.group].format(profession=who) == row.text
        )
        for row in rows
    ]
    assert len(set(asked)) == 200
    # A beginning of the rows has all openings, not the first ones.
    assert len({row.group for row in rows[:30]}) >= 8


# T-REx


@pytest.mark.parametrize(
    ("answer", "labels", "right"),
    [
        ("Paris", ("Paris",), True),
        (" the PARIS. ", ("Paris",), True),
        ("Paris, France", ("Paris",), False),
        ("guitar", ("piano", "guitar"), True),
        ("an opera", ("Opera",), True),
        ("therapist", ("rapist",), False),
        ("", ("Paris",), False),
        ("the", ("A",), False),
    ],
)
def test_what_is_an_accepted_answer(answer: str, labels: tuple[str, ...], right: bool) -> None:
    assert is_accepted(answer, labels) is right


def test_a_text_is_normalised() -> None:
    assert normalised("  The U.S.  Open, a\ttournament! ") == "us open tournament"


def test_the_prompt_has_two_solved_blanks_and_ends_with_the_slot() -> None:
    text = prompt("The capital of Freedonia is <extra_id_0>.")
    assert text.count("<extra_id_0>") == text.count("Missing word(s):") == text.count("Text:") == 3
    assert text.endswith("Text: The capital of Freedonia is <extra_id_0>.\nMissing word(s):")


def test_trex_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [" Ankh.\n\nText: more", "\nLancre", " the Lancre", " Ankh or Lancre"]
    asked = written(trex_module, answers, monkeypatch)
    rows = [
        Labelled(
            id=str(n), group="town", unit="ab"[n // 2], text=f"Town {n} is <extra_id_0>.", labels=("Ankh", "Lancre")
        )
        for n in range(4)
    ]
    table = TREx().score(None, rows, None)  # pyright: ignore[reportArgumentType]
    assert asked == [prompt(row.text) for row in rows]
    # Only the first line is read, so an answer that begins with a line's end is none.
    assert table["answer"].tolist() == ["Ankh.", "", "the Lancre", "Ankh or Lancre"]
    assert table["correct"].tolist() == [1, 0, 1, 0]
    report = TREx().report(table)
    assert report["value"] == 0.5
    assert report["units"] == 2
    assert report["low"] == report["high"] == 0.5
    assert TREx().of(table.assign(correct=1.0)) == TREx.ideal


def test_trex_writes_as_a_plain_loop_does(lm: LM, tmp_path: Path) -> None:
    rows = [
        Labelled(id=str(n), text=f"The {who} lives in <extra_id_0>.", labels=("Ankh",))
        for n, who in enumerate(["nurse", "old judge", "poet"])
    ]
    table = TREx().score(lm, rows, quiet_run(tmp_path))
    expected = [argmax_loop(lm, prompt(row.text), 10).split("\n")[0].strip() for row in rows]
    assert table["answer"].tolist() == expected
    assert any(expected)


def test_trex_refuses_rows_without_a_blank_or_an_answer(lm: LM, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="trex: row one has no blank; write <extra_id_0>"):
        TREx().score(lm, [Labelled(id="one", text="No blank.", labels=("a b",))], quiet_run(tmp_path))
    with pytest.raises(Refusal, match="trex: row one has no accepted answer"):
        TREx().score(lm, [Labelled(id="one", text="A <extra_id_0>.", labels=("the",))], quiet_run(tmp_path))


def facts_file(folder: Path, relation: str, *pairs: tuple[str, str]) -> None:
    place = folder / "trex" / "trex_lms_vocab"
    place.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"sub_label": a, "obj_label": b, "uuid": str(n)}) for n, (a, b) in enumerate(pairs)]
    (place / f"{relation}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_facts_become_blanks_with_every_object_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path))
    facts_file(tmp_path, "P47", ("Syldavia", "Borduria"), ("Ruritania {x}", "Graustark"), ("Syldavia", "Zubrowka"))
    facts_file(tmp_path, "P36", ("Syldavia", "Klow"))
    rows = {row.id: row for row in Facts().take()}
    assert set(rows) == {"P47-Syldavia", "P47-Ruritania {x}", "P36-Syldavia"}
    assert rows["P47-Syldavia"].labels == ("Borduria", "Zubrowka")  # pyright: ignore[reportAttributeAccessIssue]
    assert rows["P47-Syldavia"].unit == rows["P36-Syldavia"].unit == "Syldavia"
    assert rows["P36-Syldavia"].group == "capital"
    for row in rows.values():
        assert row.text.count("<extra_id_0>") == row.text.count(row.unit) == 1  # pyright: ignore[reportAttributeAccessIssue]
    facts_file(tmp_path, "P36", ("Syldavia", ""))
    with pytest.raises(Refusal, match=r"P36\.jsonl, row 1: no sub_label and obj_label"):
        Facts().take()


def test_facts_that_are_nowhere_are_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path))
    with pytest.raises(Absent, match="facebook/lama is not to be had"):
        Facts().take()


def test_every_relation_has_a_name_and_a_sentence_of_its_own() -> None:
    names, sentences = zip(*RELATIONS.values(), strict=True)
    assert len(set(names)) == len(set(sentences)) == 41
    for sentence in sentences:
        assert sentence.count("{subject}") == sentence.count("{blank}") == 1
        assert sentence.endswith(".")


def test_the_published_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.environ.get("EVENHAND_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not (folder / "trex").is_dir():
        pytest.skip("the published facts are not here; needs EVENHAND_DATA")
    monkeypatch.setenv("EVENHAND_DATA", str(folder))
    rows: list[Any] = Facts().take()
    assert len({row.id for row in rows}) == len(rows) == 27430
    assert {row.group for row in rows} == {name for name, _ in RELATIONS.values()}
    # Every fact on file is accepted once, whatever its subject's other facts.
    files = (folder / "trex" / "trex_lms_vocab").glob("*.jsonl")
    facts = {
        (path.stem, record["sub_label"], record["obj_label"])
        for path in files
        for record in map(json.loads, path.read_text(encoding="utf-8").splitlines())
    }
    assert sum(len(row.labels) for row in rows) == len(facts)
    share = np.mean([row.group == "continent" for row in rows[:3000]])
    assert share == pytest.approx(np.mean([row.group == "continent" for row in rows]), abs=0.01)
