"""Blocked passes over the clients-by-parameters matrix: a few columns of all clients at a time.

A block is brought to float64 in a buffer that fits a core's own cache, so that the matrix is read once, is
never in memory twice, and sums do not depend on the width of the blocks beyond a float64's last bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK_BYTES = 1_120_000
"""Size of a float64 block: half the second-level cache of a core, beside the float32 that streams in."""
LINE = 8
"""Columns of float64 in a line of cache."""


def block_width(clients: int, *, block_bytes: int = BLOCK_BYTES) -> int:
    """How many columns of that many clients make a block: an odd number of cache lines.

    With an even one, above all a power of two, the rows of a block compete for the same places in the cache.
    """
    lines = block_bytes // (8 * LINE * max(clients, 1))
    return LINE * max(1, lines - 1 + lines % 2)


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
