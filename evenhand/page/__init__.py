"""Run folders become one self-contained HTML page."""

from evenhand.page.build import build

__all__ = ["build"]
