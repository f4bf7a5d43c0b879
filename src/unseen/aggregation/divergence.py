"""From distances to weights: how much each client counts in each layer of the merged model (CSAC, eq. 4)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Strategy = Literal["divergence", "similarity", "average"]


def divergence_weights(distances: Tensor, strategy: Strategy = "divergence") -> Tensor:
    """Turn distances to the mean (layers x clients) into weights that sum to one in every layer.

    divergence  p_k = dist_k / sum_j dist_j: a client far from the mean counts more (eq. 4)
    similarity  p_k = (1 / dist_k) / sum_j (1 / dist_j): a client near the mean counts more; clients exactly
                at the mean share everything
    average     p_k = 1 / K (eq. 3)

    Where all distances of a layer are zero the weights are uniform.
    """
    if bool((distances < 0).any()) or not bool(torch.isfinite(distances).all()):
        raise ValueError("distances must be finite and not negative")
    shares = torch.ones_like(distances, dtype=torch.float64)
    if strategy == "divergence":
        shares = _relative_to_largest(distances.double())
    elif strategy == "similarity":
        shares = _inverse(distances.double())
    totals = shares.sum(dim=1, keepdim=True)
    return torch.where(totals > 0, shares / totals.clamp_min(1e-300), 1 / distances.shape[1])


def _relative_to_largest(distances: Tensor) -> Tensor:
    """Scale to [0, 1], so that neither tiny nor huge distances leave the range of numbers."""
    largest = distances.amax(dim=1, keepdim=True)
    return torch.where(largest > 0, distances / largest, 0.0)


def _inverse(distances: Tensor) -> Tensor:
    """Nearest client 1, the others smallest / own distance."""
    smallest = distances.amin(dim=1, keepdim=True)
    at_the_mean = (distances == 0).double()
    return torch.where(smallest > 0, smallest / distances, at_the_mean)
