"""Text classifiers with less regard to groups of people: fine-tuned plainly, with CrAWD, or against an adversary.

Body, pooling (first token of an encoder, last of a decoder) and schedule are the same for all three. A plain head reads
H_x; CrAWD's reads [H_x, H_cross]; an adversary guesses the group from H_x while the body learns to hide it.

n rows, s positions, d hidden size, m reference tokens."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd
import torch
from pydantic import Field, PositiveFloat, PositiveInt
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from evenhand.association import attributes_of
from evenhand.bundled import BUNDLED, bundled_folder
from evenhand.config import Refusal, options, values
from evenhand.data._base import checksum
from evenhand.data._rows import Labelled
from evenhand.environment import environment, fingerprint
from evenhand.hub import ask_hub
from evenhand.lm import LM, load_failure
from evenhand.methods._base import keep
from evenhand.methods._texts import padded
from evenhand.metrics._base import Metric
from evenhand.metrics._labels import Prediction, decode, known_labels
from evenhand.metrics.label_f1 import LabelF1
from evenhand.metrics.tpr_gap import TPRGap
from evenhand.modeling_crawd import CrawdConfig, CrawdForSequenceClassification, remember
from evenhand.page import build as build_page
from evenhand.run import Run, is_main, processes
from evenhand.scoring import check_numbers
from evenhand.stats import interval, resample
from evenhand.train import Schedule, Terms, train

__all__ = ["Classifying", "fit_classifier"]

NO_GROUP = -1
"""Stands for the group of a row about nobody, which teaches the adversary nothing."""


@options
class Classifying:
    """How a classifier is trained."""

    method: Literal["vanilla", "crawd", "adversarial"] = "vanilla"
    """A plain head, CrAWD's cross-attention before it, or gradient reversal against a guess at the group."""
    seed: int = 0
    """Draws the new layers, the order of the rows and the dropout."""
    epochs: PositiveInt = 3
    """How often every row is seen."""
    rate: PositiveFloat = 5e-5
    """Adam's learning rate for all parameters; it warms up over five steps and falls to zero."""
    batch: PositiveInt = 32
    """Rows a step (on each device)."""
    length: PositiveInt = 64
    """How many tokens of a text are read."""
    words: tuple[str, ...] = ("race",)
    """CrAWD's reference words: attributes (race, religion, gender, ...) or words of your own."""
    share: float = Field(0.4, ge=0, le=1)
    """The part of the attention weights that CrAWD decays (K)."""
    decay: float = Field(0.2, ge=0, le=1)
    """What is left of a decayed weight (lambda)."""
    scope: Literal["matrix", "row"] = "row"
    """Whether the largest weights are looked for in a text's whole matrix, or in each position's row."""
    alpha: float = Field(1.0, ge=0)
    """How much the body learns to hide the group from the adversary, against learning the label."""


class Lesson(NamedTuple):
    """What training reads: tokens, the number of each row's label and group, and CrAWD's reference tokens."""

    encoded: list[list[int]]
    labels: list[int]
    groups: list[int]
    reference: Tensor | None


class Classifier(LM):
    """A classifier where training asks for a language model: it looks at model, tokenizer and device alone."""

    def __post_init__(self) -> None:
        """A classifier has no block to be chosen and no head over a vocabulary."""


def fit_classifier(
    model: str,
    rows: list[Labelled],
    test: list[Labelled],
    out: Path,
    settings: Classifying | None = None,
    *,
    overwrite: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Fine-tune a model on labelled rows, predict the test rows and score them; `out` holds model/, predictions.jsonl,
    results.json and the page."""
    settings = settings or Classifying()
    check_rows(rows, test, settings)
    config = {"command": "classify", "model": model, "method": settings.method, "seed": settings.seed}
    config |= {"settings": values(settings), "rows": checksum(rows), "test": checksum(test)}
    with Run.open(out, config, overwrite=overwrite, quiet=quiet) as run:
        lm = trained(model, rows, settings, run)
        predictions = predict(lm, encode(lm, test, settings.length), run)
        about = {"name": model, "fingerprint": fingerprint(lm.model), "dtype": "float32"}
        run.save("environment.json", environment() | {"seed": settings.seed, "model": about})
        results = scored(test, predictions, run) | {"train": run.read("train.json")}
        run.save("results.json", results)
        if is_main():
            write(run.path("predictions.jsonl"), test, predictions)
            build_page(run.folder)
    return results


def check_rows(rows: list[Labelled], test: list[Labelled], settings: Classifying) -> None:
    """Refuse what cannot be learnt or measured."""
    if not test:
        raise Refusal("There are no test rows, so nothing could be said about the classifier; give some.")
    for row in [*rows, *test]:
        if len(row.labels) != 1:
            raise Refusal(f"Row {row.id} has {len(row.labels)} labels; a classifier is trained on rows with one.")
    if len(known_labels(rows)) < 2:
        raise Refusal(f"The rows to train on have {len(known_labels(rows))} label(s); choosing needs two, so add rows.")
    if settings.method == "adversarial" and len(groups_of(rows)) < 2:
        raise Refusal("The adversary tells two groups of people apart; give rows with a group, or another method.")


def groups_of(rows: Sequence[Labelled]) -> list[str]:
    """The groups that rows are about, in alphabetical order."""
    return sorted({row.group for row in rows} - {""})


def trained(name: str, rows: list[Labelled], settings: Classifying, run: Run) -> Classifier:
    """The classifier of this run: fitted now, or by the call that was interrupted."""
    if run.has("train.json"):
        model = AutoModelForSequenceClassification.from_pretrained(run.folder / "model").to(processes().device)
        return Classifier(model, AutoTokenizer.from_pretrained(run.folder / "model"), name)
    torch.manual_seed(settings.seed)
    lm = load(name, known_labels(rows), settings)
    lesson = learnt(lm, rows, settings)
    run.say(f"training {settings.method} on {len(rows)} rows with {len(known_labels(rows))} labels")
    with prepared(lm.model, len(groups_of(rows)), settings) as pooled:
        # BERT's pooler stands beside the road to the labels and has no gradient.
        names = [each for each, x in lm.model.named_parameters() if x.requires_grad and ".pooler." not in each]
        schedule = Schedule(settings.rate, settings.epochs, settings.batch, decay=True, dropout=True)
        fit = train(lm, names, len(rows), lambda chosen: terms(lm, lesson, chosen, pooled, settings), schedule, run)
    if lesson.reference is not None:
        remember(lm.model, lesson.reference)
    lm.trained = [each for each in names if not each.startswith("adversary.")]
    if is_main():
        lm.model.save_pretrained(run.path("model"))
        lm.tokenizer.save_pretrained(run.path("model"))
    keep(run, lm, fit)
    return lm


def load(name: str, labels: list[str], settings: Classifying) -> Classifier:
    """The body with CrAWD's layer and head on it; for the other methods the layer is cut off later."""
    source = str(bundled_folder(name)) if name in BUNDLED and not Path(name).is_dir() else name
    if not Path(source).is_dir():
        ask_hub()
    try:
        body = AutoModel.from_pretrained(source, dtype=torch.float32, use_safetensors=True)
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise Refusal(load_failure(name, " ".join(str(error).split()))) from error
    if body.config.is_encoder_decoder:
        raise Refusal(f"{name} is an encoder-decoder; a classifier needs an encoder or a decoder.")
    references = attributes_of(settings.words).values() if settings.method == "crawd" else ()
    config = CrawdConfig(
        body.config,
        share=settings.share,
        decay=settings.decay,
        scope=settings.scope,
        words=[word for words in references for word in words],
        id2label=dict(enumerate(labels)),
        label2id={label: place for place, label in enumerate(labels)},
    )
    model = CrawdForSequenceClassification.from_base(body, config)
    return Classifier(model.to(processes().device), tokenizer, name)


def encode(lm: LM, rows: Sequence[Labelled], length: int) -> list[list[int]]:
    """The first tokens of each text."""
    return lm.tokenizer([row.text for row in rows], truncation=True, max_length=length).input_ids


def learnt(lm: LM, rows: list[Labelled], settings: Classifying) -> Lesson:
    """The rows as numbers."""
    labels, groups = known_labels(rows), groups_of(rows)
    reference = lm.tokenizer(" ".join(lm.model.config.words)).input_ids
    return Lesson(
        encode(lm, rows, settings.length),
        [labels.index(row.labels[0]) for row in rows],
        [groups.index(row.group) if row.group else NO_GROUP for row in rows],
        torch.tensor(reference, device=lm.device) if settings.method == "crawd" else None,
    )


@contextlib.contextmanager
def prepared(model: Any, groups: int, settings: Classifying) -> Iterator[list[Tensor]]:
    """Inside, the model is the method's: the head reads H_x alone where there is no CrAWD, and the adversary is there.
    Gives a list that holds the pooled H_x [n, d] of the latest pass."""
    width = model.classifier.in_features // 2
    pooled: list[Tensor] = []

    def look(_: nn.Module, read: tuple[Tensor]) -> None:
        pooled[:] = [read[0][:, :width]]

    handles = [model.dropout.register_forward_pre_hook(look)]
    if settings.method != "crawd":
        # [H_x, 0] is a plain linear head on H_x: same class, same pooling, nothing of the layer left.
        model.block.requires_grad_(False)
        kept = torch.arange(2 * width, device=model.device) < width
        with torch.no_grad():
            model.classifier.weight.mul_(kept)
        handles.append(model.classifier.weight.register_hook(lambda gradient: gradient * kept))
    if settings.method == "adversarial":
        model.adversary = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, groups)).to(model.device)
    try:
        yield pooled
    finally:
        for handle in handles:
            handle.remove()
        if settings.method == "adversarial":
            del model.adversary


def terms(lm: LM, lesson: Lesson, chosen: list[int], pooled: list[Tensor], settings: Classifying) -> Terms:
    """Cross-entropy of the labels, with b riding along for CrAWD; and the adversary's, whose gradient is turned round
    and taken alpha times before it reaches the body (L_task - alpha L_adversary)."""
    batch = padded([lesson.encoded[row] for row in chosen], lm.device)
    labels = torch.tensor([lesson.labels[row] for row in chosen], device=lm.device)
    found = lm.model(batch.ids, batch.mask.long(), labels=labels, reference_ids=lesson.reference)
    losses = {"cross_entropy": found.loss}
    if settings.method == "adversarial":
        groups = torch.tensor([lesson.groups[row] for row in chosen], device=lm.device)
        states = (1 + settings.alpha) * pooled[0].detach() - settings.alpha * pooled[0]
        known = groups != NO_GROUP
        if known.any():
            adversary: Any = lm.model.adversary
            losses["adversary"] = cross_entropy(adversary(states[known]), groups[known])
    return losses


@torch.inference_mode()
def predict(lm: LM, encoded: list[list[int]], run: Run, batch: int = 64) -> list[Prediction]:
    """The likeliest label of each row and every label's probability; rows of about one length are read together."""
    model: Any = lm.model.eval()
    labels = [model.config.id2label[place] for place in range(model.config.num_labels)]
    order = sorted(range(len(encoded)), key=lambda row: len(encoded[row]))
    parts = [order[start : start + batch] for start in range(0, len(order), batch)]
    found: dict[int, Prediction] = {}
    for part in run.progress(parts, "classifying", sizes=[len(part) for part in parts]):
        read = padded([encoded[row] for row in part], lm.device)
        logits = model(read.ids, read.mask.long()).logits.float().cpu().numpy()
        check_numbers(logits, "classifying")
        found |= {row: decode(labels, scores, several=False) for row, scores in zip(part, logits, strict=True)}
    return [found[row] for row in range(len(encoded))]


def scored(test: list[Labelled], predictions: list[Prediction], run: Run) -> dict[str, Any]:
    """Both metrics with their tables; where rows have no groups the gap is named with the reason."""
    results: dict[str, Any] = {"scores": {}, "failed": {}}
    for name, metric in {"label_f1": LabelF1(), "tpr_gap": TPRGap()}.items():
        try:
            table = metric.from_predictions(test, [each.labels for each in predictions])
        except Refusal as problem:
            results["failed"][name] = str(problem)
            run.say(f"{name} could not be measured: {problem}")
            continue
        run.save(f"tables/{name}.parquet", table)
        results["scores"][name] = metric.report(table) | {"data": {"name": "test rows", "checksum": checksum(test)}}
        if name == "label_f1":
            results |= {extra: with_interval(metric, table, extra) for extra in ("accuracy", "macro_f1")}
    return results


def with_interval(metric: Metric, table: pd.DataFrame, name: str) -> dict[str, float]:
    """One of the numbers that a metric reports beside its value, with the interval of the same draws."""
    units = metric.units(table)
    totals = dict(zip(map(str, units.columns), resample(units.to_numpy(float)).T, strict=True))
    low, high = interval(metric.extras(totals, totals.pop("rows"))[name])
    return {"value": metric.beside(table)[name], "low": low, "high": high}


def write(path: Path, rows: Sequence[Labelled], predictions: Sequence[Prediction]) -> None:
    """One line a row, as `evenhand score label_f1` and `evenhand score tpr_gap` read them."""
    with open(path, "w", encoding="utf-8") as file:
        for row, each in zip(rows, predictions, strict=True):
            line = {"id": row.id, "labels": list(each.labels), "probabilities": each.shares}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
