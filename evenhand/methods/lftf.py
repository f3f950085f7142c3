"""LFTF: locate the block that carries the bias, then fine-tune it alone.

The paper prints the loss P(he) + P(she), which drives both to 0; its ablations fit only the cross-entropy towards each
word, which is the preset `paper`. The default asks for balance instead and says what must stay: the words' mass, the
hints that a prompt gives, and ordinary text. n rows, v vocabulary."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from evenhand.config import Refusal, options
from evenhand.data._rows import Prompt
from evenhand.data.genhinteval import GenHintEval
from evenhand.data.plain_text import PlainText
from evenhand.lm import LM
from evenhand.locators.bmi import BMI
from evenhand.locators.tradeoff import Tradeoff
from evenhand.losses import balance, divergence, evened, hinted, towards
from evenhand.methods._base import Method, keep
from evenhand.run import Run
from evenhand.train import Prepared, Schedule, base_logits, logits, prepare, train
from evenhand.words import AXES

__all__ = ["LFTF"]

BMI_ROWS = 100
RATE_TIMES_WIDTH = 1.2
TEXT_TOKENS = 20
PROMPTS_PER_TEXT = 4
# Balancing costs a hint some of its weight in sentences that training has not seen; asking for a little more than the
# base model gives makes up for that.
HINT_MARGIN = 0.15


@options
class LFTF(Method):
    """Locate the block where bias can be removed at the least cost, and fine-tune only that block."""

    reads: ClassVar = Prompt
    data: ClassVar = "genbiaseval"
    paper: ClassVar = "LFTF: Locating First and Then Fine-Tuning for Mitigating Gender Bias in Large Language Models"
    citation: ClassVar = "Anonymous ACL submission, 2025"
    presets: ClassVar = {
        "paper": {
            "loss": "cross_entropy",
            "locator": "bmi",
            "rate": 1e-5,
            "epochs": 2,
            "decay": False,
            "keep_words": 0.0,
            "keep_hints": 0.0,
            "keep_text": 0.0,
        }
    }

    loss: Literal["balance", "cross_entropy", "printed", "negated"] = "balance"
    """Balance the words' log-probabilities; or raise each word (the paper's); or eq. 5 as printed, or its negative."""
    weights: tuple[float, ...] = ()
    """How much each word counts in cross_entropy; 0,1 trains on the second word only (the paper's ablation)."""
    locator: Literal["tradeoff", "bmi"] = "tradeoff"
    """How the block is chosen."""
    block: int | None = None
    """The block to tune, instead of locating one."""
    part: Literal["block", "attention", "mlp"] = "block"
    """Tune the whole block, or only its attention or its MLP."""
    rate: float | None = None
    """Adam's learning rate; without it 1.2 divided by the hidden size, for a wider block needs smaller steps."""
    epochs: int = 4
    """How often every prompt is seen."""
    batch: int = 32
    """Prompts a step (on each device)."""
    decay: bool = True
    """Warm the rate up over five steps and let it fall to zero; else constant."""
    keep_words: float = 3.0
    """How strongly the rest of the distribution, and the words' total, stay as they were on the training prompts."""
    keep_hints: float = 40.0
    """How strongly prompts that hint at a word stay as they were (a little clearer even)."""
    keep_text: float = 20.0
    """How strongly ordinary text stays as it was."""

    def fit(self, lm: LM, rows: list[Prompt], run: Run) -> dict[str, Any]:
        """Locate, prepare what the frozen blocks make of the texts, train one block."""
        lm.require("causal", "lftf")
        if self.weights and len(self.weights) != len(rows[0].words):
            raise Refusal(
                f"There are {len(self.weights)} weights for the words {', '.join(rows[0].words)}; give one each."
            )
        block = self.locate(lm, rows, run) if self.block is None else self.block
        names = list(lm.block_parameters(block, self.part))
        run.say(f"tuning block {block} of {len(lm.blocks)}")
        objective = Pull(self, lm, rows, block, run)
        rate = self.rate if self.rate is not None else RATE_TIMES_WIDTH / lm.model.config.get_text_config().hidden_size
        schedule = Schedule(rate, self.epochs, self.batch, self.decay)
        fit = train(lm, names, len(rows), objective.terms, schedule, run)
        keep(run, lm, fit)
        return {"block": block}

    def locate(self, lm: LM, rows: list[Prompt], run: Run) -> int:
        """Rank the blocks once and keep the ranking, with both readings of BMI beside the score."""
        if not run.has("ranking.parquet"):
            ranking = BMI().rank(lm, rows if self.locator == "bmi" else rows[:BMI_ROWS], run)
            if self.locator == "tradeoff":
                weighed = Tradeoff().rank(lm, rows, run)
                readings = ranking.table[["bmi_before_norm", "bmi_after_norm"]]
                ranking = type(weighed)(weighed.table.join(readings))
            run.save("ranking.parquet", ranking.marked())
            return ranking.best
        table = run.read("ranking.parquet")
        return int(table.loc[table["chosen"], "block"].iloc[0])


class Pull:
    """The loss on a batch of prompts, each with a hint beside it and every fourth with a sentence."""

    def __init__(self, method: LFTF, lm: LM, rows: list[Prompt], block: int, run: Run) -> None:
        self.method, self.lm, self.block = method, lm, block
        self.words = lm.word_ids(rows[0].words, rows[0].text)
        self.prompts = prepare(lm, lm.encode([row.text for row in rows]), block, run, "preparing prompts")
        self.hints = self.texts = Prepared([], [])
        if method.keep_hints:
            if rows[0].axis not in AXES or AXES[rows[0].axis].words != rows[0].words:
                raise Refusal(
                    f"There are no hints for {', '.join(rows[0].words)} on the axis {rows[0].axis!r}; name the axis "
                    "with --set data.axis=…, or train without hints: --set method.keep_hints=0."
                )
            hints = GenHintEval(axis=rows[0].axis).take("train", len(rows))  # pyright: ignore[reportArgumentType]
            self.hints = prepare(lm, lm.encode([row.text for row in hints]), block, run, "preparing hints")
            self.hinted = torch.tensor([row.words.index(row.hint) for row in hints], device=lm.device)
        if method.keep_text:
            sentences = [ids[:TEXT_TOKENS] for ids in lm.encode([row.text for row in PlainText().take("train")])]
            self.texts = prepare(lm, sentences, block, run, "preparing text")

    def terms(self, rows: list[int]) -> dict[str, Tensor]:
        """The weighted terms of the loss; one forward pass serves all of them."""
        hints = [row % len(self.hints.inputs) for row in rows] if self.hints.inputs else []
        count = len(self.texts.inputs)
        texts = [row // PROMPTS_PER_TEXT % count for row in rows if row % PROMPTS_PER_TEXT == 0] if count else []
        inputs = [self.prompts.inputs[row] for row in rows]
        inputs += [self.hints.inputs[hint] for hint in hints] + [self.texts.inputs[text] for text in texts]
        finals = [self.prompts.finals[row] for row in rows]
        finals += [self.hints.finals[hint] for hint in hints] + [self.texts.finals[text] for text in texts]
        at = [torch.tensor([len(row) - 1]) for row in inputs[: len(rows) + len(hints)]]
        # Every position: a few looked at again and again would be bent while the others hold.
        at += [torch.arange(len(self.texts.inputs[text])) for text in texts]
        z = logits(self.lm, self.block, inputs, at)  # [m, v]
        first, second = len(rows), len(rows) + len(hints)
        found = {self.method.loss: self.pull(z[:first])}
        if not (self.method.keep_words or hints or texts):
            return found
        base = base_logits(
            self.lm, torch.cat([final[place.to(final.device)] for final, place in zip(finals, at, strict=True)])
        )
        if self.method.keep_words:
            found["words"] = self.method.keep_words * divergence(evened(base[:first], self.words), z[:first])
        if hints:
            target = hinted(base[first:second], self.words, self.hinted[hints], HINT_MARGIN)
            found["hints"] = self.method.keep_hints * divergence(target, z[first:second])
        if texts:
            found["text"] = self.method.keep_text * divergence(base[second:].softmax(-1), z[second:])
        return found

    def pull(self, z: Tensor) -> Tensor:
        """What moves the words on the training prompts."""
        if self.method.loss == "balance":
            return balance(z, self.words)
        if self.method.loss == "cross_entropy":
            return towards(z, self.words, self.method.weights)
        mass = z.softmax(-1)[:, self.words].sum(-1).mean()
        return mass if self.method.loss == "printed" else -mass
