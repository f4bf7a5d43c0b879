"""Averages of client states, whole or per layer, and the one buffer policy that all of them follow.

Float buffers (batch-norm statistics) are averaged with the weights of the parameters (`weighted_mean`,
`layerwise_weighted_sum`), or with the clients' own where those of the parameters follow from their geometry
(`combine_clients`). Integer buffers (batch counters) take the
largest value (`merge_buffers`), since a fraction of a count has no meaning; where only a sum is known, they
become the rounded mean (`mean_from_sum`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.models import Kind, Layout

Grouping = Literal["tensor", "module"]
MAX_RECORDED_LAYERS = 24


@dataclass(frozen=True)
class Layer:
    """A named part of the state; the tensors of a module may be in several places."""

    name: str
    slices: tuple[slice, ...]


def split_layers(layout: Layout, grouping: Grouping = "tensor") -> tuple[Layer, ...]:
    """List the layers of a state: every named tensor, or every module with its own tensors together.

    Batch-norm statistics belong to layers; integer buffers (batch counters) belong to none, since a distance
    or a fraction of a count has no meaning. A tensor outside of any module is a separate layer.
    """
    places: dict[str, list[slice]] = {}
    for entry in layout.entries:
        if entry.kind is not Kind.INTEGER_BUFFER:
            module = entry.name.rpartition(".")[0]
            name = module if grouping == "module" and module else entry.name
            places.setdefault(name, []).append(entry.slice)
    return tuple(Layer(name, tuple(slices)) for name, slices in places.items())


def select_recorded_layers(layers: Sequence[Layer], layout: Layout) -> list[int]:
    """Choose the layers that records show: those with a kernel or matrix, a subsample in deep networks."""
    large = {entry.start for entry in layout.entries if len(entry.shape) > 1}
    found = [
        number for number, layer in enumerate(layers) if any(place.start in large for place in layer.slices)
    ]
    if len(found) <= MAX_RECORDED_LAYERS:
        return found or list(range(min(len(layers), MAX_RECORDED_LAYERS)))
    steps = torch.linspace(0, len(found) - 1, MAX_RECORDED_LAYERS).round().long().tolist()
    return [found[step] for step in steps]


Real = NDArray[np.float64]
Weighting = Literal["samples", "uniform"]
WEIGHTINGS: tuple[str, ...] = get_args(Weighting)
WEIGHTING = "weight clients by their number of samples, or all equally"
"""Help text of a method's setting of that type."""


# client weights


def client_weights(samples: Tensor, weighting: Weighting) -> Tensor:
    """Return the weight of each client, not yet scaled to sum to one."""
    return samples if weighting == "samples" else torch.ones_like(samples)


def unequal_weights(samples: Tensor, weighting: Weighting) -> Tensor | None:
    """Return the weight of each client; None where all count the same, for formulas with 1 / K."""
    return samples if weighting == "samples" else None


def normalize_weights(weights: Tensor) -> Tensor:
    """Scale non-negative weights to sum to one; all-zero weights become uniform."""
    if bool((weights < 0).any()) or not bool(torch.isfinite(weights).all()):
        raise ValueError(f"weights must be finite and not negative: {weights.tolist()}")
    total = weights.double().sum()
    if total == 0:
        return torch.full_like(weights, 1 / len(weights), dtype=torch.float64)
    return weights.double() / total


def adjust_weights(weights: Tensor, gaps: Tensor, *, step: float, centred: bool = True) -> Tensor:
    """Apply FedGA's GA(a, G, d): a_k + d * mean(a) * (G_k - mean G) / max_l |G_l - mean G|, not below 0.

    Clients with a larger generalization gap count more. The sum of the weights is kept. Equal gaps, or a step
    of 0, leave the weights unchanged.

    step     d, the largest change of a weight, in units of the mean weight (of 1/K where weights sum to one)
    centred  measure gaps from their mean (the paper); else as they are (the released code)
    """
    deviations = gaps.double() - gaps.double().mean() if centred else gaps.double()
    largest = deviations.abs().max()
    if largest == 0:
        return weights
    moved = (weights + step * weights.mean() * deviations / largest).clamp(min=0)
    return moved * (weights.sum() / moved.sum())


# buffer policy


def merge_buffers(merged: Tensor, rows: Tensor, *, layout: Layout, weights: Tensor | None = None) -> Tensor:
    """Fill in the buffers of `merged` from the clients' rows, and return it.

    weights  of the clients in the mean of float buffers, not rescaled; None = `merged` has that mean
    """
    statistics, counters = layout.extent(Kind.FLOAT_BUFFER), layout.extent(Kind.INTEGER_BUFFER)
    if weights is not None:
        merged[statistics] = weighted_sum(rows[:, statistics], weights)
    if counters.start != counters.stop:
        merged[counters] = largest_counters(rows[:, counters])
    return merged


def largest_counters(counters: Tensor) -> Tensor:
    """Merge integer buffers (clients x counters): the largest value of each."""
    return counters.amax(dim=0)


def scale_for_sum(state: Real, weight: float, *, layout: Layout) -> Real:
    """Multiply a client's state by its weight, so that states can be summed; counters stay unweighted."""
    scaled, counters = state * weight, layout.extent(Kind.INTEGER_BUFFER)
    scaled[counters] = state[counters]
    return scaled


def mean_from_sum(total: Real, *, weight: float, clients: float, layout: Layout) -> Real:
    """Convert a sum of `scale_for_sum` states to their mean; counters become the rounded mean.

    weight   sum of the clients' weights
    clients  number of clients in the sum
    """
    mean, counters = total / weight, layout.extent(Kind.INTEGER_BUFFER)
    mean[counters] = np.rint(mean[counters] * weight / clients)
    return mean


def without_counters(layout: Layout) -> slice:
    """Return the part of a state before the batch counters, which come last and would dominate distances."""
    return slice(0, max(entry.stop for entry in layout.entries if entry.kind is not Kind.INTEGER_BUFFER))


# averages


def weighted_mean(rows: Tensor, weights: Tensor, *, layout: Layout) -> Tensor:
    """Average client states: sum_k p_k w_k with p = weights / sum(weights), for float buffers too."""
    return merge_buffers(normalize_weights(weights).to(rows.dtype) @ rows, rows, layout=layout)


def weighted_sum(rows: Tensor, coefficients: Tensor, *, reference: Tensor | None = None) -> Tensor:
    """Sum c_k w_k with any coefficients; from a reference: reference + sum_k c_k (w_k - reference).

    The second form needs no differences: it is sum_k c_k w_k + (1 - sum_k c_k) reference.
    """
    scaled = coefficients.to(rows.dtype)
    total = scaled @ rows
    if reference is not None:
        total.add_(reference, alpha=1 - float(scaled.double().sum()))
    return total


def combine_clients(
    rows: Tensor,
    reference: Tensor,
    coefficients: Tensor,
    *,
    layout: Layout,
    weights: Tensor | None = None,
) -> Tensor:
    """Move the global parameters by sum_k c_k (w_k - w), and average buffers with the clients' weights.

    Coefficients that follow from the geometry of the parameters say nothing about running statistics.

    weights  of the clients; None = equal
    """
    merged, trained = torch.empty_like(rows[0]), layout.extent(Kind.PARAMETER)
    merged[trained] = weighted_sum(rows[:, trained], coefficients, reference=reference[trained])
    equal = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
    shares = equal if weights is None else normalize_weights(weights)
    return merge_buffers(merged, rows, layout=layout, weights=shares)


def layerwise_weighted_sum(
    rows: Tensor, weights: Tensor, *, layout: Layout, grouping: Grouping = "tensor"
) -> Tensor:
    """Average client states with separate weights for every layer: sum_k p_{l,k} w_{k,l}.

    weights   (layers x clients), rows in the order of `split_layers(layout, grouping)`; not rescaled, so
              they should sum to one in every layer
    """
    layers = split_layers(layout, grouping)
    if weights.shape != (len(layers), len(rows)):
        raise ValueError(
            f"weights of shape {tuple(weights.shape)} do not fit {len(layers)} layers of {len(rows)} clients"
        )
    merged = torch.empty_like(rows[0])
    for layer, own in zip(layers, weights, strict=True):
        for place in layer.slices:
            merged[place] = weighted_sum(rows[:, place], own)
    return merge_buffers(merged, rows, layout=layout)


def step_towards(weights: Tensor, mean: Tensor, *, rate: float, layout: Layout) -> Tensor:
    """Move the parameters from `weights` by rate * (mean - weights); rate 1 gives the mean to the last bit.

    Buffers are those of the mean whatever the rate: a variance moved past the clients' own could become
    negative.
    """
    moved = mean.clone()
    trained = layout.extent(Kind.PARAMETER)
    moved[trained] = torch.lerp(weights[trained], mean[trained], rate)
    return moved
