"""The weighted mean of client states, with a stated policy for every kind of tensor."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unseen.models import Kind, Layout

Weighting = Literal["samples", "uniform"]
WEIGHTING = "weigh clients by their number of samples, or all alike"
"""What a method's setting of that type means."""


def client_weights(samples: Tensor, weighting: Weighting) -> Tensor:
    """How much each client counts, not yet scaled to sum to one."""
    return samples if weighting == "samples" else torch.ones_like(samples)


def normalised(weights: Tensor) -> Tensor:
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
    merged = normalised(weights).to(rows.dtype) @ rows
    counters = layout.extent(Kind.INTEGER_BUFFER)
    if counters.start != counters.stop:
        merged[counters] = rows[:, counters].amax(dim=0)
    return merged
