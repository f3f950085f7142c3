"""Fine-tuning on texts with low-rank adapters: what CrAWD and its baselines share, so that only their losses differ.

n rows, s positions, m positions whose next token counts, d hidden size, v vocabulary."""

from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn.functional import cross_entropy

from evenhand.config import Refusal, options
from evenhand.crawd_layer import CrawdHead
from evenhand.data._rows import Text
from evenhand.hooks import head_inputs, through_head
from evenhand.lm import LM
from evenhand.lora import Adapter, add_adapters, merge_adapters
from evenhand.methods._base import Method, keep
from evenhand.run import Run
from evenhand.train import Schedule, Terms, train

__all__ = ["Batch", "Lesson", "TextMethod", "batched", "next_tokens", "padded"]


class Batch(NamedTuple):
    """Rows padded on the right: a causal model never looks there, so the mask only says what counts."""

    ids: Tensor
    mask: Tensor
    source: "Batch | None" = None
    """What an encoder reads: the first half of each text. The decoder is then taught the second half."""

    @property
    def targets(self) -> Tensor:
        """The tokens to be predicted, in order. [m]"""
        return self.ids[:, 1:][self.mask[:, 1:]]

    def read(self, states: Tensor) -> Tensor:
        """Of something said at every position [n, s, ...], what stands before each target. [m, ...]"""
        return states[:, :-1][self.mask[:, 1:]]


def next_tokens(lm: LM, batch: Batch) -> Tensor:
    """The logits of every next token; the head works on the positions that count. [m, v]"""
    if batch.source is not None:
        source = {"input_ids": batch.source.ids, "attention_mask": batch.source.mask}
        return batch.read(lm.model(**source, decoder_input_ids=batch.ids).logits).float()
    with head_inputs(lm) as read:
        lm.model(input_ids=batch.ids, use_cache=False)
    return through_head(lm, batch.read(read[0]))


class Lesson(Protocol):
    """What a batch teaches."""

    def terms(self, batch: Batch) -> Terms:
        """The terms of the loss."""
        ...


class Plain(NamedTuple):
    """The lesson of a method that needs no more than the model and the batch."""

    method: "TextMethod"
    lm: LM

    def terms(self, batch: Batch) -> Terms:
        """The method's own."""
        return self.method.terms(self.lm, batch)


@options
class TextMethod(Method):
    """Something that fine-tunes a model on texts."""

    reads: ClassVar = Text
    data: ClassVar = "biographies"
    kinds: ClassVar[tuple[str, ...]] = ("causal",)
    """The kinds of model it can train."""

    rank: PositiveInt = 16
    """The adapters' rank (r)."""
    alpha: PositiveInt = 32
    """The adapters' scale: their product counts alpha / rank."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """How much of an adapter's input is dropped while training."""
    rate: float = 2e-4
    """Adam's learning rate; it warms up over five steps and falls to zero."""
    epochs: PositiveInt = 2
    """How often every text is seen."""
    batch: PositiveInt = 32
    """Texts a step (on each device)."""
    length: PositiveInt = 32
    """How many tokens of a text are read (n)."""

    def attach(self, lm: LM, state: dict[str, Any]) -> None:
        """Adapters on every projection."""
        add_adapters(lm.model, Adapter(self.rank, self.alpha, self.dropout))

    def fit(self, lm: LM, rows: list[Text], run: Run) -> dict[str, Any]:
        """Put the adapters in, train them on the texts, fold them in."""
        self.check(lm)
        texts = self.texts(rows, run)
        encoded = [ids[: self.length] for ids in lm.encode(texts)]
        encoded = [ids for ids in encoded if len(ids) > 1]
        if not encoded:
            raise Refusal("No text has two tokens, so there is no next token to learn; give longer texts.")
        state = self.prepare(lm, encoded, run)
        torch.manual_seed(run.seed)
        self.attach(lm, state)

        lesson = self.lesson(lm, encoded, state, run)

        def terms(chosen: list[int]) -> Terms:
            return lesson.terms(batched(lm, [encoded[row] for row in chosen]))

        names = [name for name, _ in lm.model.named_parameters() if self.trains(name)]
        schedule = Schedule(self.rate, self.epochs, self.batch, decay=True, dropout=True, fast=True)
        keep(run, lm, train(lm, names, len(encoded), terms, schedule, run))
        merge_adapters(lm.model)
        self.finish(lm, lesson, run)
        return state

    def check(self, lm: LM) -> None:
        """Refuse a model that cannot be trained this way."""
        if lm.kind not in self.kinds:
            raise Refusal(
                f"{type(self).__name__} needs a {' or '.join(self.kinds)} language model; {lm.name} is a {lm.kind} one."
            )
        if isinstance(lm.head, CrawdHead):
            raise Refusal(
                f"{lm.name} has CrAWD's layer already; make an ordinary model of it first (evenhand export RUN FOLDER) "
                "and fine-tune that."
            )
        longest = getattr(lm.model.config.get_text_config(), "max_position_embeddings", None) or self.length
        if not 1 < self.length <= longest:
            raise Refusal(f"{lm.name} reads 2 to {longest} tokens; choose --set method.length between.")

    def trains(self, name: str) -> bool:
        """Whether a parameter is trained: the adapters are."""
        return ".lora_" in name

    def texts(self, rows: list[Text], run: Run) -> list[str]:
        """The texts to train on."""
        return [row.text for row in rows]

    def prepare(self, lm: LM, encoded: list[list[int]], run: Run) -> dict[str, Any]:
        """What is found out before training; becomes the saved state."""
        return {}

    def lesson(self, lm: LM, encoded: list[list[int]], state: dict[str, Any], run: Run) -> Lesson:
        """What a batch teaches; overridden where something has to be found out once, with the adapters in place."""
        return Plain(self, lm)

    def finish(self, lm: LM, lesson: Any, run: Run) -> None:
        """What is left to do with the trained model."""

    def terms(self, lm: LM, batch: Batch) -> Terms:
        """The terms of the loss on a batch."""
        return {"cross_entropy": cross_entropy(next_tokens(lm, batch), batch.targets)}


def batched(lm: LM, rows: list[list[int]]) -> Batch:
    """A batch as the model needs it: an encoder-decoder reads the first half of each text and writes the second."""
    if lm.kind != "seq2seq":
        return padded(rows, lm.device)
    cuts = [max(1, len(row) // 2) for row in rows]
    source = padded([row[:cut] for row, cut in zip(rows, cuts, strict=True)], lm.device)
    start = lm.model.config.decoder_start_token_id
    return padded([[start, *row[cut:]] for row, cut in zip(rows, cuts, strict=True)], lm.device)._replace(source=source)


def padded(rows: list[list[int]], device: torch.device) -> Batch:
    """Rows of tokens side by side, cut to the longest."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return Batch(ids, torch.arange(longest, device=device) < lengths[:, None])
