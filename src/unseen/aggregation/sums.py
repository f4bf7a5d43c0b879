"""Weighted sums of client states, whole or layer by layer: matrix-vector products at memory bandwidth.

Integer buffers (batch counters) always take the largest value, as in `weighted_mean`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unseen.aggregation.layers import Grouping, layers_of
from unseen.models import Kind, Layout


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

    weights   (layers x clients), rows in the order of `layers_of(layout, grouping)`; taken as they are, so
              they should sum to one in every layer
    """
    layers = layers_of(layout, grouping)
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
