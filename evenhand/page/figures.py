"""The figures of the page, each drawn for a desktop and for a phone (see svg.inline)."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from evenhand.page.folder import Column, Frame, Slice, entry, farthest
from evenhand.page.plain import decimals, exact, known, number
from evenhand.page.story import chosen_blocks
from evenhand.page.svg import AFTER, BEFORE, INK, LINE, MUTED, PAGE, PARTS, QUIET, Sheet, clean, inline

COLOURS = {"before": BEFORE, "after": AFTER, "measured": AFTER}
LEAST = 0.25  # of a metric's scale that a figure shows
DENSE = 200  # steps from which a training curve is drawn smoothed


def _fill(state: str) -> str:
    """Before is hollow and after is filled, so that colour is never the only sign."""
    return PAGE if state == "before" else COLOURS[state]


def words(part: Slice, name: str) -> Markup:
    """Each subject's probability for each word: a scatter for two words, strips of shares for more."""
    label = f"Probability of {', '.join(part.words)} for each profession: {', '.join(part.means)}"
    return inline(name, label, lambda sheet: (_scatter if len(part.words) == 2 else _strips)(sheet, part))


def _scatter(sheet: Sheet, part: Slice) -> None:
    first, second = part.words
    top = 1.25 * max(float(m.to_numpy().max()) for m in part.means.values()) or 1.0
    count = len(part.means)
    rows, columns = (count, 1) if sheet.narrow else (1, count)
    panels = sheet.panels(rows, columns, count * 350 if sheet.narrow else 530)
    for panel, (state, means) in zip(panels, part.means.items(), strict=True):
        panel.plot([0, top], [0, top], color=MUTED, linewidth=1, linestyle=(0, (4, 4)))
        x, y = means[first].to_numpy(), means[second].to_numpy()
        dots = panel.scatter(x, y, s=30, color=_fill(state), edgecolor=COLOURS[state], linewidth=1.2, alpha=0.8)
        sheet.hint(
            dots, [f"{s}: {first} {number(a)}, {second} {number(b)}" for s, a, b in zip(means.index, x, y, strict=True)]
        )
        panel.set(xlim=(0, top), ylim=(0, top), aspect="equal", title=state.capitalize() if count > 1 else "")
        if state != "after":  # fair dots lie on each other, and their names would hide them
            _name_extremes(panel, means, 2 if sheet.narrow else 3, (0.021 if sheet.narrow else 0.0142) * top)
        panel.set(xlabel=f"P({clean(first)})", ylabel=f"P({clean(second)})")
        panel.locator_params(nbins=5)


def _name_extremes(panel: Axes, means: Frame, most: int, letter: float) -> None:
    """Name a few subjects far to either side of even, where a name hides no dot; `letter` is one letter's width."""
    first, second = means.columns[:2]
    lean = (means[first] - means[second]).sort_values(kind="stable")
    dots, top = means.to_numpy(), panel.get_xlim()[1]
    for outermost in (lean.index[::-1], lean.index):
        named = 0
        for subject in outermost[: len(lean) // 4]:
            x, y = (float(v) for v in means.loc[subject, [first, second]])
            name, gap = clean(subject, 20), 1.2 * letter
            wide = len(name) * letter
            for left, align in ((x + gap, "left"), (x - gap - wide, "right")):
                box = (left, left + wide, y - 1.4 * letter, y + 1.4 * letter)
                if named == most or box[0] < 0 or box[1] > top or _any_inside(dots, box):
                    continue
                edge = left if align == "left" else left + wide
                panel.text(edge, y, name, ha=align, va="center_baseline", size="small")
                # The corners and the middle of a name stand for it when the next one looks for room.
                dots = np.vstack([dots, [(left + part * wide, y) for part in (0, 0.25, 0.5, 0.75, 1)]])
                named += 1
                break


def _any_inside(dots: np.ndarray, box: tuple[float, float, float, float]) -> bool:
    x, y = dots[:, 0], dots[:, 1]
    return bool(((x > box[0]) & (x < box[1]) & (y > box[2]) & (y < box[3])).any())


def _strips(sheet: Sheet, part: Slice) -> None:
    count = len(part.words)
    rows, columns = (count, 1) if sheet.narrow else (1, count)
    tall = 60 + 70 * len(part.means)
    panels = sheet.panels(rows, columns, count * tall if sheet.narrow else tall + 60, sharex=True)
    states = list(part.means)
    for panel, word in zip(panels, part.words, strict=True):
        panel.axvline(1 / count, color=MUTED, linewidth=1, linestyle=(0, (4, 4)))
        for row, (state, means) in enumerate(part.means.items()):
            share = (means[word] / means.sum(axis=1)).to_numpy()
            # The golden ratio spreads the dots evenly within the strip without chance.
            offset = 0.5 * ((np.arange(len(share)) * 0.618034) % 1 - 0.5)
            dots = panel.scatter(
                share, row + offset, s=18, color=_fill(state), edgecolor=COLOURS[state], linewidth=1, alpha=0.75
            )
            sheet.hint(
                dots, [f"{s}: {word} {number(v)} of the words' mass" for s, v in zip(means.index, share, strict=True)]
            )
        panel.set(xlim=(-0.02, 1.02), ylim=(len(states) - 0.5, -0.5), title=clean(word))
        panel.set_yticks(range(len(states)), states)
        panel.set_xlabel("share")
        panel.grid(False, axis="y")


def groups(scores: dict[str, dict[str, Any]], names: list[str], name: str) -> Markup:
    """A metric and its groups as dots with intervals, the ideal a line; `scores` has one score a state."""
    label = f"Score by group ({', '.join(clean(n) for n in names)}): {', '.join(scores)}"
    return inline(name, label, lambda sheet: _dots(sheet, scores, names))


def _dots(sheet: Sheet, scores: dict[str, dict[str, Any]], names: list[str]) -> None:
    lines = ["all", *names]
    (panel,) = sheet.panels(1, 1, 64 + len(lines) * (12 + 18 * len(scores)))
    parts = {state: [score, *(entry(score, name) for name in names)] for state, score in scores.items()}
    digits = decimals(*(part.get("value") for found in parts.values() for part in found))
    beside = {"xycoords": panel.get_yaxis_transform(), "annotation_clip": False, "va": "center_baseline"}
    seen = []
    for order, (state, found) in enumerate(parts.items()):
        for row, part in enumerate(found):
            at = row + (order - (len(scores) - 1) / 2) * 0.36
            seen += _dot(sheet, panel, part, at, lines[row], state)
            # Numbers in a column of their own never meet a line.
            panel.annotate(number(part.get("value"), digits), (1.01, at), **beside)
    ideal = next(iter(scores.values())).get("ideal")
    if known(ideal):
        seen.append(ideal)
        panel.axvline(ideal, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
        panel.set_xlabel(f"the dashed line is the ideal, {exact(ideal)}")
    panel.axhline(0.5, color=LINE, linewidth=1)
    panel.set_yticks(range(len(lines)), [_folded(line, sheet.narrow) for line in lines], color=INK)
    panel.get_yticklabels()[0].set_weight("bold")
    low, high = _view(seen, next(iter(scores.values())).get("range") or (None, None))
    room = high - low
    panel.set(ylim=(len(lines) - 0.4, -0.6), xlim=(low - 0.04 * room, high + 0.04 * room))
    panel.grid(False, axis="y")
    panel.locator_params(axis="x", nbins=4 if sheet.narrow else 8)


def _folded(text: str, narrow: bool) -> str:
    """A label in one line, or in two where there is little room."""
    return "\n".join(textwrap.wrap(clean(text), 20, max_lines=2, placeholder="…")) if narrow else clean(text, 40)


def _view(seen: list[float], bounds: Sequence[float | None]) -> tuple[float, float]:
    """The part of the scale to draw: never so little of it that 0.98 beside an ideal of 1 looks far off."""
    low, high = min(seen), max(seen)
    start, end = bounds
    if not (known(start) and known(end)):
        return min(low, 0.0), max(high, low + 1.0 if low == high else high)
    lacking = max(LEAST * (end - start) - (high - low), 0)
    low = min(max(low - lacking / 2, start), end - LEAST * (end - start), low)
    return low, max(high, low + LEAST * (end - start))


def _dot(sheet: Sheet, panel: Axes, part: dict[str, Any], at: float, line: str, state: str) -> list[float]:
    """One value with its interval; returns the places it takes on the scale."""
    value, low, high = (part.get(key) for key in ("value", "low", "high"))
    if not known(value):
        return []
    colour, taken = COLOURS[state], [value]
    if known(low) and known(high):
        taken += [low, high]
        panel.plot([low, high], [at, at], color=colour, linewidth=3, alpha=0.45)
    dots = panel.scatter([value], [at], s=46, color=_fill(state), edgecolor=colour, linewidth=2, zorder=3)
    sheet.hint(dots, [f"{line}, {state}: {number(value)}"])
    return taken


def blocks(ranking: Frame) -> Markup:
    """BMI by block in both readings, and below them the ranking's own score; the chosen block is marked."""
    readings = {"bmi_before_norm": "BMI, before the final norm", "bmi_after_norm": "BMI, after the final norm"}
    found = {c: text for c, text in readings.items() if c in ranking and ranking[c].notna().any()}
    chosen = chosen_blocks(ranking)
    label = f"Scores by block; chosen: {', '.join(map(str, chosen)) or 'none'}"

    def paint(sheet: Sheet) -> None:
        top = [[column] for column in found] if sheet.narrow else [list(found)] if found else []
        layout = [*top, ["score"] * len(top[0] if top else "1")]
        panels: dict[str, Axes] = sheet.size(190 * len(layout) + 20).subplot_mosaic(layout)  # type: ignore[call-overload]
        for column, panel in panels.items():
            _block_bars(sheet, panel, ranking, column, chosen)
            panel.set_title(found.get(column, "Score the block was chosen by"))
        panels["score"].set_xlabel("block")

    return inline("blocks", label, paint)


def _block_bars(sheet: Sheet, panel: Axes, ranking: Frame, column: str, chosen: list[int]) -> None:
    lines = ranking.dropna(subset=[column]).sort_values("block")
    for block, value in zip(lines["block"], lines[column], strict=True):
        mark = int(block) in chosen
        (bar,) = panel.bar(block, value, 0.74, color=AFTER if mark else QUIET)
        sheet.hint(bar, [f"block {block}: {number(float(value))}" + (", chosen" if mark else "")])
        if mark:
            panel.annotate(
                f"{block}",
                (block, max(value, 0)),
                (0, 4),
                textcoords="offset points",
                ha="center",
                weight="bold",
            )
    panel.axhline(0, color=LINE, linewidth=1)
    panel.margins(y=0.16)
    panel.set_xlim(ranking["block"].min() - 0.7, ranking["block"].max() + 0.7)
    panel.grid(False, axis="x")
    panel.locator_params(axis="y", nbins=4)
    panel.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[attr-defined]


def leaning(part: Slice, name: str) -> Markup:
    """The subjects farthest from even as a dumbbell: signed for two words, the spread for more."""
    lean = farthest(part)
    label = f"The {len(next(iter(lean.values())))} professions farthest from even: {', '.join(lean)}"
    return inline(name, label, lambda sheet: _dumbbell(sheet, lean, part.words))


def _dumbbell(sheet: Sheet, lean: dict[str, Column], words: list[str]) -> None:
    top = next(iter(lean.values()))
    rows = np.arange(len(top))
    (panel,) = sheet.panels(1, 1, 70 + 25 * len(top))
    ends = list(lean.values()) if len(lean) > 1 else [top, 0 * top]
    panel.hlines(rows, ends[0], ends[-1], color=QUIET, linewidth=3)
    panel.axvline(0, color=MUTED, linewidth=1, linestyle=(0, (4, 4)))
    for state, values in lean.items():
        dots = panel.scatter(values, rows, s=62, color=_fill(state), edgecolor=COLOURS[state], linewidth=2, zorder=3)
        shown = values.dropna()
        sheet.hint(dots, [f"{subject}, {state}: {number(v, sign=True)}" for subject, v in shown.items()])
    panel.set_yticks(rows, [clean(subject, 20 if sheet.narrow else 36) for subject in top.index], color=INK)
    panel.set_ylim(len(top) - 0.4, -0.6)
    panel.margins(x=0.06)
    panel.grid(False, axis="y")
    if len(words) == 2:
        panel.set_xlabel(f"← more {clean(words[1], 14)}\u2003·\u2003more {clean(words[0], 14)} →")
    panel.locator_params(axis="x", nbins=6)


def curve(table: Frame) -> Markup:
    """The loss by step, and its parts in a panel of their own: their scales differ."""
    numeric = table.select_dtypes("number").columns
    parts = [c for c in numeric if c not in ("step", "epoch", "loss") and table[c].notna().any()]
    label = "Training loss by step" + (f", and its parts: {', '.join(map(str, parts))}" if parts else "")

    def paint(sheet: Sheet) -> None:
        count = 2 if parts else 1
        rows, columns = (count, 1) if sheet.narrow else (1, count)
        panels = sheet.panels(rows, columns, 240 * rows if sheet.narrow else 300)
        _line(panels[0], table, "loss", AFTER)
        panels[0].set_title("Loss")
        for order, part in enumerate(parts):
            _line(panels[1], table, part, PARTS[order % len(PARTS)], ("-", "--", "-.", ":")[order % 4])
        if parts:
            panels[1].set_title("Its parts")
            panels[1].legend(frameon=False, ncols=2, loc="upper right", borderaxespad=0, handlelength=2.4)
        for panel in panels:
            _mark_epochs(panel, table)
            panel.set_xlabel("step")
            panel.locator_params(nbins=5)

    return inline("curve", label, paint)


def _line(panel: Axes, table: Frame, column: str, colour: str, style: str = "-") -> None:
    values = table[column]
    if len(table) >= DENSE:
        panel.plot(table["step"], values, color=colour, linewidth=0.8, alpha=0.3)
        values = values.rolling(len(table) // 40, center=True, min_periods=1).mean()
    panel.plot(table["step"], values, color=colour, linewidth=2, linestyle=style, label=clean(column, 24))


def _mark_epochs(panel: Axes, table: Frame) -> None:
    if "epoch" not in table:
        return
    begun = np.ceil(table["epoch"]).diff() > 0
    for step in table.loc[begun, "step"][:20]:
        panel.axvline(step, color=LINE, linewidth=1, linestyle=(0, (2, 3)))


def interval_strip(scores: dict[str, dict[str, Any]]) -> Markup:
    """A metric's values and intervals on one line with its ideal: the verdict at a glance."""
    seen = [s.get(key) for s in scores.values() for key in ("value", "low", "high", "ideal")]
    numbers = [float(v) for v in seen if known(v)]
    if not numbers:
        return Markup("")
    # From 0, lest 0.98 beside an ideal of 1 look far off.
    low = min(0.0, *numbers)
    reach = (max(numbers) - low) or 1.0

    def at(value: float) -> str:
        return f"{8 + 144 * (value - low) / reach:.1f}"

    shapes = ['<line x1="8" x2="152" y1="16" y2="16" stroke="var(--line)"/>']
    ideal = next(iter(scores.values())).get("ideal")
    if known(ideal):
        shapes.append(f'<path d="M{at(ideal)} 5v22" stroke="currentColor" stroke-dasharray="2 2"/>')
    for state, score in scores.items():
        shapes += _strip_marks(state, score, at)
    words = ", ".join(f"{state} {number(score.get('value'))}" for state, score in scores.items())
    shapes.insert(0, f"<title>{words}</title>")
    return Markup(f'<svg class="strip" viewBox="0 0 160 32" aria-hidden="true">{"".join(shapes)}</svg>')


def _strip_marks(state: str, score: dict[str, Any], at: Any) -> list[str]:
    colour = f"var(--{'before' if state == 'before' else 'after'})"
    marks = []
    if known(score.get("low")) and known(score.get("high")):
        ends = f'x1="{at(score["low"])}" x2="{at(score["high"])}"'
        marks.append(f'<line {ends} y1="16" y2="16" stroke="{colour}" stroke-width="5" stroke-opacity="0.35"/>')
    if known(score.get("value")):
        fill = "var(--page)" if state == "before" else colour
        marks.append(
            f'<circle cx="{at(score["value"])}" cy="16" r="4.5" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
        )
    return marks
