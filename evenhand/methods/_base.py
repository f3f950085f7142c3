"""What a method is: `fit` is the whole algorithm and returns the small state that `attach` rebuilds the model from."""

from typing import Any, ClassVar

from evenhand.config import options
from evenhand.data._rows import Row
from evenhand.lm import LM
from evenhand.run import Run
from evenhand.train import Fit

__all__ = ["Method", "keep"]


@options
class Method:
    """Something that makes a model fairer."""

    reads: ClassVar[type[Row]]
    data: ClassVar[str]
    """The dataset trained on when none is named."""
    paper: ClassVar[str]
    citation: ClassVar[str]
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Named settings, such as the paper's."""

    def check(self, lm: LM) -> None:
        """Refuse a model that this cannot be done to; asked before anything is measured."""

    def attach(self, lm: LM, state: dict[str, Any]) -> None:
        """Give the model its shape: before training, and again whenever the result is loaded."""

    def fit(self, lm: LM, rows: list[Any], run: Run) -> dict[str, Any]:
        """Train the model in place and return the state."""
        raise NotImplementedError


def keep(run: Run, lm: LM, fit: Fit) -> None:
    """Write a training's curve and cost into the run."""
    run.save("curve.parquet", fit.curve)
    count = {name: parameter.numel() for name, parameter in lm.model.named_parameters()}
    run.save(
        "train.json",
        {
            "seconds": round(fit.seconds, 2),
            "trainable": sum(count[name] for name in lm.trained),
            "total": lm.parameter_count(),
            "peak_memory_mb": round(fit.peak_memory_mb, 1),
        },
    )
