"""Blocked passes over the clients-by-parameters matrix: a few columns of all clients at a time.

A block is converted to float64 in a buffer that fits a core's private cache. So the matrix is read once and
never copied as a whole, and sums depend on the block width only in the last bits of a float64.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK_BYTES = 1_120_000
"""Size of a float64 block: half the second-level cache of a core, next to the float32 that streams in."""
LINE = 8
"""Columns of float64 in a cache line."""


def block_width(clients: int, *, block_bytes: int = BLOCK_BYTES) -> int:
    """Return the number of columns per block: an odd number of cache lines.

    With an even one, above all a power of two, the rows of a block compete for the same cache sets.
    """
    lines = block_bytes // (8 * LINE * max(clients, 1))
    return LINE * max(1, lines - 1 + lines % 2)


def block_slices(extent: slice, width: int) -> Iterator[slice]:
    """Split a part of the state into slices of at most `width` columns."""
    for start in range(extent.start, extent.stop, width):
        yield slice(start, min(start + width, extent.stop))


def difference_blocks(
    rows: Tensor, reference: Tensor, extent: slice, *, width: int | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield (columns, w_k - reference of all clients there) in float64.

    All blocks share one buffer: use a block before requesting the next.
    """
    width = width or block_width(len(rows))
    buffer = torch.empty(len(rows), min(width, max(extent.stop - extent.start, 1)), dtype=torch.float64)
    for columns in block_slices(extent, width):
        block = buffer[:, : columns.stop - columns.start]
        block.copy_(rows[:, columns]).sub_(reference[columns].double())
        yield columns, block
