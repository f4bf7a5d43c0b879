"""Inner products and distances of the clients' steps, for aggregators that score clients by them.

One blocked pass: differences to the global state and their products in float32, sums over blocks in float64.
A product is accurate to about 1e-6 of the two lengths; so an absurd client spoils its own row of the matrix
and no other. Where squares leave the range of float32 the exact pass of `gradient_surgery.gram` is used.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from unseen.aggregation.gradient_surgery import gram

BLOCK_BYTES = 600_000
"""Size of a block of float32 differences: half of a core's second-level cache."""
SHORTEST = 1e-20
"""Squared length below which squares of single numbers may vanish in float32."""
_LINE = 16


def step_products(rows: Tensor, reference: Tensor, *, width: int | None = None) -> Tensor:
    """Compute <w_i - w, w_j - w>: float64 (clients x clients), symmetric."""
    if rows.dtype is not torch.float32:
        return gram(rows, reference, slice(0, rows.shape[1]))
    clients, size = rows.shape
    width = width or _LINE * max(1, BLOCK_BYTES // (4 * _LINE * clients))
    buffer = torch.empty(clients, min(width, max(size, 1)))
    own, start_of = rows.numpy(), reference.numpy()
    part, products = torch.empty(clients, clients), torch.zeros(clients, clients, dtype=torch.float64)
    for start in range(0, size, width):
        stop = min(start + width, size)
        block = buffer if stop - start == buffer.shape[1] else buffer[:, : stop - start]
        np.subtract(own[:, start:stop], start_of[start:stop], out=block.numpy())
        torch.mm(block, block.t(), out=part)
        products += part
    shortest = float(products.diagonal().min()) if size else math.inf
    if not bool(torch.isfinite(products).all()) or shortest < SHORTEST:
        return gram(rows, reference, slice(0, size))
    return (products + products.t()) / 2


def squared_distances(rows: Tensor, reference: Tensor) -> Tensor:
    """Compute ||w_i - w_j||^2 of all pairs from the products of the steps: float64 (clients x clients)."""
    products = step_products(rows, reference)
    lengths = products.diagonal()
    squares = (lengths[:, None] + lengths - 2 * products).clamp_(min=0)
    return squares.fill_diagonal_(0)
