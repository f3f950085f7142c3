"""Small corpora in their upstream formats, in words of our own; and where the real ones are."""

import csv
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evenhand.data._base import Dataset

__all__ = [
    "apart",
    "bios_folder",
    "bug_record",
    "corpora_folder",
    "hate_record",
    "hatecheck_records",
    "jigsaw_record",
    "real_folder",
    "snli_folder",
    "write_csv",
]


def write_csv(path: Path, records: list[dict[str, Any]]) -> None:
    """Records with a header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)


def bug_record(number: int, text: str, gender: str, stereotype: int) -> dict[str, Any]:
    """A line of BUG."""
    return {
        "": number,
        "sentence_text": text,
        "tokens": str(text.split()),
        "profession": "baker",
        "g": "his" if gender.lower() == "male" else "her",
        "profession_first_index": 1,
        "g_first_index": 5,
        "predicted gender": gender,
        "stereotype": stereotype,
        "distance": 4,
        "num_of_pronouns": 1,
        "corpus": "ours",
        "data_index": number,
    }


def bug_records(count: int = 240) -> list[dict[str, Any]]:
    """Sentences whose five first words name no gender, each different."""
    towns = ("Norwick", "Estham", "Suldale", "Westbury")
    names = [f"Town{chr(65 + one)}{chr(97 + two)}" for one, two in itertools.product(range(10), range(6))]
    made = []
    for number, (town, name) in zip(range(count), itertools.product(towns, names), strict=False):
        gender, word = (("male", "his"), ("female", "her"))[number % 2]
        text = f"Near {name} in {town} a baker sold {word} bread , rolls and cakes ."
        made.append(bug_record(number, text, gender, 1 if number % 4 < 2 else -1))
    return made


def bug_folder(folder: Path) -> None:
    write_csv(folder / "bug/balanced_BUG.csv", bug_records())


def bios_folder(folder: Path) -> None:
    """Each split in another of the formats."""
    records = [
        {"hard_text": f"She works in town {number}.", "profession": number % 28, "gender": 1} for number in range(28)
    ]
    (folder / "bias_in_bios").mkdir()
    pd.DataFrame(records).to_parquet(folder / "bias_in_bios/train.parquet", index=False)
    write_csv(folder / "bias_in_bios/dev.csv", records)
    lines = "".join(json.dumps(record | {"gender": 0}) + "\n" for record in records)
    (folder / "bias_in_bios/test.jsonl").write_text(lines, encoding="utf-8")


def jigsaw_record(number: int, text: str, target: float, **identities: float | str) -> dict[str, Any]:
    names = ("male", "female", "christian", "jewish", "muslim", "black", "white", "homosexual_gay_or_lesbian")
    return {"id": number, "target": target, "comment_text": text, **dict.fromkeys(names, 0.0), **identities}


def jigsaw_folder(folder: Path) -> None:
    write_csv(
        folder / "jigsaw/train.csv",
        [jigsaw_record(number, f"Comment number {number}", number / 200, muslim=0.8) for number in range(200)],
    )


def snli_folder(folder: Path) -> None:
    (folder / "snli_devtest").mkdir()
    for name in ("dev", "test"):
        lines = (3 * f"A {name} cat sleeps on mat {number} , alone . \n" for number in range(150))
        (folder / f"snli_devtest/s1.{name}").write_text("".join(lines), encoding="utf-8")


def hate_record(comment: int, score: float, races: str = "", text: str = "") -> dict[str, Any]:
    chosen = races.split()
    targets = {f"target_race_{race}": race in chosen for race in ("asian", "black", "white")}
    return {"comment_id": comment, "text": text or f"Comment {comment}", "hate_speech_score": score, **targets}


def hate_folder(folder: Path) -> None:
    records = [hate_record(number, number / 100 - 1, ("black", "white")[number % 2]) for number in range(200)]
    (folder / "measuring_hate_speech").mkdir()
    pd.DataFrame(records).to_parquet(folder / "measuring_hate_speech/rows.parquet", index=False)


def hatecheck_records() -> list[dict[str, Any]]:
    """Forty templates about two groups each, and forty sentences about nobody."""
    records = []
    for template in range(40):
        for group in ("women", "immigrants", ""):
            label = "hateful" if group and template % 2 else "non-hateful"
            text = f"I have met {group or 'nobody'} on day {template}. "
            records.append((template if group else 100 + template, group, label, text))
    return [
        {"": n, "functionality": "ours", "case_id": n, "test_case": text, "label_gold": label, "target_ident": group}
        | {"templ_id": template}
        for n, (template, group, label, text) in enumerate(records)
    ]


def corpora_folder(folder: Path) -> None:
    """All of them."""
    for write in (bug_folder, bios_folder, jigsaw_folder, snli_folder, hate_folder):
        write(folder)
    write_csv(folder / "hatecheck/test_suite_cases.csv", hatecheck_records())


def real_folder(needed: str) -> Path:
    """The folder of real files: EVENHAND_DATA, else shared/data beside the repository, else a skip."""
    beside = Path(__file__).parent.parent.parent / "shared/data"
    root = Path(os.environ.get("EVENHAND_DATA", beside))
    if not (root / needed).exists():
        pytest.skip(f"{needed} needs EVENHAND_DATA")
    return root


def apart(data: Dataset) -> dict[str, list[Any]]:
    """The rows of all splits, after seeing that no sentence is there twice."""
    found = {split: data.take(split) for split in data.splits}
    keys = [" ".join(row.text.lower().split()) for rows in found.values() for row in rows]
    assert len(keys) == len(set(keys))
    ids = [row.id for row in found["test"]]
    assert len(ids) == len(set(ids))
    return found
