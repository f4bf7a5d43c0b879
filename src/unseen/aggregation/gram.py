"""The Gram matrix of the clients' moves: all that sequential vector algorithms need to know of them."""

from __future__ import annotations

import torch
from torch import Tensor

from unseen.aggregation.blocks import difference_blocks


def gram(rows: Tensor, reference: Tensor, extent: slice, *, width: int | None = None) -> Tensor:
    """Inner products <w_i - w, w_j - w> over a part of the state: float64 (clients x clients), symmetric.

    One blocked pass; beside the result itself it holds one block whatever the number of columns.
    """
    products = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for _, block in difference_blocks(rows, reference, extent, width=width):
        products.addmm_(block, block.t())
    return (products + products.t()) / 2


def cosines(gram: Tensor) -> Tensor:
    """Cosines between vectors from their Gram matrix; a zero vector has cosine 0 with every other."""
    lengths = gram.diagonal().clamp(min=0).sqrt()
    inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
    return (gram * inverse[:, None] * inverse).clamp_(-1, 1)
