"""evenhand finds the bias in a language model, removes it by fine-tuning, and proves it."""

from typing import TYPE_CHECKING, Any

from evenhand.registering import register_when_loaded

if TYPE_CHECKING:
    from evenhand.api import check, compare, debias, export, locate, measure, report, score
    from evenhand.lm import LM
    from evenhand.run import Run

__all__ = ["LM", "Run", "check", "compare", "debias", "export", "locate", "measure", "report", "score"]

register_when_loaded()


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used, so that the command line starts at once."""
    import importlib

    if name not in __all__:
        raise AttributeError(f"evenhand has no {name!r}; it has {', '.join(__all__)}")
    home = {"LM": "lm", "Run": "run"}.get(name, "api")
    return getattr(importlib.import_module(f"evenhand.{home}"), name)
