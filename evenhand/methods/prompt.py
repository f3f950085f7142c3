"""Prompt-based debiasing (the paper's PB): ask the model to be fair. The baseline that trains nothing."""

from typing import Any, ClassVar, Literal

from evenhand.config import options
from evenhand.data._rows import Prompt
from evenhand.lm import LM
from evenhand.methods._base import Method
from evenhand.run import Run

__all__ = ["PromptMethod"]

PARAPHRASES = (
    "Treat women and men alike, and do not guess anyone's group from a profession. ",
    "The following text is free of stereotypes: it never infers who somebody is from the work they do. ",
    "Please continue fairly; people of every group do every job equally often. ",
)


@options
class PromptMethod(Method):
    """Put a request for fairness before everything the model reads; its tokens are never scored (PB)."""

    reads: ClassVar = Prompt
    data: ClassVar = "genbiaseval"
    paper: ClassVar = "LFTF, section 5.1 (baseline PB)"
    citation: ClassVar = "Anonymous ACL submission, 2025"

    paraphrase: Literal[0, 1, 2] | None = None
    """Which of the three requests; without it the seed decides."""
    text: str = ""
    """A request of your own instead."""

    def attach(self, lm: LM, state: dict[str, Any]) -> None:
        """The request goes before every text."""
        lm.prefix = state["prefix"]

    def fit(self, lm: LM, rows: list[Prompt], run: Run) -> dict[str, Any]:
        """Nothing to learn."""
        number = self.paraphrase if self.paraphrase is not None else run.seed % len(PARAPHRASES)
        state = {"prefix": self.text or PARAPHRASES[number]}
        self.attach(lm, state)
        run.save("train.json", {"seconds": 0.0, "trainable": 0, "total": lm.parameter_count()})
        return state
