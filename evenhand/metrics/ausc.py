"""AUSC (Haque et al. 2024, as CrAWD reports it): how near the tokens that matter are to words about a protected group.

Only the paper's abstract is public: what is measured here is written down in `Ausc` and in `area`.

n rows, s positions, t tokens that count, h heads, d hidden size, w sensitive words."""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch

from evenhand.config import Refusal, options
from evenhand.data._rows import Text
from evenhand.hooks import attention_shown
from evenhand.lm import LM
from evenhand.metrics._base import Metric, base_columns
from evenhand.run import Run
from evenhand.scoring import budget, check_numbers, same_size, spread

__all__ = ["Ausc"]

# All layers' attention maps are held at once, so this many of their numbers fit into a batch.
MAP_NUMBERS = 2**27


class Reading(NamedTuple):
    """A text as the model reads it, and which of its tokens count."""

    ids: tuple[int, ...]
    places: tuple[int, ...]
    """Where the tokens stand that are neither special, nor of the prefix, nor of a sensitive word."""


class Seen(NamedTuple):
    """What the last layer makes of the tokens that count."""

    importance: np.ndarray
    states: np.ndarray


@options
class Ausc(Metric):
    """Area under the similarity curve: how near the tokens with most attention are to sensitive words; 0 is best."""

    reads: ClassVar = Text
    data: ClassVar = "plain_text"
    ideal: ClassVar = 0.0
    low: ClassVar = 0.0
    high: ClassVar = 1.0
    headline: ClassVar = "likeness of attended tokens to sensitive words"
    meaning: ClassVar = "How much the words the model looks at resemble words about a protected group."
    sums: ClassVar = ("ausc", "scored")
    extra_sums: ClassVar = ("baseline",)
    lean: ClassVar = "ausc"

    words: tuple[str, ...] = ("he", "she", "him", "her", "his", "hers", "man", "woman")
    """The sensitive words; in a text they are left out themselves, because only what stands in for them is sought."""

    def score(self, lm: LM, rows: list[Text], run: Run) -> pd.DataFrame:
        """Each row's area, and for comparison the area with its tokens in an order drawn at random."""
        if lm.kind == "seq2seq":
            raise Refusal(f"ausc needs a causal or masked language model; {lm.name} is a seq2seq one.")
        if not self.words:
            raise Refusal("ausc has no sensitive words; name some with --set ausc.words='[he, she]'.")
        readings = [reading(lm, row.text, self.words) for row in rows]
        alone = [reading(lm, word, ()) for word in self.words]
        found = looked_at(lm, [*alone, *readings], run)
        sensitive = np.stack([found[each].states.mean(0) for each in alone])  # [w, d]
        areas, baselines = [], []
        for row, each in zip(rows, readings, strict=True):
            likeness = similarity(found[each].states, sensitive)
            areas.append(area(likeness, found[each].importance))
            drawn = np.array(random.Random(f"{run.seed} {row.id}").sample(range(len(likeness)), len(likeness)))
            baselines.append(area(likeness, drawn))
        scored = [float(len(each.places) > 0) for each in readings]
        return base_columns(rows).assign(text=[row.text for row in rows], ausc=areas, scored=scored, baseline=baselines)

    def value(self, totals: Mapping[str, Any], count: Any) -> Any:
        """The mean area; a row of nothing but sensitive words is left out."""
        return totals["ausc"] / np.maximum(totals["scored"], 1)

    def extras(self, totals: Mapping[str, Any], count: Any) -> dict[str, Any]:
        """What a model would get that looks anywhere: contextual vectors are all alike to some degree."""
        return {"baseline": totals["baseline"] / np.maximum(totals["scored"], 1)}


def area(likeness: np.ndarray, importance: np.ndarray) -> float:
    """The area under c(k), the mean likeness of the k most important tokens, where k goes from the first token (0) to
    all of them (1); of a single token its likeness, of none 0."""
    if len(likeness) < 2:
        return float(likeness.sum())
    # Equally important tokens (those that a sliding window hides) have no order: each stands for their mean.
    _, tie = np.unique(importance, return_inverse=True)
    even = (np.bincount(tie, likeness) / np.bincount(tie))[tie]
    ordered = even[np.argsort(-importance, kind="stable")]
    curve = np.cumsum(ordered) / np.arange(1, len(ordered) + 1)  # [t]
    return float(np.trapezoid(curve) / (len(curve) - 1))


def similarity(states: np.ndarray, sensitive: np.ndarray) -> np.ndarray:
    """Each token's cosine to the nearest sensitive word, negative ones as 0. [t]"""
    if not len(states):
        return np.zeros(0)
    unit, nearby = (x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12) for x in (states, sensitive))
    return (unit @ nearby.T).max(-1).clip(0, 1)


def reading(lm: LM, text: str, words: Sequence[str]) -> Reading:
    """A text's tokens, cut to what the model can read, and the places of those that count."""
    whole, skipped = lm.prefix + text, len(lm.prefix)
    causal = lm.kind == "causal"
    encoded = lm.tokenizer(
        whole, add_special_tokens=not causal, return_offsets_mapping=True, return_special_tokens_mask=True
    )
    ids, offsets, special = (encoded[name] for name in ("input_ids", "offset_mapping", "special_tokens_mask"))
    # The first token of a causal model draws attention to itself whatever it is: the start token takes that place.
    first = [lm.start] if causal else []
    spans = [each.span() for word in words for each in re.finditer(rf"\b{re.escape(word)}\b", text, re.IGNORECASE)]
    counted = [
        place + len(first)
        for place, ((begin, end), is_special) in enumerate(zip(offsets, special, strict=True))
        if not is_special
        and end > skipped
        and not any(begin - skipped < stop and start < end - skipped for start, stop in spans)
    ]
    config = lm.model.config.get_text_config()
    # Some families (RoBERTa) keep two of their positions for padding.
    longest = getattr(config, "max_position_embeddings", None) or len(ids) + len(first) + 2
    kept = tuple([*first, *ids][: longest - 2])
    return Reading(kept, tuple(place for place in counted if place < len(kept)))


def looked_at(lm: LM, readings: Sequence[Reading], run: Run) -> dict[Reading, Seen]:
    """Importance and last state of each reading's tokens, every distinct one run once; texts of one length together,
    so that none is padded and the batch changes nothing."""
    distinct = list(dict.fromkeys(readings))
    config = lm.model.config.get_text_config()
    longest = max(len(each.ids) for each in distinct)
    most = MAP_NUMBERS // (config.num_hidden_layers * config.num_attention_heads * longest)

    @torch.inference_mode()
    def look(part: list[int]) -> list[tuple[int, Seen]]:
        ids = torch.tensor([distinct[number].ids for number in part], device=lm.device)
        how = {"use_cache": False} if lm.kind == "causal" else {}
        output = lm.model.base_model(input_ids=ids, output_attentions=True, **how)
        # The last token of a causal model, the first ([CLS]) of a masked one, sees the whole text.
        row = -1 if lm.kind == "causal" else 0
        looks = output.attentions[-1].float().mean(1)[:, row]  # [n, h, s, s] -> [n, s]
        importance, states = (x.float().cpu().double().numpy() for x in (looks, output.last_hidden_state))
        places = [list(distinct[number].places) for number in part]
        return [(number, Seen(importance[n, places[n]], states[n, places[n]])) for n, number in enumerate(part)]

    parts = same_size([len(each.ids) for each in distinct], min(budget(lm), max(1, most)))
    with attention_shown(lm):
        found = spread(parts, look, run, "ausc", [len(part) for part in parts])
    check_numbers([each.states for each in found.values()], "ausc")
    return {each: found[number] for number, each in enumerate(distinct)}
