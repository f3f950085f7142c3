"""CrAWD: fine-tune on biased text without learning the bias, by decaying what is associated with sensitive words.

The paper decays attention weights of a layer that is added before the output head (the preset `paper`; the layer itself
is in crawd_layer.py). The layers around it make up for the factor, so on a real model that does little. The default
decays the association itself: as long as a text has named no group, a token that is associated with one may not lead
the other next tokens. It needs no layer, so the result is a model of the ordinary architecture.

n rows, s positions, m positions whose next token counts, v vocabulary, k associated tokens, w reference words."""

import math
import re
from collections import Counter
from typing import Any, ClassVar, Literal, NamedTuple

import pandas as pd
import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from transformers.modeling_outputs import BaseModelOutput

from evenhand.association import Association, associated, attributes_of, looks_at, widened
from evenhand.attending import layer_looks
from evenhand.config import Refusal, options
from evenhand.crawd_layer import CrawdConfig, given, insert, riding
from evenhand.lm import LM
from evenhand.losses import uneven
from evenhand.methods._texts import Batch, TextMethod, next_tokens
from evenhand.run import Run
from evenhand.train import Terms

__all__ = ["CrAWD"]

PROMPTS = ("The doctor said that", "The nurse said that", "My friend works at the hospital and", "The engineer thinks")
LISTED = 300
NAMING = 0.5
"""From this strength on, a token names a group."""
# What the printed layer consists of; a part of T5 is called block too.
ADDED = re.compile(r"\.(fuse|wide)\.|\.block\.(attention|norm|feed_forward|last_norm|threshold|reference)")
LEAST = 1e-3
"""The smallest decay whose logarithm is taken."""


@options
class CrAWD(TextMethod):
    """Fine-tune on texts while everything associated with the sensitive words decays."""

    paper: ClassVar = "Fine-tuning LLMs with Cross-Attention-based Weight Decay for Bias Mitigation"
    citation: ClassVar = "Anonymous ACL submission, 2025"
    kinds: ClassVar = ("causal", "seq2seq")
    presets: ClassVar = {"paper": {"decays": "attention", "share": 0.4, "rate": 1e-5, "epochs": 5, "batch": 16}}

    words: tuple[str, ...] = ("gender",)
    """The sensitive sequence (b): attributes (gender, race, age, ...) or one word of your own for each group."""
    decays: Literal["association", "attention"] = "association"
    """What decays: the lead of associated tokens over other next tokens; or, as printed, the attention of an added
    layer to the sensitive sequence."""
    decay: float = Field(0.2, ge=0, le=1)
    """What is left (lambda): an associated token may have at most this times the probability of the likeliest other;
    as printed, what the chosen attention weights are multiplied by."""
    share: float = Field(1.0, ge=0, le=1)
    """The share of positions, or of attention weights, that decays: the most strongly associated (the top K %)."""
    context: int = Field(0, ge=0)
    """How many of the texts' commonest words are also read in sentences, to find what is associated only in context."""
    pull: float = Field(1.0, ge=0)
    """How strongly a lead that is too large is pulled back."""
    signal: float = Field(1.0, ge=0, le=1)
    """What is left of the learning signal of an associated token that is the first to name a group."""
    evenness: float = Field(0.0, ge=0)
    """How strongly the groups are made equally likely as long as a text has named none."""
    mass: float = Field(0.0, ge=0)
    """How strongly the probability of associated tokens is lowered everywhere."""
    scope: Literal["matrix", "row"] = "matrix"
    """Attention only: look for the largest weights in a text's whole matrix, or in each position's row."""
    output: Literal["fuse", "wide"] = "fuse"
    """Attention only: predict from both states through the old head, or through a second head beside it."""
    encoding: Literal["joined", "apart"] = "joined"
    """Attention only: read the sensitive words as one text, or each alone (which needs a second pass)."""
    heads: PositiveInt = 8
    """Attention only: heads of the added layer."""
    reference_length: PositiveInt = 32
    """Attention only: the longest sensitive sequence, in tokens (m)."""

    def attach(self, lm: LM, state: dict[str, Any]) -> None:
        """Adapters on every projection; as printed, also the layer before the output head."""
        if self.decays == "attention":
            self.insert_layer(lm, state)
        super().attach(lm, state)

    def insert_layer(self, lm: LM, state: dict[str, Any]) -> None:
        """The printed layer, which begins by changing nothing."""
        names = ("heads", "share", "decay", "scope", "output", "dropout")
        chosen = {name: getattr(self, name) for name in names}
        length = reference_size(state["reference"])
        if self.encoding == "joined":
            words = [lm.tokenizer.decode([token]).strip() for token in state["reference"][0]]
        else:
            words = [word for each in state["words"].values() for word in each]
        head = insert(
            lm.model, CrawdConfig(base_config=lm.model.config, words=words, reference_length=length, **chosen)
        )
        # What trains needs more digits than a half-precision model has.
        for name, module in head.named_children():
            if name != "head":
                module.float()

    def trains(self, name: str) -> bool:
        """The adapters and, as printed, what was added before the head."""
        return super().trains(name) or (self.decays == "attention" and ADDED.search(name) is not None)

    def __post_init__(self) -> None:
        """Refuse a sensitive sequence that says nothing."""
        attributes_of(self.words)

    def check(self, lm: LM) -> None:
        """The sensitive sequence must fit."""
        super().check(lm)
        size = reference_size(self.prepare(lm, [], None)["reference"])
        if self.decays == "attention" and size > self.reference_length:
            raise Refusal(
                f"The sensitive sequence has {size} tokens, more than {self.reference_length}; "
                f"shorten it, or add --set method.reference_length={size}."
            )

    def prepare(self, lm: LM, encoded: list[list[int]], run: Run | None) -> dict[str, Any]:
        """The sensitive words and, for the printed layer, the tokens it looks at."""
        words = attributes_of(self.words)
        flat = [word for each in words.values() for word in each]
        texts = [" ".join(flat)] if self.encoding == "joined" else flat
        rows = [lm.opened(ids) for ids in lm.encode(texts)]
        # A first token draws all attention to itself whatever it is, so a start token takes that place.
        started = lm.kind == "causal" and any(row[0] != lm.start for row in rows)
        return {"words": words, "reference": [[lm.start, *row] for row in rows] if started else rows}

    def lesson(self, lm: LM, encoded: list[list[int]], state: dict[str, Any], run: Run) -> "Printed | Decaying":
        """What a batch teaches: with the printed layer plain text, otherwise text without its associations."""
        if self.decays == "attention":
            return Printed(lm, self, state["reference"])
        found = [associated(lm, name, words) for name, words in state["words"].items()]
        if self.context and lm.kind == "causal":
            common = commonest_words(lm, encoded, self.context)
            found = [widened(lm, each, common, run) for each in found]
        run.save("association.parquet", pd.DataFrame([line for each in found for line in each.listed(lm, LISTED)]))
        said = set().union(*encoded)
        spoken = []
        for each in found:
            tokens = set(each.strength.nonzero()[:, 0].tolist())
            run.say(f"{len(tokens)} tokens are associated with {', '.join(each.words)} ({each.name})")
            if tokens & said:
                spoken.append(each)
            else:
                run.say(f"No text has one of them: as far as {each.name} goes, the texts are learnt plainly.")
        return Decaying(lm, self, spoken)

    def finish(self, lm: LM, lesson: Any, run: Run) -> None:
        """Keep what the printed layer needs, and where the model looked before and looks now."""
        if isinstance(lesson, Printed):
            lesson.remember()
            lm.trained += lesson.remembered
        looks = lesson.looks()
        if looks is not None:
            run.save("attention.parquet", looks)


class Watched(NamedTuple):
    """The tokens associated with one attribute."""

    tokens: Tensor
    """[k]"""
    ease: Tensor
    """What a weakly associated token is let off: the logarithm of its strength. [k]"""
    side: Tensor
    """The place of the reference word each belongs to. [k]"""
    naming: Tensor
    """Which tokens of the vocabulary name a group. [v]"""


class Decaying:
    """The loss of the default: cross-entropy, and associated tokens kept behind the others where none was named."""

    def __init__(self, lm: LM, method: CrAWD, found: list[Association]) -> None:
        self.lm, self.method = lm, method
        self.found = found
        self.watched = [watch(each) for each in found]
        # The adapters are in place and still change nothing.
        self.before = self.weights()
        none = torch.zeros(len(lm.head.weight), device=lm.device)
        self.strength = torch.stack([none, *(each.strength for each in found)]).amax(0)  # [v]
        self.all = self.strength.nonzero()[:, 0]

    def terms(self, batch: Batch) -> Terms:
        """The weighted terms; one forward pass serves all of them."""
        method = self.method
        logits = next_tokens(self.lm, batch)
        free = [batch.read(unnamed(batch, each.naming)) for each in self.watched]  # each [m]
        found = {"cross_entropy": self.learnt(logits, batch.targets, free)}
        if not len(self.all):
            return found
        if method.pull:
            found["lead"] = method.pull * self.leads(logits, free)
        if method.evenness:
            groups = [grouped(logits, each) for each in self.watched]
            found["evenness"] = (
                method.evenness * torch.stack([uneven(*pair) for pair in zip(groups, free, strict=True)]).sum()
            )
        if method.mass:
            ease = self.strength[self.all].log()
            mass = (logits[:, self.all] + ease).logsumexp(-1) - logits.logsumexp(-1)  # [m]
            found["mass"] = method.mass * mass.exp().mean()
        return found

    def weights(self) -> pd.DataFrame | None:
        """How much of a few prompts' next token goes to each reference word and what is associated with it; nothing
        for an encoder-decoder, whose next token depends on what else it reads."""
        if self.lm.kind == "seq2seq" or not self.found:
            return None
        return pd.concat([looks_at(self.lm, prompt, self.found) for prompt in PROMPTS], ignore_index=True)

    def looks(self) -> pd.DataFrame | None:
        """The same before training and now."""
        after = self.weights()
        if self.before is None or after is None:
            return None
        return self.before.rename(columns={"weight": "before"}).assign(after=after["weight"])

    def learnt(self, logits: Tensor, targets: Tensor, free: list[Tensor]) -> Tensor:
        """Cross-entropy; where the signal decays, that of a token which is the first to name a group of its
        attribute."""
        if self.method.signal == 1 or not free:
            return cross_entropy(logits, targets)
        first = [each.strength[targets] * here for each, here in zip(self.found, free, strict=True)]
        weight = 1 - (1 - self.method.signal) * torch.stack(first).amax(0)
        return (weight * cross_entropy(logits, targets, reduction="none")).mean()

    def leads(self, logits: Tensor, free: list[Tensor]) -> Tensor:
        """How far the likeliest associated token exceeds `decay` times the likeliest other one, in logarithms, at the
        positions where it does so most."""
        with torch.no_grad():
            best = logits.index_fill(1, self.all, -torch.inf).argmax(-1, keepdim=True)
        other = logits.gather(1, best)[:, 0]  # [m]
        allowed = other + math.log(max(self.method.decay, LEAST))
        excess = [
            ((logits[:, each.tokens] + each.ease).amax(-1) - allowed).clamp_min(0) * here
            for each, here in zip(self.watched, free, strict=True)
            if len(each.tokens)
        ]
        chosen = [x.topk(round(self.method.share * len(x))).values for x in excess] if self.method.share < 1 else excess
        return torch.stack([x.sum() for x in chosen]).sum() / len(logits)


class Printed:
    """The loss of the printed architecture: plain cross-entropy through the added layer, b riding in the batch."""

    def __init__(self, lm: LM, method: CrAWD, reference: list[list[int]]) -> None:
        self.lm, self.method = lm, method
        self.head: Any = lm.head
        self.reference = [torch.tensor(ids, device=lm.device) for ids in reference]

    def terms(self, batch: Batch) -> Terms:
        """Cross-entropy on the texts; the sensitive sequence has no loss of its own."""
        return {"cross_entropy": cross_entropy(batch.read(self.logits(batch)).float(), batch.targets)}

    def logits(self, batch: Batch) -> Tensor:
        """One pass for texts and sensitive sequence; words read apart need a pass of their own. [n, s, v]"""
        if batch.source is not None:
            return self.translated(batch, batch.source)
        if self.method.encoding == "apart":
            with given(self.head, self.apart(), x_mask=batch.mask):
                return self.lm.model(input_ids=batch.ids, use_cache=False).logits
        width = max(batch.ids.shape[1], len(self.reference[0]))
        ids = torch.cat([pad(batch.ids, (0, width - batch.ids.shape[1])), fitted(self.reference[0], width)[None]])
        x_mask = pad(batch.mask, (0, width - batch.mask.shape[1]))
        b_mask = torch.arange(width, device=ids.device) < len(self.reference[0])
        with riding(self.head, b_mask, x_mask):
            return self.lm.model(input_ids=ids, use_cache=False).logits[:, : batch.ids.shape[1]]

    def translated(self, batch: Batch, source: Batch) -> Tensor:
        """The same of an encoder-decoder: the sensitive sequence rides in the encoder's batch. [n, s, v]"""
        width = max(source.ids.shape[1], *map(len, self.reference))
        rows = [fitted(each, width) for each in (*source.ids, *self.reference)]
        lengths = torch.tensor([*source.mask.sum(1).tolist(), *map(len, self.reference)], device=batch.ids.device)
        mask = torch.arange(width, device=batch.ids.device) < lengths[:, None]
        model: Any = self.lm.model
        states = model.get_encoder()(input_ids=torch.stack(rows), attention_mask=mask).last_hidden_state
        n = len(batch.ids)
        with given(self.head, self.kept(states[n:]), x_mask=batch.mask):
            return model(
                encoder_outputs=BaseModelOutput(last_hidden_state=states[:n]),
                attention_mask=mask[:n],
                decoder_input_ids=batch.ids,
            ).logits

    def kept(self, states: Tensor) -> Tensor:
        """Of the states of the sensitive sequence, those that are looked at: all of one text, or each word's last."""
        if self.method.encoding == "joined":
            return states[0, : len(self.reference[0])]
        return states[torch.arange(len(states)), [len(each) - 1 for each in self.reference]]

    def apart(self) -> Tensor:
        """The states of the sensitive sequence from a pass of its own. [w, d] or [m, d]"""
        width = max(map(len, self.reference))
        ids = torch.stack([fitted(each, width) for each in self.reference])
        model: Any = self.lm.model
        if self.lm.kind == "seq2seq":
            mask = torch.arange(width) < torch.tensor([[len(each)] for each in self.reference])
            found = model.get_encoder()(input_ids=ids, attention_mask=mask.to(ids.device))
        else:
            found = model.base_model(input_ids=ids, use_cache=False)
        return self.kept(found.last_hidden_state)

    @torch.no_grad()
    def remember(self) -> None:
        """Keep the sensitive sequence's states as the trained model has them: at inference it is not read again."""
        states = self.apart()
        self.head.block.keep(states, torch.ones(len(states), dtype=torch.bool))

    def looks(self) -> pd.DataFrame | None:
        """What the layer looks at in a few prompts, before and after its decay."""
        if self.lm.kind == "seq2seq":
            return None
        return pd.concat([layer_looks(self.lm, prompt) for prompt in PROMPTS], ignore_index=True)

    @property
    def remembered(self) -> list[str]:
        """The names of what the layer keeps beside its weights."""
        return [name for name, _ in self.lm.model.named_buffers() if ADDED.search(name)]


def watch(found: Association) -> Watched:
    """The tokens of an association, ready to be looked up."""
    tokens = found.strength.nonzero()[:, 0]
    return Watched(tokens, found.strength[tokens].log(), found.side[tokens], found.strength >= NAMING)


def commonest_words(lm: LM, encoded: list[list[int]], most: int) -> list[int]:
    """The tokens that are a whole word inside a text, those of most texts first."""
    count = Counter(token for ids in encoded for token in set(ids))
    texts = {token: str(lm.tokenizer.decode([token])) for token in count}
    whole = [token for token, _ in count.most_common() if re.fullmatch(r" [A-Za-z]{2,}", texts[token])]
    return whole[:most]


def unnamed(batch: Batch, naming: Tensor) -> Tensor:
    """Where nothing up to and including the position, nor what an encoder has read, has named a group. [n, s]"""
    here = naming[batch.ids].cumsum(1) == 0
    return here if batch.source is None else here & ~naming[batch.source.ids].any(1, keepdim=True)


def grouped(logits: Tensor, watched: Watched) -> Tensor:
    """The log-probability that the next token is a reference word or associated with it. [m, w]"""
    eased = logits[:, watched.tokens] + watched.ease - logits.logsumexp(-1, keepdim=True)
    groups = [watched.side == place for place in watched.side.unique()]
    return torch.stack([eased[:, group].logsumexp(-1) for group in groups], 1)


def reference_size(reference: list[list[int]]) -> int:
    """How many states the printed layer looks at: all tokens of one text, or one for each word read apart."""
    return len(reference[0]) if len(reference) == 1 else len(reference)


def fitted(ids: Tensor, width: int) -> Tensor:
    """A row of tokens with padding on its right."""
    return pad(ids, (0, width - len(ids)))
