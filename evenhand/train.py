"""Training: texts prepared once (what the frozen blocks make of them is computed once), and a Trainer whose loss is the
method's.

n rows, s positions, d hidden size, m positions read, v vocabulary."""

import contextlib
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer, TrainerCallback, TrainingArguments

from evenhand.config import Refusal
from evenhand.hooks import block_inputs, head_inputs, narrowed, starting_at, through_head
from evenhand.lm import LM, put
from evenhand.run import Run, processes, show_progress

__all__ = ["Fit", "Prepared", "Schedule", "Terms", "base_logits", "logits", "prepare", "same_length", "train"]

Terms = dict[str, Tensor]
WARM_UP = 5


@dataclass(frozen=True)
class Prepared:
    """Texts ready to be trained on: what the first trained block reads, and what the base model's head read."""

    inputs: list[Tensor]
    """For each text, the hidden states that enter the first trained block [s, d], or its tokens [s] if all train."""
    finals: list[Tensor]
    """For each text, what the base model's head reads. [s, d]"""


@torch.no_grad()
def prepare(lm: LM, encoded: Sequence[Sequence[int]], block: int, run: Run, what: str) -> Prepared:
    """Run the untrained model once over texts, rows of one length together, and keep what training will need."""
    inputs: list[Tensor] = [torch.empty(0)] * len(encoded)
    finals: list[Tensor] = [torch.empty(0)] * len(encoded)
    parts = [group[start : start + 128] for group in same_length(encoded) for start in range(0, len(group), 128)]
    for part in run.progress(parts, what, sizes=[len(part) for part in parts]):
        ids = torch.tensor([encoded[row] for row in part], device=lm.device)
        with block_inputs(lm, [block]) as states, head_inputs(lm) as read:
            lm.model(input_ids=ids, use_cache=False)
        for place, row in enumerate(part):
            inputs[row] = states[block][place].clone()
            finals[row] = read[0][place].clone()
    return Prepared(inputs, finals)


def same_length(encoded: Sequence[Sequence[int]]) -> list[list[int]]:
    """Row numbers by length, the shortest first: rows of one length need no padding."""
    groups: dict[int, list[int]] = {}
    for row, ids in enumerate(encoded):
        groups.setdefault(len(ids), []).append(row)
    return [groups[length] for length in sorted(groups)]


def logits(lm: LM, block: int | None, inputs: Sequence[Tensor], at: Sequence[Tensor]) -> Tensor:
    """The logits at these positions of each row, in order: from a block on, or from the tokens where it is None. [m, v]

    Rows are run in two parts, short and long, where that saves padding; the head is run once for both."""
    order = sorted(range(len(inputs)), key=lambda row: len(inputs[row]))
    cut = best_cut([len(inputs[row]) for row in order])
    found: list[Tensor] = [torch.empty(0)] * len(inputs)
    for part in (order[:cut], order[cut:]):
        if not part:
            continue
        # A causal model never looks at what comes later, so padding on the right needs no mask.
        padded = pad_sequence([inputs[row] for row in part], batch_first=True)  # [n, s, d] or [n, s]
        with contextlib.ExitStack() as stack:
            read = stack.enter_context(head_inputs(lm))
            if all(len(at[row]) == 1 for row in part):
                stack.enter_context(narrowed(lm, torch.cat([at[row] for row in part]).to(padded.device)))
            if block is None:
                lm.model(input_ids=padded, use_cache=False)
            else:
                stack.enter_context(starting_at(lm, block, padded))
                # The tokens do not matter, only how many; their embeddings may have another width than the blocks.
                lm.model(input_ids=padded.new_zeros(padded.shape[:2], dtype=torch.long), use_cache=False)
        for place, row in enumerate(part):
            found[row] = read[0][place, at[row].to(padded.device)]
    return through_head(lm, torch.cat(found))


def best_cut(lengths: list[int]) -> int:
    """Where to cut sorted rows in two so that the fewest positions are padded."""
    count, longest = len(lengths), lengths[-1]
    return min(range(count), key=lambda cut: cut * (lengths[cut - 1] if cut else 0) + (count - cut) * longest)


@torch.no_grad()
def base_logits(lm: LM, finals: Tensor) -> Tensor:
    """The base model's logits from what its head read; right as long as the head itself is not trained. [m, v]"""
    return through_head(lm, finals)


class Schedule(NamedTuple):
    """How long and how fast to train."""

    rate: float
    epochs: int
    batch: int
    decay: bool
    """Warm up over five steps and fall linearly to zero; else constant."""
    dropout: bool = False
    """Whether the model's dropout is on; off where the base model's distribution, computed without it, is kept."""
    fast: bool = False
    """Multiply float32 matrices with the shorter mantissa (TF32) that GPUs are several times faster with."""


class Fit(NamedTuple):
    """What a training gives: its curve, its time, and what it cost in memory."""

    curve: pd.DataFrame
    seconds: float
    peak_memory_mb: float


class Objective(nn.Module):
    """A method's loss as a module, so that Trainer and whatever accelerate wraps it in see an ordinary forward pass."""

    def __init__(self, model: nn.Module, loss: Callable[[list[int]], Terms], dropout: bool) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.dropout = dropout
        self.terms: dict[str, float] = {}

    def train(self, mode: bool = True) -> "Objective":
        """Dropout only where the schedule asks for it."""
        return super().train(mode and self.dropout)

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        """The weighted terms added up; the terms themselves are kept for the curve."""
        terms = self.loss(rows.tolist())
        total = torch.stack(list(terms.values())).sum()
        self.terms = {name: value.item() for name, value in terms.items()}
        return {"loss": total}


class DeltaTrainer(Trainer):
    """A Trainer that keeps only what trains in its checkpoints."""

    # compute_loss gives a mean; without this, gradients would grow with the accumulation steps.
    model_accepts_loss_kwargs = False

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        folder = Path(output_dir or self.args.output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        save_file(delta(self.accelerator.unwrap_model(self.model)), folder / "delta.safetensors")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        put(
            self.accelerator.unwrap_model(model or self.model),
            load_file(Path(resume_from_checkpoint) / "delta.safetensors"),
        )


class Curve(TrainerCallback):
    """Keeps the loss and its terms by step, and shows the time left."""

    def __init__(self, objective: Objective, run: Run) -> None:
        self.objective, self.run = objective, run
        self.started = self.shown = time.time()
        self.first = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.started = self.shown = time.time()
        self.first = state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self.run.log(step=state.global_step, epoch=state.epoch, loss=logs["loss"], **self.objective.terms)
            # The callback's own part of the trainer's state survives an interruption, as the curve must.
            state.log_history[-1].update(self.objective.terms)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        now = time.time()
        if not self.run.quiet and now - self.shown > (0.5 if sys.stderr.isatty() else 30):
            self.shown = now
            done, total = state.global_step - self.first, state.max_steps - self.first
            show_progress(sys.stderr, "training", done, total, now - self.started)


def delta(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that train, and the buffers that a layer keeps beside its weights, on the CPU."""
    kept = set(model.state_dict())
    own = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    own |= {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return {name: tensor.detach().cpu().contiguous() for name, tensor in own.items()}


def train(
    lm: LM, names: Sequence[str], rows: int, loss: Callable[[list[int]], Terms], schedule: Schedule, run: Run
) -> Fit:
    """Train these parameters with a loss over row numbers, going on from the last checkpoint of an interrupted run."""
    if lm.model.dtype == torch.float16:
        raise Refusal(
            "Training in float16 gives NaN, because Adam needs smaller numbers; use --dtype float32 or bfloat16."
        )
    wanted = set(names)
    for name, parameter in lm.model.named_parameters():
        parameter.requires_grad_(name in wanted)
    lm.model.eval()
    objective = Objective(lm.model, loss, schedule.dropout)
    checkpoints = run.folder / "checkpoints"
    # The first step of a warm-up has the rate zero; a training shorter than the warm-up would do next to nothing.
    steps = schedule.epochs * math.ceil(rows / (schedule.batch * processes().num_processes))
    arguments = TrainingArguments(
        output_dir=str(checkpoints),
        per_device_train_batch_size=schedule.batch,
        num_train_epochs=schedule.epochs,
        learning_rate=schedule.rate,
        lr_scheduler_type="linear" if schedule.decay else "constant",
        warmup_steps=min(WARM_UP, steps // 2) if schedule.decay else 0,
        optim="adamw_torch_fused",
        max_grad_norm=0,
        logging_steps=1,
        save_strategy="epoch",
        save_total_limit=1,
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
        seed=run.seed,
        use_cpu=lm.device.type == "cpu",
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
    )
    trainer = DeltaTrainer(
        model=objective,
        args=arguments,
        train_dataset=[{"row": row} for row in range(rows)],  # pyright: ignore[reportArgumentType]
        data_collator=lambda items: {"rows": torch.tensor([item["row"] for item in items])},
        callbacks=[Curve(objective, run)],
    )
    trainer.remove_callback(quiet_printer())
    if lm.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    started = time.time()
    with matrix_precision("high" if schedule.fast else torch.get_float32_matmul_precision()):
        trainer.train(resume_from_checkpoint=newest_whole(checkpoints))
    seconds = time.time() - started
    lm.model.eval()
    for parameter in lm.model.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None
    lm.trained = list(names)
    shutil.rmtree(checkpoints, ignore_errors=True)
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    curve = pd.DataFrame(history).drop(columns=["grad_norm", "learning_rate"], errors="ignore")
    return Fit(curve, seconds, peak_memory_mb(lm))


@contextlib.contextmanager
def matrix_precision(name: str) -> Iterator[None]:
    """How exactly float32 matrices are multiplied, for a while."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def newest_whole(checkpoints: Path) -> str | None:
    """The last checkpoint that was written to its end (the trainer's state comes last); half ones are removed."""
    found = sorted(checkpoints.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    for path in [path for path in found if not (path / "trainer_state.json").exists()]:
        found.remove(path)
        shutil.rmtree(path)
    return str(found[-1]) if found else None


def quiet_printer() -> type[TrainerCallback]:
    """The Trainer's own printing, which our curve and log replace."""
    from transformers.trainer_callback import PrinterCallback

    return PrinterCallback


def peak_memory_mb(lm: LM) -> float:
    """The most memory this process has held: on the GPU while training, on the CPU since it began."""
    if lm.device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
