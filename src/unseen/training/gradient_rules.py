"""Gradients of a batch: gradient rules that look for flat minima (`--sharpness NAME`), and clipping.

A sharpness-aware rule moves the weights w by a small perturbation e towards higher loss, computes the
gradient at w + e on the same batch, and returns to w, from where the optimizer takes its step. A plugin adds
a rule with a function that returns e for every flat state that is trained:

    @register_gradient_rule("random", summary="gradient at a random point nearby", rho=0.01)
    def random_point(trained: Sequence[FlatState], rho: float) -> list[Tensor]:
        return [rho * torch.randn_like(flat.parameters) for flat in trained]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from unseen.models import FlatState, Kind
from unseen.registry import Registry

Perturbation = Callable[[Sequence[FlatState], float], list[Tensor]]
"""Function of the trained states, whose `gradient` is that at w, and of the radius rho; returns e."""
P = TypeVar("P", bound=Perturbation)
_TINY = 1e-12
_ETA = 0.01
"""ASAM's eta unless given: keeps weights of zero from never being perturbed."""


@dataclass(frozen=True)
class GradientRule:
    """Registry entry: how a batch's gradient is found.

    perturbation    computes e; None = the gradient at w itself, in one pass
    rho             default radius of the perturbation
    needs_gradient  whether e depends on the batch's gradient at w, which takes a first pass
    """

    summary: str
    perturbation: Perturbation | None = None
    rho: float = 0.0
    needs_gradient: bool = True

    def radius(self, given: float | None) -> float | None:
        """Return the radius to use: the given one or the default; None where there is no perturbation."""
        return given if given is not None or self.perturbation is None else self.rho


GRADIENT_RULES: Registry[GradientRule] = Registry(
    "gradient rule", group="unseen.gradient_rules", builtin=("unseen.training.gradient_rules",)
)
GRADIENT_RULES.register("none")(GradientRule("the gradient at the current weights, in one pass"))


def register_gradient_rule(name: str, *, summary: str, rho: float) -> Callable[[P], P]:
    """Register a perturbation as a gradient rule."""

    def add(perturbation: P) -> P:
        GRADIENT_RULES.register(name)(GradientRule(summary, perturbation, rho))
        return perturbation

    return add


@register_gradient_rule(
    "sam", summary="SAM: the gradient at the worst point within --rho; two passes per step", rho=0.05
)
def sharpness_aware(trained: Sequence[FlatState], rho: float) -> list[Tensor]:
    """Compute e = rho g / |g| with the norm over all trained parameters (Foret et al. 2021)."""
    scale = rho / (total_norm([flat.gradient for flat in trained]) + _TINY)
    return [flat.gradient * scale for flat in trained]


@register_gradient_rule(
    "asam", summary="ASAM: SAM with a radius relative to each weight's size; two passes per step", rho=0.5
)
def adaptive_sharpness_aware(trained: Sequence[FlatState], rho: float, *, eta: float = _ETA) -> list[Tensor]:
    """Compute e = rho T^2 g / |T g| with T = |w| + eta for weights and 1 for biases (Kwon et al. 2021)."""
    sizes = [_weight_sizes(flat, eta) for flat in trained]
    scaled = [size * flat.gradient for size, flat in zip(sizes, trained, strict=True)]
    scale = rho / (total_norm(scaled) + _TINY)
    return [size * each * scale for size, each in zip(sizes, scaled, strict=True)]


def _weight_sizes(flat: FlatState, eta: float) -> Tensor:
    """Return T of ASAM for every trained parameter."""
    sizes = torch.ones_like(flat.parameters)
    for entry in flat.layout.entries:
        if entry.kind is Kind.PARAMETER and entry.name.rpartition(".")[2] == "weight":
            sizes[entry.slice] = flat.parameters[entry.slice].abs() + eta
    return sizes


@torch.no_grad()
def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Compute the norm over several gradients together."""
    norms: list[Tensor] = [torch.linalg.vector_norm(each) for each in gradients]
    total: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    return total


@torch.no_grad()
def clip_gradients(gradients: Sequence[Tensor], bound: float) -> None:
    """Scale gradients together to a norm of at most `bound`, as `torch.nn.utils.clip_grad_norm_` does."""
    factor = (bound / (total_norm(gradients) + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)


@contextmanager
def perturbed(
    trained: Sequence[FlatState], perturbation: Perturbation, rho: float, *, only_pass: bool = False
) -> Iterator[None]:
    """Move weights to w + e and clear their gradients; afterwards restore w and all buffers exactly.

    Batch-norm statistics thus count a batch once, at w.

    only_pass  whether there is no pass at w, so that buffers keep what this one gives them
    """
    with torch.no_grad():
        before = [flat.parameters.clone() for flat in trained]
        buffers = [] if only_pass else [buffer for flat in trained for buffer in flat.module.buffers()]
        kept = [buffer.clone() for buffer in buffers]
        for flat, shift in zip(trained, perturbation(trained, rho), strict=True):
            flat.parameters.add_(shift)
            flat.gradient.zero_()
    try:
        yield
    finally:
        with torch.no_grad():
            for flat, weights in zip(trained, before, strict=True):
                flat.parameters.copy_(weights)
            for buffer, values in zip(buffers, kept, strict=True):
                buffer.copy_(values)
