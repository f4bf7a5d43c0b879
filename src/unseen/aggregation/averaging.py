"""The weighted mean of client states, with a stated policy for every kind of tensor."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unseen.aggregation.layers import Grouping, split_layers
from unseen.models import Kind, Layout

Weighting = Literal["samples", "uniform"]
WEIGHTING = "weigh clients by their number of samples, or all alike"
"""What a method's setting of that type means."""


def client_weights(samples: Tensor, weighting: Weighting) -> Tensor:
    """How much each client counts, not yet scaled to sum to one."""
    return samples if weighting == "samples" else torch.ones_like(samples)


def normalize_weights(weights: Tensor) -> Tensor:
    """Scale non-negative weights to sum to one; all-zero weights become uniform."""
    if bool((weights < 0).any()) or not bool(torch.isfinite(weights).all()):
        raise ValueError(f"weights must be finite and not negative: {weights.tolist()}")
    total = weights.double().sum()
    if total == 0:
        return torch.full_like(weights, 1 / len(weights), dtype=torch.float64)
    return weights.double() / total


def weighted_mean(rows: Tensor, weights: Tensor, *, layout: Layout) -> Tensor:
    """Merge client states: sum_k p_k w_k with p = weights / sum(weights).

    Parameters and float buffers (batch-norm statistics) are averaged with the same weights; integer
    buffers (batch counters) take the largest value, since a fraction of a count means nothing.
    """
    merged = normalize_weights(weights).to(rows.dtype) @ rows
    counters = layout.extent(Kind.INTEGER_BUFFER)
    if counters.start != counters.stop:
        merged[counters] = rows[:, counters].amax(dim=0)
    return merged


def adjust_weights(weights: Tensor, gaps: Tensor, *, step: float, centred: bool = True) -> Tensor:
    """FedGA's GA(a, G, d): a_k + d * mean(a) * (G_k - mean G) / max_l |G_l - mean G|, not below 0.

    The result sums to what `weights` sum to. Equal gaps, or a step of 0, leave the weights as they are.

    step     d, the most that a weight changes, in units of the mean weight (of 1/K where weights sum to one)
    centred  measure gaps from their mean (the paper); else as they are (the released code)
    """
    deviations = gaps.double() - gaps.double().mean() if centred else gaps.double()
    largest = deviations.abs().max()
    if largest == 0:
        return weights
    moved = (weights + step * weights.mean() * deviations / largest).clamp(min=0)
    return moved * (weights.sum() / moved.sum())


def weighted_sum(rows: Tensor, coefficients: Tensor, *, reference: Tensor | None = None) -> Tensor:
    """Sum c_k w_k with any coefficients; from a reference: reference + sum_k c_k (w_k - reference).

    The second form needs no differences: it is sum_k c_k w_k + (1 - sum_k c_k) reference.
    """
    scaled = coefficients.to(rows.dtype)
    total = scaled @ rows
    if reference is not None:
        total.add_(reference, alpha=1 - float(scaled.double().sum()))
    return total


def combine_clients(rows: Tensor, reference: Tensor, coefficients: Tensor, *, layout: Layout) -> Tensor:
    """Move the global parameters by sum_k c_k (w_k - w); merge buffers as an unweighted mean would.

    Coefficients that come from the geometry of the parameters say nothing about running statistics, so float
    buffers are averaged with equal weights whatever the coefficients are.
    """
    merged = torch.empty_like(rows[0])
    trained, statistics = layout.extent(Kind.PARAMETER), layout.extent(Kind.FLOAT_BUFFER)
    merged[trained] = weighted_sum(rows[:, trained], coefficients, reference=reference[trained])
    merged[statistics] = weighted_sum(
        rows[:, statistics], torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
    )
    return _with_largest_counters(merged, rows, layout)


def layerwise_weighted_sum(
    rows: Tensor, weights: Tensor, *, layout: Layout, grouping: Grouping = "tensor"
) -> Tensor:
    """Merge client states with weights of their own for every layer: sum_k p_{l,k} w_{k,l}.

    weights   (layers x clients), rows in the order of `split_layers(layout, grouping)`; taken as they are, so
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
    return _with_largest_counters(merged, rows, layout)


def _with_largest_counters(merged: Tensor, rows: Tensor, layout: Layout) -> Tensor:
    """Fill in the integer buffers."""
    counters = layout.extent(Kind.INTEGER_BUFFER)
    if counters.start != counters.stop:
        merged[counters] = rows[:, counters].amax(dim=0)
    return merged


def step_towards(weights: Tensor, mean: Tensor, *, rate: float, layout: Layout) -> Tensor:
    """Move the parameters from `weights` by rate * (mean - weights); 1 gives the mean to the last bit.

    Buffers are taken from the mean whatever the rate is: a variance moved past the clients' own could
    become negative, and a fraction of a count means nothing.
    """
    moved = mean.clone()
    trained = layout.extent(Kind.PARAMETER)
    moved[trained] = torch.lerp(weights[trained], mean[trained], rate)
    return moved
