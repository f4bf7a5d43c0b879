"""Bounds on a client's contribution, fixed or following a quantile of the clients' norms."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class ClippedVector(NamedTuple):
    """A vector clipped to the bound, and whether it was within the bound before."""

    vector: Tensor
    within: bool


def clip_to_norm(vector: Tensor, bound: float) -> ClippedVector:
    """Scale a vector down to the bound if its norm is larger."""
    norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    if norm <= bound:
        return ClippedVector(vector, True)
    return ClippedVector(vector * (bound / norm), False)


class NoiseSplit(NamedTuple):
    """One mechanism's noise, split between the sum of updates and the count of those within the bound.

    updates  the noise multiplier for the sum of updates, whose parts have norm 1 in units of the bound
    counts   the standard deviation for the sum of the counts (each +1/2 or -1/2)
    """

    updates: float
    counts: float


def split_noise(noise: float, *, share: float) -> NoiseSplit:
    """Split noise so that both parts together spend what `noise` spends (Andrew et al. 2021, theorem 1).

    1/noise^2 = 1/updates^2 + 1/(2 counts)^2; `share` is the second term's fraction of the whole. With share 0
    nothing is counted.
    """
    if not share:
        return NoiseSplit(updates=noise, counts=math.inf)
    return NoiseSplit(updates=noise / math.sqrt(1 - share), counts=noise / (2 * math.sqrt(share)))


def update_clip_norm(bound: float, within: float, *, quantile: float, rate: float) -> float:
    """Update the bound geometrically: C exp(-rate (b - quantile)) for a fraction b within it (section 2)."""
    return bound * math.exp(-rate * (within - quantile))
