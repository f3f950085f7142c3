"""YAML that repeats a run or a table of runs: `evenhand run NAME`."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from evenhand import catalog, steps
from evenhand.config import Refusal, build, closest, read_yaml
from evenhand.page import build_table_page
from evenhand.plan import Settings
from evenhand.run import is_finished, is_main
from evenhand.steps import Job

__all__ = ["job_of", "repeat", "table_lines"]

VERBS = {"measure": steps.measure, "locate": steps.locate, "debias": steps.debias}


def job_of(content: dict[str, Any]) -> Job:
    """A job from a mapping; a preset's options come first, so that the user's own win."""
    content = dict(content)
    preset = content.pop("preset", "")
    settings = {part: dict(chosen) for part, chosen in (content.get("settings") or {}).items()}
    if preset and preset != "default":
        presets = catalog.load("methods", content.get("method", "")).presets
        if preset not in presets:
            known = ", ".join(["default", *presets])
            raise Refusal(
                f"{content.get('method')} has no preset {preset!r}{closest(preset, presets)}. Presets: {known}."
            )
        settings["method"] = presets[preset] | settings.get("method", {})
    return build(Job, {**content, "settings": settings}, "the config")


def repeat(target: str, out: Path | None, changes: dict[str, Any], *, overwrite: bool, quiet: bool) -> Path:
    """Repeat a run's config, finish an unfinished run, or follow a recipe by name or file; gives the folder made."""
    path = Path(target)
    if target in catalog.names("recipes"):
        path = catalog.ROOT / "recipes" / f"{target}.yaml"
    if path.is_dir():
        path = path / "config.yaml"
    elif path.suffix not in (".yaml", ".yml"):
        names = catalog.names("recipes")
        raise Refusal(f"There is no recipe or run {target!r}{closest(target, names)}. Recipes: {', '.join(names)}.")
    content = read_yaml(str(path)) | changes
    folder = out or default_folder(Path(target))
    if "rows" in content:
        return follow_table(content, folder, overwrite=overwrite, quiet=quiet)
    job = job_of(content)
    if job.command not in VERBS:
        raise Refusal(f"{path}: there is no command {job.command!r}; choose from {', '.join(VERBS)}.")
    VERBS[job.command](job, folder, overwrite=overwrite, quiet=quiet)
    return folder


def default_folder(target: Path) -> Path:
    """`runs/x.part` goes on as `runs/x`; a recipe's result goes to runs/NAME."""
    if target.is_dir():
        if target.suffix != ".part":
            raise Refusal(f"{target} is finished; give the repetition a folder of its own with --out.")
        return target.with_suffix("")
    return Path("runs") / target.stem


def follow_table(content: dict[str, Any], folder: Path, *, overwrite: bool, quiet: bool) -> Path:
    """Every row with every seed, the base model measured once; finished runs are kept when a table is gone on with."""
    rows, seeds = content.pop("rows"), content.pop("seeds", [0])
    base = folder / "base"
    how = {"overwrite": overwrite, "quiet": quiet}
    if overwrite or not is_finished(base):
        steps.measure(job_of(base_job(content)), base, **how)
    for seed in seeds:
        for name, chosen in rows.items():
            place = folder / f"{name}-{seed}"
            if overwrite or not is_finished(place):
                settings = merged_settings(content.get("settings", {}), chosen.get("settings", {}))
                own = {"command": "debias", "seed": seed, "before": str(base), "settings": settings}
                steps.debias(job_of({**content, **chosen, **own}), place, **how)
    if not is_main():
        return folder
    table = summary(base, {name: [folder / f"{name}-{seed}" for seed in seeds] for name in rows})
    write(folder / "table.json", json.dumps(table, indent=2))
    write(folder / "table.md", "\n".join(table_lines(table)) + "\n")
    build_table_page(folder)
    return folder


def merged_settings(table: Settings, row: Settings) -> Settings:
    """A table's settings with a row's own on top, option by option."""
    return {part: {**table.get(part, {}), **row.get(part, {})} for part in [*table, *row]}


def base_job(content: dict[str, Any]) -> dict[str, Any]:
    """What measures a table's base model: the content without what belongs to its method."""
    settings = {part: chosen for part, chosen in content.get("settings", {}).items() if part != "method"}
    kept = {name: value for name, value in content.items() if name not in ("method", "preset", "train_limit", "data")}
    return {**kept, "settings": settings, "command": "measure"}


def write(path: Path, text: str) -> None:
    """Write aside and rename, so that a table is whole or not there."""
    beside = path.with_name(path.name + ".tmp")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def summary(base: Path, rows: dict[str, list[Path]]) -> dict[str, dict[str, Any]]:
    """For each row and each number, the values over seeds; the base model first."""
    table = {"base": {key: [value] for key, value in flat(steps.scores_of(base)).items()}}
    for name, folders in rows.items():
        numbers = [flat(steps.scores_of(folder)) | training(folder) for folder in folders]
        table[name] = {key: [entry[key] for entry in numbers] for key in numbers[0]}
    return table


def flat(scores: dict[str, Any]) -> dict[str, float]:
    """A metric's value and what stands beside it, under one name each."""
    found = {}
    for name, score in scores.items():
        found[name] = score["value"]
        found |= {f"{name} {extra}": value for extra, value in score["extra"].items()}
    return found


def training(folder: Path) -> dict[str, float]:
    """What a row cost."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    train = results["train"]
    return {"trained %": 100 * train["trainable"] / train["total"], "seconds": results["seconds"]["train"]}


def table_lines(table: dict[str, dict[str, Any]]) -> list[str]:
    """A table in Markdown: mean over seeds, their standard deviation, and the change from the base model."""
    columns = list(next(iter(reversed(table.values()))))
    lines = ["| row | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, row in table.items():
        cells = []
        for column in columns:
            numbers, base = row.get(column), table["base"].get(column)
            if numbers is None:
                cells.append("")
                continue
            spread = f" ± {np.std(numbers, ddof=1):.2g}" if len(numbers) > 1 else ""
            change = (
                f" ({100 * (np.mean(numbers) / base[0] - 1):+.1f} %)" if base and base[0] and name != "base" else ""
            )
            cells.append(f"{np.mean(numbers):.4g}{spread}{change}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines
