"""A run folder becomes report.html: one file, no script, nothing loaded from outside."""

from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from evenhand.page import examples, figures, story, tables
from evenhand.page.attention import attention
from evenhand.page.cards import cards
from evenhand.page.chips import associated
from evenhand.page.folder import RunFolder, read, slices
from evenhand.page.groups import by_group
from evenhand.page.own_words import own_words
from evenhand.page.write import render, write


def build(folder: Path) -> Path:
    """Write `folder/report.html` from the folder's files alone, and return its path."""
    folder = Path(folder)
    run = read(folder)
    evidence = _evidence(run)
    styles = ["style.css", *(["evidence.css"] if any(evidence.values()) else [])]
    return write(folder, render("template.html", *styles, **_scores(run), **evidence, **_pictures(run), **_rest(run)))


def _evidence(run: RunFolder) -> dict[str, Any]:
    """What some runs keep for people to look at: the model's own words, and what a method took for associated."""
    return {
        "told": own_words(run),
        "associated": associated(run.association),
        "looks": attention(run.attention),
    }


def _scores(run: RunFolder) -> dict[str, Any]:
    rows = tables.scores(run)
    strips = {
        row.key: figures.interval_strip({s: found[row.key] for s, found in run.scores.items() if row.key in found})
        for row in rows
    }
    return {
        "title": story.title(run),
        "headline": story.headline(run),
        "facts": _facts(run),
        "states": list(run.scores),
        "rows": rows,
        "strips": strips,
        "cards": cards(run),
        "extras": tables.extras(run),
        "unmeasured": tables.unmeasured(run),
    }


def _facts(run: RunFolder) -> list[tuple[str, str]]:
    named = {"model": run.config.get("model"), "method": story.method_name(run)}
    others = {key: run.config.get(key) for key in ("data", "seed", "limit")}
    shown = {**named, **others, "device": run.environment.get("device")}
    return [(key, str(value)) for key, value in shown.items() if isinstance(value, str | int) and value != ""]


def _pictures(run: RunFolder) -> dict[str, Any]:
    parts = slices(run.tables.get("afgb", {}))
    compared = [(part, figures.words(part, f"words{n}"), story.about_words(part)) for n, part in enumerate(parts)]
    leaning = [(part, figures.leaning(part, f"leaning{n}"), story.about_leaning(part)) for n, part in enumerate(parts)]
    return {
        "compared": compared,
        "leaning": leaning,
        "groups": by_group(run),
        "blocks": None if run.ranking is None else (figures.blocks(run.ranking), story.about_blocks(run.ranking)),
        "ranking": None if run.ranking is None else tables.ranking(run.ranking),
        "curve": _curve(run),
    }


def _curve(run: RunFolder) -> tuple[Markup, str] | None:
    if run.curve is None or not run.curve["loss"].notna().any():
        return None
    curve = run.curve.dropna(subset=["loss"])
    return figures.curve(curve), story.about_curve(curve, run.results.get("train") or {})


def _rest(run: RunFolder) -> dict[str, Any]:
    found = _examples(run)
    return {
        "costs": tables.costs(run),
        "phases": tables.phases(run),
        "biased": found["biased"],
        "changed": found["changed"],
        "command": str(run.environment.get("command", "")),
        "environment": tables.environment(run),
        "config": yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True, width=100),
    }


def _examples(run: RunFolder) -> dict[str, list[tuple[str, list[examples.Example]]]]:
    """(metric, its examples): the most biased ones of each metric that can rank them, and those that changed most."""
    scores = next(iter(run.scores.values()), {})
    found = {
        "biased": [
            (m, examples.biased(run.tables.get(m, {}), str(score.get("lean") or ""))) for m, score in scores.items()
        ],
        "changed": [(m, examples.changed(run.tables.get(m, {}))) for m in scores],
    }
    return {
        kind: [(story.metric_name(m), lines) for m, lines in by_metric if lines] for kind, by_metric in found.items()
    }
