"""A user's own rows of every kind: columns by any name, numbers as labels, and one sentence where something lacks."""

import json
from pathlib import Path
from typing import Any

import pytest
from roads import measuring
from tiny import quiet_run, tiny_lm

from evenhand import steps
from evenhand.config import Refusal
from evenhand.data._rows import Choice, Labelled, Pair
from evenhand.data.file import File
from evenhand.metrics.winobias import WinoBias


def written(folder: Path, *records: dict[str, Any]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return str(path)


def test_columns_of_every_kind_can_be_renamed(tmp_path: Path) -> None:
    path = written(tmp_path, {"sent_more": "She cooks.", "sent_less": "He cooks.", "kind": "gender"})
    rows = File(path=path, rows_are="Pair", more="sent_more", less="sent_less", group="kind").take("test")
    assert rows == [Pair(id="row-1", group="gender", more="She cooks.", less="He cooks.")]
    path = written(tmp_path, {"q": "Who left?", "a": "he|she", "right": "1", "biased": 0})
    rows = File(path=path, rows_are="Choice", context="q", options="a", answer="right", stereotyped="biased").take(
        "test"
    )
    assert rows == [Choice(id="row-1", context="Who left?", options=("he", "she"), answer=1, stereotyped=0)]
    with pytest.raises(Refusal, match=r"row 1: no column \"more\".*Name it with --set data.more=COLUMN"):
        File(path=path, rows_are="Pair").take("test")


@pytest.mark.parametrize(("given", "found"), [(1, ("1",)), (0, ("0",)), ("a|b", ("a", "b")), ([1, 2], ("1", "2"))])
def test_labels_may_be_numbers(tmp_path: Path, given: Any, found: tuple[str, ...]) -> None:
    path = written(tmp_path, {"text": "x", "labels": given})
    assert File(path=path, rows_are="Labelled").take("test") == [Labelled(id="row-1", text="x", labels=found)]


@pytest.mark.usefixtures("no_page")
def test_pairs_of_a_user_are_measured(tiny: str, tmp_path: Path) -> None:
    records = [
        {"more": f"The nurse lost her {what}.", "less": f"The nurse lost his {what}."} for what in ("pen", "key")
    ]
    job = measuring(tiny, metrics=["crows_pairs"], data=written(tmp_path, *records))
    entry = steps.measure(job, quiet=True)["scores"]["crows_pairs"]
    assert entry["n"] == 2
    assert entry["extra"]["antistereotype"] == 50, "there is no such pair"


def test_a_gap_needs_both_sides(tmp_path: Path) -> None:
    rows = [
        Choice(
            id="1", condition="pro", context="The nurse came. She", options=("nurse", "boss"), answer=0, stereotyped=0
        )
    ]
    with pytest.raises(Refusal, match="winobias compares pro and anti rows, and there are no anti ones"):
        WinoBias().score(tiny_lm("llama"), rows, quiet_run(tmp_path))
