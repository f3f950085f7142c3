"""From a run to a model: the small saved result, and an ordinary transformers folder that is proven equal."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from evenhand.config import Refusal
from evenhand.crawd_layer import CrawdHead
from evenhand.lm import LM
from evenhand.methods._texts import batched
from evenhand.modeling_crawd import CrawdForCausalLM, CrawdForSeq2SeqLM
from evenhand.run import Run, is_finished, is_main

__all__ = ["adds_layers", "export", "model_card", "refuse_target", "save_method"]

PROBES = (
    "The nurse smiled because",
    "Water boils at a lower temperature on a mountain.",
    "She asked him whether he had",
)
TOLERANCE = 1e-4


def save_method(run: Run, lm: LM, base: str, name: str, settings: dict[str, Any], state: dict[str, Any]) -> None:
    """Write what trained, then the file that says so: a run with method.json is whole."""
    if lm.trained and is_main():
        own = dict(lm.model.named_parameters()) | dict(lm.model.named_buffers())
        beside = run.path("delta.safetensors.tmp")
        save_file({key: own[key].detach().cpu().contiguous() for key in lm.trained}, beside)
        os.replace(beside, run.path("delta.safetensors"))
    run.save("method.json", {"name": name, "base": base, "options": settings, "state": state, "trained": lm.trained})


def export(folder: Path, target: Path, *, overwrite: bool = False, device: str | None = None) -> float:
    """Write a run's model as a transformers folder and give the largest difference of its logits to the run's."""
    refuse_target(folder, target, overwrite)
    lm = LM.load(str(folder), device=device)
    if lm.prefix:
        raise Refusal(f"{folder} changes no weights, only what stands before a text; there is no model to export.")
    # Not `.part`: an unfinished run may have that name.
    part = target.with_name(target.name + ".exporting")
    shutil.rmtree(part, ignore_errors=True)
    # A model with CrAWD's layer takes the file that describes it along.
    wrapper = CrawdForSeq2SeqLM if lm.kind == "seq2seq" else CrawdForCausalLM
    (wrapper.around(lm.model) if isinstance(lm.head, CrawdHead) else lm.model).save_pretrained(part)
    lm.tokenizer.save_pretrained(part)
    (part / "README.md").write_text(model_card(folder), encoding="utf-8")
    difference = largest_difference(lm, LM.load(str(part), device=device))
    if difference > TOLERANCE:
        raise Refusal(
            f"The exported model differs from the run's by {difference:.2g} in its logits; it is left in {part}."
        )
    if target.exists():
        shutil.rmtree(target)
    part.rename(target)
    return difference


def refuse_target(folder: Path, target: Path, overwrite: bool) -> None:
    """Only a finished debias run can be exported, and nothing is overwritten unasked."""
    if not is_finished(folder) or not (folder / "method.json").exists():
        raise Refusal(f"{folder} is not a finished debias run; only those can be exported.")
    if target.exists() and not overwrite:
        raise Refusal(f"{target} exists already; choose another folder, or add --overwrite to replace it.")


def adds_layers(folder: Path) -> bool:
    """Whether a run's model has layers that its base does not have."""
    saved = json.loads((folder / "method.json").read_text(encoding="utf-8"))
    return saved["options"].get("decays") == "attention"


@torch.inference_mode()
def largest_difference(one: LM, other: LM) -> float:
    """The largest difference between two models' logits on a few texts."""
    worst = 0.0
    for ids in one.encode(PROBES):
        answers = [every_logit(lm, ids).to(one.device) for lm in (one, other)]
        worst = max(worst, float((answers[0] - answers[1]).abs().max()))
    return worst


def every_logit(lm: LM, ids: list[int]) -> Tensor:
    """The logits at every position of a text; an encoder-decoder reads its first half and writes the second. [s, v]"""
    batch = batched(lm, [ids])
    if batch.source is None:
        return lm.model(input_ids=batch.ids).logits[0]
    return lm.model(input_ids=batch.source.ids, decoder_input_ids=batch.ids).logits[0]


def model_card(folder: Path) -> str:
    """A model card with the measured numbers, readable by people and by the hub."""
    saved = json.loads((folder / "method.json").read_text(encoding="utf-8"))
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    lines = [
        "---",
        "library_name: transformers",
        f"base_model: {json.dumps(saved['base'])}",
        "tags: [evenhand, debiased]",
        "model-index:",
        f"- name: {json.dumps(folder.name)}",
        "  results:",
    ]
    for name, score in results["after"].items():
        lines += [
            "  - task: {type: text-generation}",
            f"    dataset: {{name: {json.dumps(score['data']['name'])}, type: {json.dumps(score['data']['name'])}}}",
            f"    metrics: [{{name: {json.dumps(name)}, type: {json.dumps(name)}, value: {score['value']:.6g}}}]",
        ]
    lines += [
        "---",
        "",
        f"# {folder.name}",
        "",
        f"{saved['base']}, debiased with {saved['name']} by evenhand.",
        "",
        "## Bias, measured",
        "",
        "| metric | ideal | before | after | change (95 %) | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for name, old in results["before"].items():
        new, verdict = results["after"][name], results["verdicts"][name]
        lines.append(
            f"| {name} ({new['headline']}) | {new['ideal']:g} | {old['value']:.4g} | {new['value']:.4g} | "
            f"{verdict['delta']:+.4g} [{verdict['low']:+.4g}, {verdict['high']:+.4g}] | {verdict['verdict']} |"
        )
    lines += [
        "",
        f"Trained {results['train']['trainable']:,} of {results['train']['total']:,} parameters.",
        "The prompts measured name professions in English; nothing is claimed about other kinds of bias or languages.",
        "",
        f"Options: `{json.dumps(saved['options'])}`",
        "",
    ]
    return "\n".join(lines)
