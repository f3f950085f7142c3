"""Run folders become one self-contained HTML page."""

from evenhand.report.build import build

__all__ = ["build"]
