"""Plain fine-tuning with low-rank adapters: it learns the texts, bias included. The baseline to be beaten."""

from typing import ClassVar

from evenhand.config import options
from evenhand.methods._texts import TextMethod

__all__ = ["Vanilla"]


@options
class Vanilla(TextMethod):
    """LoRA fine-tuning on texts, with nothing done about bias."""

    paper: ClassVar = "CrAWD, section 5.3 (baseline Vanilla)"
    citation: ClassVar = "Anonymous ACL submission, 2025"
    kinds: ClassVar = ("causal", "seq2seq")
