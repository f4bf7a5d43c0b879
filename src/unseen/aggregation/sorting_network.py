"""Order statistics over clients, column by column, by a sorting network on blocks of whole rows.

Sorting the values of few clients in millions of columns one by one is slow. A network compares two clients'
rows at a time (minimum and maximum of whole blocks), so that every step is a vector operation. Comparisons
that no wanted position depends on are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from unseen.aggregation.distances import block_slices, block_width


class Comparison(NamedTuple):
    """Puts the smaller of two rows at `low` and the larger at `high`, as far as either is used later."""

    low: int
    high: int
    smaller: bool
    larger: bool


@lru_cache(maxsize=64)
def comparisons(rows: int, wanted: tuple[int, ...]) -> tuple[Comparison, ...]:
    """List the comparisons (Batcher's odd-even merge sort) that put the right values at wanted positions."""
    pairs = []
    size = 1
    while size < rows:
        step = size
        while step >= 1:
            for start in range(step % size, rows - step, 2 * step):
                pairs += [
                    (low, low + step)
                    for low in range(start, min(start + step, rows - step))
                    if low // (2 * size) == (low + step) // (2 * size)
                ]
            step //= 2
        size *= 2
    used, kept = set(wanted), list[Comparison]()
    for low, high in reversed(pairs):
        if low in used or high in used:
            kept.append(Comparison(low, high, low in used, high in used))
            used |= {low, high}
    return tuple(reversed(kept))


def sorted_blocks(
    rows: Tensor, wanted: tuple[int, ...], *, width: int | None = None
) -> Iterator[tuple[slice, list[Tensor]]]:
    """Yield (columns, the values at each wanted position in ascending order) of every block.

    All blocks share one buffer: use a block before requesting the next.
    """
    width = width or block_width(len(rows))
    plan = comparisons(len(rows), wanted)
    buffer = torch.empty(len(rows) + 1, min(width, max(rows.shape[1], 1)), dtype=rows.dtype)
    for columns in block_slices(slice(0, rows.shape[1]), width):
        block = buffer[:, : columns.stop - columns.start]
        block[:-1].copy_(rows[:, columns])
        *values, spare = block.unbind(0)
        for low, high, smaller, larger in plan:
            one, other = values[low], values[high]
            if smaller and larger:
                torch.minimum(one, other, out=spare)
                torch.maximum(one, other, out=other)
                values[low], spare = spare, one
            elif smaller:
                torch.minimum(one, other, out=one)
            else:
                torch.maximum(one, other, out=other)
        yield columns, [values[place] for place in wanted]
