"""Similarity of two networks' feature maps, layer by layer: CSAC's position- and channel-wise attention.

The paper averages whole attention maps (positions x positions, channels x channels). The average of a product
of matrices is the product of their averages, so that no map is ever built.
"""

from __future__ import annotations

from torch import Tensor


def position_similarity(fused: Tensor, local: Tensor) -> Tensor:
    """Compute avg(A_l^T B_m) of CSAC's eq. 7, the batch mean: (L, n, c, d) and (M, n, c, d) give (L, M)."""
    return _mean_product(fused.mean(-1), local.mean(-1))


def channel_similarity(fused: Tensor, local: Tensor) -> Tensor:
    """Compute avg(A_l B_m^T) of CSAC's eq. 8, the batch mean: (L, n, c, d) and (M, n, c, d) give (L, M)."""
    return _mean_product(fused.mean(-2), local.mean(-2))


def over_local_layers(similarity: Tensor) -> Tensor:
    """Apply softmax over m (eq. 7 and 8): each fused layer distributes a weight of one over local layers."""
    return similarity.softmax(dim=1)


def _mean_product(fused: Tensor, local: Tensor) -> Tensor:
    """Compute the inner product of every pair of layers, averaged over the samples."""
    return fused.flatten(1) @ local.flatten(1).T / fused.shape[1]
