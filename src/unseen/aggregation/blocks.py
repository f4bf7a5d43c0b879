"""Blocked passes over the clients-by-parameters matrix: a few columns of all clients at a time.

A block is brought to float64 in a buffer that fits a core's own cache, so that the matrix is read once, is
never in memory twice, and sums do not depend on the width of the blocks beyond a float64's last bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK_BYTES = 3 * 2**19
"""Size of a float64 block: most of the second-level cache of today's cores."""
NARROWEST = 16
"""Columns of a block when there are very many clients: one line of cache of float32."""


def block_width(clients: int, *, block_bytes: int = BLOCK_BYTES) -> int:
    """How many columns of that many clients make a block."""
    return max(NARROWEST, block_bytes // (8 * max(clients, 1)))


def block_slices(extent: slice, width: int) -> Iterator[slice]:
    """Cut a part of the state into slices of at most `width` columns."""
    for start in range(extent.start, extent.stop, width):
        yield slice(start, min(start + width, extent.stop))


def difference_blocks(
    rows: Tensor, reference: Tensor, extent: slice, *, width: int | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield (columns, w_k - reference of all clients there) in float64.

    Every block lies in the same buffer: use it before asking for the next.
    """
    width = width or block_width(len(rows))
    buffer = torch.empty(len(rows), min(width, max(extent.stop - extent.start, 1)), dtype=torch.float64)
    for columns in block_slices(extent, width):
        block = buffer[:, : columns.stop - columns.start]
        block.copy_(rows[:, columns]).sub_(reference[columns].double())
        yield columns, block
