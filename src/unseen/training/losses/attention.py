"""How alike the maps of two networks are, layer by layer: CSAC's position-wise and channel-wise attention.

The paper averages whole attention maps (positions x positions, channels x channels). The average of a product
of matrices is the product of their averages, so that no map is ever built.
"""

from __future__ import annotations

from torch import Tensor


def position_similarity(fused: Tensor, local: Tensor) -> Tensor:
    """avg(A_l^T B_m) of CSAC's eq. 7, averaged over the batch: (L, n, c, d) and (M, n, c, d) give (L, M)."""
    return _mean_product(fused.mean(-1), local.mean(-1))


def channel_similarity(fused: Tensor, local: Tensor) -> Tensor:
    """avg(A_l B_m^T) of CSAC's eq. 8, averaged over the batch: (L, n, c, d) and (M, n, c, d) give (L, M)."""
    return _mean_product(fused.mean(-2), local.mean(-2))


def over_local_layers(similarity: Tensor) -> Tensor:
    """Softmax over m (eq. 7 and 8): every fused layer shares out a weight of one among the local layers."""
    return similarity.softmax(dim=1)


def _mean_product(fused: Tensor, local: Tensor) -> Tensor:
    """Inner product of every pair of layers, averaged over the samples."""
    return fused.flatten(1) @ local.flatten(1).T / fused.shape[1]
