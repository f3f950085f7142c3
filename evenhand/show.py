"""What one thing is: its description, where it comes from, and its options, from the code itself."""

import inspect

from evenhand import catalog
from evenhand.config import Refusal, closest, describe

__all__ = ["describe_name"]


def describe_name(name: str) -> str:
    """Text about a dataset, metric, method, locator or recipe."""
    kinds = [kind for kind in catalog.KINDS if name in catalog.names(kind)]
    if not kinds:
        every = [known for kind in catalog.KINDS for known in catalog.names(kind)]
        raise Refusal(f"There is nothing called {name!r}{closest(name, every)}. List everything with evenhand ls.")
    return "\n\n".join(describe_one(kind, name) for kind in kinds)


def describe_one(kind: str, name: str) -> str:
    """One thing of one kind."""
    if kind == "recipes":
        return (catalog.ROOT / kind / f"{name}.yaml").read_text(encoding="utf-8").rstrip()
    cls = catalog.load(kind, name)
    lines = [f"{name} ({kind})", inspect.getdoc(cls) or ""]
    for fact in ("headline", "ideal", "paper", "citation", "data", "splits"):
        if getattr(cls, fact, ""):
            lines.append(f"{fact}: {getattr(cls, fact)}")
    source = getattr(cls, "source", None)
    if source:
        lines += [f"{part}: {value}" for part, value in source._asdict().items() if value]
    part = {"methods": "method", "data": "data", "locators": "locate"}.get(kind, name)
    for option in describe(cls):
        lines.append(
            f"\n  --set {part}.{option.name}=…   {option.kind}, default {option.default!r}\n      {option.help}"
        )
    for preset, chosen in getattr(cls, "presets", {}).items():
        lines.append(f"\n  --preset {preset}: " + ", ".join(f"{key}={value}" for key, value in chosen.items()))
    return "\n".join(lines)
