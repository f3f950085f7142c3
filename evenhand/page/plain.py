"""Numbers as people read them: enough digits, a true minus, a unit that does not break off at a line's end."""

import math
from typing import TypeGuard

MISSING = "–"
SPACE = "\u00a0"  # no-break: "84 %" must not be torn apart at a line's end


def known(value: object) -> TypeGuard[float]:
    """True for a finite number; JSON may hold null or NaN where a score could not be taken."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def decimals(*values: float | None) -> int:
    """Digits after the point that suit the largest of some numbers, so that a value and its interval line up."""
    size = max((abs(v) for v in values if known(v)), default=0.0)
    if size >= 1000:
        return 0
    if size >= 100:
        return 1
    if size >= 10:
        return 2
    return 3 if size >= 0.02 or size == 0 else 4


def number(value: float | None, digits: int | None = None, sign: bool = False) -> str:
    """A number in text; `sign` writes the plus of a change."""
    if not known(value):
        return MISSING
    if digits is None and 0 < abs(value) < 0.0005:
        return f"{value:{'+' if sign else ''}.1e}".replace("-", "−")
    digits = decimals(value) if digits is None else digits
    text = f"{value:{'+' if sign else ''},.{digits}f}"
    if not text.strip("+-0.,"):
        text = text.lstrip("+-")  # "+0.000" and "-0.000" are both zero
    return text.replace("-", "−")


def exact(value: float | None) -> str:
    """A number that was set rather than measured (an ideal): no digits it does not need."""
    return f"{value:g}".replace("-", "−") if known(value) else MISSING


def percent(share: float | None, sign: bool = False) -> str:
    """0.843 as "84 %"; a decimal where whole percents would hide the point."""
    if not known(share):
        return MISSING
    value = 100 * share
    fine = abs(value) < 10 or 99 < abs(value) < 100
    text = number(value, 1 if fine and value else 0, sign)
    return (text[:-2] if text.endswith(".0") else text) + SPACE + "%"


def chance(p: float | None) -> str:
    """A p value; below 0.001 only that it is."""
    if not known(p):
        return MISSING
    return f"<{SPACE}0.001" if p < 0.001 else f"{p:.3f}"


def duration(seconds: float | None) -> str:
    """Seconds in the unit that suits them."""
    if not known(seconds):
        return MISSING
    if seconds < 120:
        return f"{seconds:.1f}{SPACE}s" if seconds < 10 else f"{seconds:.0f}{SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes}{SPACE}min {rest}{SPACE}s"
    return f"{minutes // 60}{SPACE}h {minutes % 60}{SPACE}min"


def amount(value: float | None) -> str:
    """A large count, such as parameters: "134.5 M"."""
    if not known(value):
        return MISSING
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.1f}{SPACE}{unit}"
    return f"{value:g}"


def listing(words: list[str]) -> str:
    """Words in a sentence: "white, black and Asian"."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
