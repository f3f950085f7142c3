"""DeepSoftDebias (DSD): a small network that takes the bias out of a model's input embeddings and keeps their geometry.

It is soft debiasing (Bolukbasi et al. 2016) with a residual network in the place of a matrix. As in CrAWD's comparison
the model is fine-tuned first. The network is applied once and thrown away; what is saved is the whole input embedding.

v vocabulary, d hidden size, n vectors of a batch, k bias directions."""

import time
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import PreTrainedModel

from evenhand.config import Refusal, options
from evenhand.data._rows import Text
from evenhand.lm import LM
from evenhand.methods._texts import TextMethod
from evenhand.methods._words import single_tokens
from evenhand.run import Run, is_main

__all__ = ["DeepSoftDebias"]

WIDEST = 1024
VECTORS = 1000
RATE = 1e-3
MOST_STEPS = 400
# The loss of a step is noisy: it is judged over this many of them.
WINDOW = 20
PATIENCE = 3
LEAST_GAIN = 0.01


class Effect(NamedTuple):
    """What became of the embeddings."""

    before: float
    """The neutral tokens' mean |cosine| to the nearest bias direction."""
    after: float
    geometry: float
    """How far the products of the vectors moved, relative to their size."""


@options
class DeepSoftDebias(TextMethod):
    """LoRA fine-tuning, and then a small network takes the bias directions out of the input embeddings (DSD)."""

    paper: ClassVar = "From Prejudice to Parity: A New Approach to Debiasing Large Language Model Word Embeddings"
    citation: ClassVar = "Rakshit et al., COLING 2025"

    sets: tuple[tuple[str, ...], ...] = (
        *(("he", "she"), ("his", "hers"), ("son", "daughter"), ("father", "mother")),
        *(("male", "female"), ("boy", "girl"), ("uncle", "aunt")),
    )
    """Words that say the same of different groups; what the words of a set differ in is bias everywhere else."""
    directions: PositiveInt = 1
    """How many main directions of those differences are taken out."""
    strength: float = Field(1.0, ge=0)
    """How much the bias that is left counts beside the geometry that is lost (lambda)."""

    def attach(self, lm: LM, state: dict[str, Any]) -> None:
        """Input and output embeddings apart, because only the input changes; then the adapters."""
        untie(lm.model)
        super().attach(lm, state)

    def prepare(self, lm: LM, encoded: list[list[int]], run: Run) -> dict[str, Any]:
        """Look at the sets before anything is trained."""
        self.basis(lm)
        return {}

    def fit(self, lm: LM, rows: list[Text], run: Run) -> dict[str, Any]:
        """Fine-tune as `vanilla` does, then change the input embeddings once."""
        state = super().fit(lm, rows, run)
        started = time.time()
        weight = embedding(lm.model)
        words = [word for each in self.sets for word in each]
        neutral = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
        neutral[[token for tokens in single_tokens(lm, words).values() for token in tokens]] = False
        before, basis = weight.detach().float(), self.basis(lm)
        after = softened(before, neutral, basis, self.strength, run)
        with torch.no_grad():
            weight.copy_(after)
        found = effect(before[neutral], after[neutral], basis)
        run.say(
            f"embeddings: mean |cosine| to the bias {found.before:.4f} -> {found.after:.4f}, "
            f"geometry moved by {found.geometry:.2%}"
        )
        lm.trained.append(next(name for name, known in lm.model.named_parameters() if known is weight))
        if is_main():
            cost = run.read("train.json")
            more = {"trainable": cost["trainable"] + weight.numel(), "seconds": cost["seconds"] + time.time() - started}
            run.save("train.json", {**cost, **more})
        return state

    @torch.no_grad()
    def basis(self, lm: LM) -> Tensor:
        """The main directions in which the words of a set differ from their mean. [k, d]"""
        if not self.sets or any(len(set(words)) < 2 for words in self.sets):
            raise Refusal(
                "deep_soft_debias needs sets of at least two words that say the same of different groups; give some "
                "with --set method.sets='[[he, she], [son, daughter]]'."
            )
        weight = embedding(lm.model).float()
        # A word of several tokens is the mean of them all.
        found = [torch.stack([weight[lm.split("a", f" {word}")[1]].mean(0) for word in words]) for words in self.sets]
        apart = torch.cat([vectors - vectors.mean(0) for vectors in found])
        _, sizes, directions = torch.linalg.svd(apart, full_matrices=False)
        if int((sizes > 1e-6 * sizes[0]).sum()) < self.directions:
            raise Refusal(
                f"The words of these sets differ in fewer than {self.directions} directions; add sets, or ask for "
                "fewer with --set method.directions=1."
            )
        return directions[: self.directions]


class Softener(nn.Module):
    """f(x) = x + MLP(x), which changes nothing at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Linear(width, min(width, WIDEST))
        self.back = nn.Linear(min(width, WIDEST), width)
        nn.init.zeros_(self.back.weight)
        nn.init.zeros_(self.back.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The vectors, softened. [n, d]"""
        return x + self.back(gelu(self.wide(x)))


def objective(x: Tensor, softer: Tensor, neutral: Tensor, basis: Tensor, strength: float) -> Tensor:
    """How far the products of the vectors moved, and how much of the neutral ones' bias is left; both are parts of what
    there was, so that the size of a model's embeddings does not matter."""
    products = x @ x.T  # [n, n]
    moved = (softer @ softer.T - products).norm() / products.norm()
    left = (softer[neutral] @ basis.T).norm() / (x[neutral] @ basis.T).norm().clamp_min(1e-12)
    return moved + strength * left


def softened(vectors: Tensor, neutral: Tensor, basis: Tensor, strength: float, run: Run) -> Tensor:
    """The vectors after the network, which is trained until it gains next to nothing. [v, d]"""
    size = vectors.square().mean().sqrt()
    x = vectors / size
    with torch.random.fork_rng():
        torch.manual_seed(run.seed)
        network = Softener(x.shape[1]).to(x.device)
        optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
        best, since = float("inf"), 0
        for _ in run.progress(range(MOST_STEPS // WINDOW), "softening embeddings"):
            total = 0.0
            for _ in range(WINDOW):
                part = torch.randperm(len(x))[:VECTORS].to(x.device)
                loss = objective(x[part], network(x[part]), neutral[part], basis, strength)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += loss.item()
            best, since = (total, 0) if total < (1 - LEAST_GAIN) * best else (best, since + 1)
            if since == PATIENCE:
                break
    with torch.no_grad():
        return torch.cat([network(part) for part in x.split(VECTORS)]) * size


@torch.no_grad()
def effect(before: Tensor, after: Tensor, basis: Tensor) -> Effect:
    """How much nearer to none the bias is, and how much of the geometry that cost."""

    def nearness(vectors: Tensor) -> float:
        cosines = vectors @ basis.T / vectors.norm(dim=1, keepdim=True).clamp_min(1e-12)
        return float(cosines.abs().amax(1).mean())

    # |X X'|^2 = |X'X|^2, and |A A' - B B'|^2 = |A'A|^2 + |B'B|^2 - 2 |A'B|^2: no table of v x v numbers is needed.
    one, other, both = (a.T.double() @ b.double() for a, b in ((before, before), (after, after), (before, after)))
    squared = (one.square().sum() + other.square().sum() - 2 * both.square().sum()).clamp_min(0)
    return Effect(nearness(before), nearness(after), float(squared.sqrt() / one.norm()))


def embedding(model: PreTrainedModel) -> nn.Parameter:
    """The input embedding. [v, d]"""
    return model.get_input_embeddings().weight  # pyright: ignore[reportReturnType]


def untie(model: PreTrainedModel) -> None:
    """Give the output head weights of its own, equal to the input embedding's."""
    head: Any = model.get_output_embeddings()
    if head.weight is embedding(model):
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False
