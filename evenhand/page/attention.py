"""Where the model looks: each token's link to each reference word, before above after (CrAWD's figure 4)."""

from typing import NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from evenhand.page.folder import Frame
from evenhand.page.plain import known, number
from evenhand.page.svg import AFTER, INK, LINE, Sheet, clean, inline
from evenhand.page.write import render

STATES = ("before", "after")
COLUMNS = ("prompt", "place", "token", "word", *STATES)
SHOWN = 4  # prompts before the fold
DARKEST = 0.6  # opacity of the strongest link, so that its number can be read on it
BESIDE, COLUMN, LETTER = 90, 52, 8.5  # pixels: left of the cells, a cell's width at least, a letter's width
STEPS = 6  # shades of the legend


class Looks(NamedTuple):
    """One prompt's heat map."""

    prompt: str
    about: str
    figure: Markup


class Attention(NamedTuple):
    """All heat maps and the scale they share."""

    legend: Markup
    shown: list[Looks]
    folded: list[Looks]


def attention(table: Frame | None) -> Attention | None:
    """A heat map a prompt, all on one colour scale; nothing where there is no table."""
    if table is None or not set(COLUMNS) <= set(table.columns):
        return None
    top = max((float(value) for state in STATES for value in table[state] if known(float(value))), default=0.0) or 1.0
    parts = [
        Looks(clean(prompt, 300), about(lines), heat_map(lines, top, f"looks{n}"))
        for n, (prompt, lines) in enumerate(table.groupby("prompt", sort=False))
    ]
    return Attention(legend(top), parts[:SHOWN], parts[SHOWN:])


def attention_page(table: Frame) -> str:
    """A page with the heat map of one prompt and nothing else."""
    found = attention(table)
    if found is None:
        raise ValueError("the table has no links")
    looks = found.shown[0]
    return render(
        "looks.html", "style.css", "evidence.css", title=f"Where the model looks: {looks.prompt}", looks=looks
    )


def measured(lines: Frame) -> list[str]:
    """The states that were looked at: one of a model as it is, two of a debiased one."""
    return [state for state in STATES if lines[state].notna().any()]


def about(lines: Frame) -> str:
    """The strongest link in each state, and what became of the first one."""
    peaks = {state: lines.loc[lines[state].idxmax()] for state in measured(lines)}
    texts = [
        f"{state if len(peaks) > 1 else ''} “{clean(p['token'])}” to “{clean(p['word'])}”, {number(float(p[state]), 2)}"
        for state, p in peaks.items()
    ]
    text = "Strongest link: " + "; ".join(each.strip() for each in texts)
    if len(peaks) == 2 and peaks["before"].name != peaks["after"].name:
        text += f" (the first one is {number(float(peaks['before']['after']), 2)} now)"
    return text + "."


def heat_map(lines: Frame, top: float, name: str) -> Markup:
    """Tokens along, reference words down, before above after; `top` is the value drawn darkest."""
    places = sorted(lines["place"].unique())
    words = list(dict.fromkeys(lines["word"]))
    states = measured(lines)
    shown = f"the tokens of “{clean(lines['prompt'].iloc[0])}” to {', '.join(clean(word) for word in words)}"
    label = f"{about(lines)} Links from {shown}."  # the strongest first: a long label is cut

    def paint(sheet: Sheet) -> None:
        across = max((sheet.width - BESIDE) // COLUMN, 1)
        runs = [places[start : start + across] for start in range(0, len(places), across)]
        # Few tokens would make cells as broad as a hand.
        columns = max(len(runs[0]), across // 2)
        longest = int((sheet.width - BESIDE) / columns / LETTER)
        drawn = [(run, state) for run in runs for state in states]
        panels = sheet.panels(len(drawn), 1, len(drawn) * (26 * len(words) + 56))
        for panel, (run, state) in zip(panels, drawn, strict=True):
            part = lines[lines["place"].isin(run)]
            _cells(
                sheet, panel, part.assign(x=part["place"].map(run.index), y=part["word"].map(words.index)), state, top
            )
            tokens = part.drop_duplicates("place").set_index("place")["token"]
            panel.set_xticks(range(len(run)), [clean(tokens[place], longest) or "␣" for place in run], color=INK)
            panel.set_yticks(range(len(words)), [clean(word, 12) for word in words], color=INK)
            panel.set(
                xlim=(-0.5, columns - 0.5),
                ylim=(len(words) - 0.5, -0.5),
                title=state.capitalize() if len(states) > 1 else "",
            )
            panel.grid(False)
            panel.spines["bottom"].set_visible(False)

    return inline(name, label, paint)


def _cells(sheet: Sheet, panel: Axes, lines: Frame, state: str, top: float) -> None:
    """A cell a link, at its column `x` and row `y`, as opaque as the link is strong."""
    for x, y, token, word, value in lines[["x", "y", "token", "word", state]].itertuples(index=False):
        if not known(float(value)):
            continue
        share = min(max(float(value) / top, 0.0), 1.0)
        cell = Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=(AFTER, DARKEST * share), edgecolor=LINE)
        panel.add_patch(cell)
        sheet.hint(cell, [f"{clean(token)} to {clean(word)}, {state}: {number(float(value), 2)}"])
        panel.text(x, y, number(float(value), 2), ha="center", va="center_baseline", size=11)


def legend(top: float) -> Markup:
    """The shared colour scale, from no link to the strongest one in the table."""
    shades = [
        f'<rect x="{40 * n}" y="0" width="40" height="14" fill="var(--after)" '
        f'fill-opacity="{DARKEST * n / (STEPS - 1):.2f}" stroke="var(--line)"/>'
        for n in range(STEPS)
    ]
    wide = 40 * STEPS
    texts = f'<text x="0" y="31">0</text><text x="{wide}" y="31" text-anchor="end">{number(top, 2)}</text>'
    words = f"Colour scale from 0, the palest, to {number(top, 2)}, the darkest"
    return Markup(
        f'<svg class="legend" viewBox="0 0 {wide} 36" role="img" aria-label="{words}">'
        f"<title>{words}</title>{''.join(shades)}{texts}</svg>"
    )
