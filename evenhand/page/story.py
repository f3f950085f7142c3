"""The sentences of the page, computed from the numbers: the headline and what to see in each figure."""

from typing import Any

from evenhand.page.folder import PREFIX, Frame, RunFolder, Slice, farthest, slices
from evenhand.page.plain import SPACE, duration, exact, known, listing, number, percent

NAMES = {
    "afgb": "AFGB",
    "ub": "UB",
    "perplexity": "Perplexity",
    "crows_pairs": "CrowS-Pairs",
    "stereoset": "StereoSet",
    "bbq": "BBQ",
    "winogender": "Winogender",
    "winobias": "WinoBias",
    "weat": "WEAT",
    "seat": "SEAT",
    "gas": "GAS",
    "trex": "T-REx",
    "ausc": "AUSC",
    "label_f1": "Label F1",
    "tpr_gap": "TPR gap",
    "harness": "lm-eval",
}
"""How the field writes the names; any other metric is called what its file is called."""
FAINTER = 0.8  # what is left of the words' probability below which the headline says so
CLAUSES = 4  # of a headline; more are no headline
FACTOR = 2  # "about even": the likeliest word less than this many times as likely as the least likely one


def metric_name(metric: str) -> str:
    """A metric's name as a heading."""
    name, colon, data = metric.partition(":")
    return NAMES.get(name, name.replace("_", " ")) + (f" on {data.replace('_', ' ')}" if colon else "")


def title(run: RunFolder) -> str:
    """What was done to which model."""
    model, method = str(run.config.get("model", "a model")), method_name(run)
    command = str(run.config.get("command", "run"))
    if command == "debias":
        return f"{model}, debiased with {method}" if method else f"{model}, debiased"
    return model + {"measure": ", measured", "locate": ": where the bias sits"}.get(command, f", {command}")


def method_name(run: RunFolder) -> str:
    """The method's name, or nothing where the run has none."""
    method = run.config.get("method")
    return str(method.get("name", "")) if isinstance(method, dict) else str(method or "")


def headline(run: RunFolder) -> str:
    """The run in one plain sentence."""
    if {"before", "after"} <= run.scores.keys():
        clauses = _changes(run)
    elif "measured" in run.scores:
        clauses = _readings(run)
    else:
        clauses = [_located(run.ranking)] if run.ranking is not None else ["no scores were taken in this run"]
    text = "; ".join(clauses)
    return text[:1].upper() + text[1:] + "."


def _gap_words(run: RunFolder) -> str:
    parts = slices(run.tables.get("afgb", {}))
    return listing(parts[0].words) if len(parts) == 1 else "the compared words"


def _changes(run: RunFolder) -> list[str]:
    verdicts = run.results.get("verdicts", {})
    shared = [m for m in run.scores["before"] if m in run.scores["after"]]
    clauses, rest = [], []
    for metric in sorted(shared, key=lambda m: list(NAMES).index(m) if m in NAMES else len(NAMES)):
        before, after = run.scores["before"][metric], run.scores["after"][metric]
        verdict = verdicts.get(metric, {}).get("verdict", "inconclusive")
        if not (known(before["value"]) and known(after["value"])):
            continue
        if metric == "afgb":
            clauses.append(_gap_change(_gap_words(run), before["value"], after["value"], verdict))
            clauses += _fainter(before, after)
        elif metric == "ub":
            clauses.append(_hint_change(before["value"], after["value"], verdict, _followed(run, "after")))
        elif metric == "perplexity":
            clauses.append(f"perplexity {moved(before['value'], after['value'])}")
        else:
            rest.append((metric, verdict))
    return clauses + _others(rest, alone=not clauses)


def _gap_change(words: str, before: float, after: float, verdict: str) -> str:
    if verdict == "inconclusive":
        return f"the gap between {words} did not change measurably ({number(before)} before, {number(after)} after)"
    return f"the gap between {words} {moved(before, after)}"


def _fainter(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """A model that avoids the words altogether has a small gap too; a reader must not take that for fairness."""
    old, new = ((score.get("extra") or {}).get("mass") for score in (before, after))
    if known(old) and known(new) and new < FAINTER * old:
        return [f"the words themselves became less likely ({number(old)} before, {number(new)} after)"]
    return []


def _followed(run: RunFolder, state: str) -> str:
    """The share of hinted prompts whose likeliest word is the hinted one; the score where there is no table."""
    table = run.tables.get("ub", {}).get(state)
    if table is None:
        return f"UB {number(run.scores[state]['ub']['value'])}"
    columns = [column for column in table.columns if str(column).startswith(PREFIX)]
    likeliest = table[columns].fillna(-1).idxmax(axis=1).str.removeprefix(PREFIX)
    return percent(float((likeliest == table["hint"]).mean()))


def _hint_change(before: float, after: float, verdict: str, followed: str) -> str:
    if verdict == "inconclusive":
        return f"hints are followed as before ({followed})"
    how = "more" if after > before else "less"
    return f"hints are followed {how} strongly (UB {number(before)} before, {number(after)} after)"


def moved(before: float, after: float) -> str:
    """How far a number rose or fell: "fell by 12 %"."""
    if before == after:
        return "stayed the same"
    word = "fell" if after < before else "rose"
    if before == 0:
        return f"{word} from 0 to {number(after)}"
    share = abs(after / before - 1)
    return f"{word} by {percent(share)}" if share >= 0.0005 else f"{word} by less than {percent(0.001)}"


def _others(rest: list[tuple[str, str]], alone: bool) -> list[str]:
    """Scores without a sentence of their own; one that got worse is always named."""
    clauses = []
    for verdict, word in (("regressed", "got worse"), ("improved", "got better"), ("inconclusive", "held still")):
        names = [metric_name(metric) for metric, found in rest if found == verdict]
        if names and (alone or verdict == "regressed"):
            clauses.append(f"{listing(names)} {word}")
    return clauses


def _readings(run: RunFolder) -> list[str]:
    scores, clauses = run.scores["measured"], []
    for metric, score in scores.items():
        value, ideal = score["value"], score.get("ideal")
        if not known(value):
            continue
        if metric == "afgb":
            clauses.append(f"the gap between {_gap_words(run)} is {number(value)} ({exact(ideal)}{SPACE}would be even)")
        elif metric == "ub":
            clauses.append(f"hints are followed ({_followed(run, 'measured')})")
        else:
            aim = f" ({exact(ideal)} is ideal)" if known(ideal) and metric != "perplexity" else ""
            clauses.append(f"{'perplexity' if metric == 'perplexity' else metric_name(metric)} is {number(value)}{aim}")
    if not clauses:
        return ["no score could be taken in this run"]
    missing = len(run.results.get("failed") or {})
    lacks = [f"{'one metric' if missing == 1 else f'{missing} metrics'} could not be measured"] if missing else []
    if len(clauses) <= CLAUSES:
        return clauses + lacks
    rest = len(clauses) - CLAUSES + 1
    return [*clauses[: CLAUSES - 1], f"{rest}{SPACE}more scores are below", *lacks]


def chosen_blocks(ranking: Frame) -> list[int]:
    """The blocks the locator chose; the best one where none is marked."""
    if "chosen" in ranking and ranking["chosen"].any():
        return [int(block) for block in ranking.loc[ranking["chosen"].astype(bool), "block"]]
    return [int(ranking.loc[ranking["score"].idxmax(), "block"])] if ranking["score"].notna().any() else []


def _located(ranking: Frame) -> str:
    chosen = chosen_blocks(ranking)
    if not chosen:
        return "no block stands out"
    plural = len(chosen) > 1
    names = listing([str(block) for block in chosen])
    tail = "were chosen as those that carry the bias" if plural else "was chosen as the one that carries the bias"
    return f"block{'s' * plural} {names} of {len(ranking)} {tail}"


def about_blocks(ranking: Frame) -> str:
    """Which block was chosen, and whether the two readings of BMI agree on it."""
    tried = int(ranking["score"].notna().sum())
    some = f", and {tried} were tried" if tried < len(ranking) else ""
    text = f"{_located(ranking).capitalize()} (blocks are counted from 0{some})."
    readings = [c for c in ("bmi_before_norm", "bmi_after_norm") if c in ranking and ranking[c].notna().any()]
    if len(readings) < 2:
        return text
    first, second = (int(ranking.loc[ranking[c].idxmax(), "block"]) for c in readings)
    if first == second:
        return f"{text} BMI points to block {first} both before and after the final norm."
    return (
        f"{text} BMI points to block {first} when read before the final norm and to block {second} when read after it."
    )


def about_words(part: Slice) -> str:
    """How many subjects the model treats about evenly, in each state."""
    counts = {state: int((m.max(axis=1) < FACTOR * m.min(axis=1)).sum()) for state, m in part.means.items()}
    total = len(next(iter(part.means.values())))
    line = "on the dashed diagonal both words are equally likely" if len(part.words) == 2 else "the dashed line is even"
    found = _by_state({state: f"{count} of {total}" for state, count in counts.items()})
    return f"Each dot is a profession, the mean of its prompts; {line}. About even (within a factor of two): {found}."


def about_leaning(part: Slice) -> str:
    """How far the subjects that leaned most lean in each state."""
    lean = farthest(part)
    two = len(part.words) == 2
    shown = f"P({part.words[0]}) less P({part.words[1]})" if two else "the likeliest word less the least likely"
    means = _by_state({state: number(float(values.abs().mean())) for state, values in lean.items()})
    chosen = " before" if "before" in lean else ""
    count = len(next(iter(lean.values())))
    return f"The {count} professions farthest from even{chosen}: {shown}. Their mean distance from 0: {means}."


def _by_state(texts: dict[str, str]) -> str:
    return "; ".join(text if state == "measured" else f"{text} {state}" for state, text in texts.items())


def about_curve(curve: Frame, train: dict[str, Any]) -> str:
    """Where the loss began and ended."""
    first, last = float(curve["loss"].iloc[0]), float(curve["loss"].iloc[-1])
    seconds = f" ({duration(train['seconds'])})" if known(train.get("seconds")) else ""
    return f"The loss went from {number(first)} to {number(last)} in {len(curve)} recorded steps{seconds}."
