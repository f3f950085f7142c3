"""Run folders, and tables of runs, become one self-contained HTML page each."""

from evenhand.page.attention import attention_page
from evenhand.page.build import build
from evenhand.page.table_page import build_table_page

__all__ = ["attention_page", "build", "build_table_page"]
