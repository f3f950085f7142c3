"""A model with added layers taught to one of its base's own architecture: for where no foreign code may run."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from evenhand import catalog
from evenhand.config import Refusal, build, read_yaml
from evenhand.exporting import model_card, refuse_target
from evenhand.lm import LM
from evenhand.lora import Adapter, add_adapters, fold_adapters
from evenhand.losses import divergence
from evenhand.methods._texts import next_tokens, padded
from evenhand.plan import Job, dataset_of
from evenhand.run import Run
from evenhand.steps import compare, measure
from evenhand.train import Schedule, Terms, train

__all__ = ["distil"]

SCHEDULE = Schedule(rate=3e-4, epochs=2, batch=64, decay=True)
ADAPTER = Adapter(rank=16, alpha=32, dropout=0.0)
HELD_OUT = 200


def distil(folder: Path, target: Path, *, overwrite: bool = False, device: str | None = None) -> dict[str, Any]:
    """Teach a run's model to its base model with low-rank adapters, fold them in, and write beside the weights how far
    the two agree and what both measure."""
    refuse_target(folder, target, overwrite)
    saved = json.loads((folder / "method.json").read_text(encoding="utf-8"))
    job: Job = build(Job, read_yaml(str(folder / "config.yaml")), "the run's config")
    part = target.with_name(target.name + ".exporting")
    teacher, student = LM.load(str(folder), device=device), LM.load(saved["base"], device=device)
    if teacher.kind != "causal":
        raise Refusal(f"Only a causal model can be taught to its base; write {folder} as it is with --keep-layers.")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    run = Run(part, seed=job.seed)
    texts = {split: texts_of(job, split) for split in ("train", "test")}
    learn(teacher, student, texts["train"], run)
    fold_adapters(student.model)
    agreement = agreed(teacher, student, texts["test"][:HELD_OUT])
    student.model.save_pretrained(part)
    student.tokenizer.save_pretrained(part)
    again = Job(
        command="measure",
        model=str(part),
        metrics=job.metrics,
        settings=without_method(job),
        limit=job.limit,
        device=device,
    )
    (part / "log.jsonl").unlink(missing_ok=True)
    measured = part.with_name(part.name + ".measured")
    shutil.rmtree(measured, ignore_errors=True)
    measure(again, measured)
    difference = compare(folder, measured)
    shutil.rmtree(measured)
    report = {"agreement": agreement, "run": difference["before"], "exported": difference["after"]}
    (part / "distilled.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
    (part / "README.md").write_text(model_card(folder) + card(report), encoding="utf-8")
    if target.exists():
        shutil.rmtree(target)
    part.rename(target)
    return report


def texts_of(job: Job, split: str) -> list[str]:
    """The texts a run was trained on, or those held out from it."""
    source = dataset_of(job.data or catalog.load("methods", job.method).data, "Text", job.settings.get("data", {}))
    limit = job.train_limit or job.limit if split == "train" else None
    return [row.text for row in source.take(split, limit)]  # pyright: ignore[reportAttributeAccessIssue]


def without_method(job: Job) -> dict[str, dict[str, Any]]:
    """The settings that say how to measure."""
    return {part: chosen for part, chosen in job.settings.items() if part != "method"}


def learn(teacher: LM, student: LM, texts: list[str], run: Run) -> None:
    """The student is to expect what the teacher expects, at every position of every text."""
    encoded = [ids for ids in (ids[:64] for ids in student.encode(texts)) if len(ids) > 1]
    if not encoded:
        raise Refusal("No text has two tokens, so there is nothing to teach; give longer texts.")
    torch.manual_seed(run.seed)
    names = add_adapters(student.model, ADAPTER)

    def terms(chosen: list[int]) -> Terms:
        batch = padded([encoded[row] for row in chosen], student.device)
        with torch.no_grad():
            wanted = next_tokens(teacher, batch).softmax(-1)
        return {"divergence": divergence(wanted, next_tokens(student, batch))}

    train(student, names, len(encoded), terms, SCHEDULE, run)


@torch.no_grad()
def agreed(teacher: LM, student: LM, texts: list[str]) -> dict[str, float]:
    """On texts (held-out ones where the dataset has some): the mean divergence, how often both put the same token
    first, and the mean difference of the logits after taking each position's mean away."""
    totals = {"divergence": 0.0, "same_first": 0.0, "logit_difference": 0.0}
    count = 0
    for ids in (ids[:64] for ids in student.encode(texts)):
        if len(ids) < 2:
            continue
        batch = padded([ids], student.device)
        one, other = (next_tokens(lm, batch) for lm in (teacher, student))  # [m, v]
        here = len(one)
        centred = [z - z.mean(-1, keepdim=True) for z in (one, other)]
        totals["divergence"] += here * float(divergence(one.softmax(-1), other))
        totals["same_first"] += float((one.argmax(-1) == other.argmax(-1)).sum())
        totals["logit_difference"] += here * float((centred[0] - centred[1]).abs().mean())
        count += here
    return {name: value / max(count, 1) for name, value in totals.items()} | {"positions": count}


def card(report: dict[str, Any]) -> str:
    """What the model card says about the two models."""
    agreement = report["agreement"]
    lines = [
        "## How this model was made",
        "",
        "The debiased model has layers that its base does not have. This one has the base's own architecture and was "
        "taught to expect what the debiased model expects.",
        f"On {agreement['positions']} positions of its texts both put the same token first in "
        f"{100 * agreement['same_first']:.1f} %; mean divergence {agreement['divergence']:.4f} nats, mean difference "
        f"of the logits {agreement['logit_difference']:.3f}.",
        "",
        "| metric | debiased model | this model |",
        "|---|---|---|",
    ]
    lines += [
        f"| {name} | {report['run'][name]['value']:.4g} | {report['exported'][name]['value']:.4g} |"
        for name in report["run"]
    ]
    return "\n".join(["", *lines, ""])
