"""Middle values over clients, column by column, by a network of comparisons on blocks of whole rows.

Sorting the values of few clients in millions of columns one by one is slow. A network compares two clients'
rows at a time (minimum and maximum of whole blocks), so that every step is a vector operation. Of two ways to
build it the shorter one is taken: eliminate the smallest and the largest of few rows at a time, which never
orders what is left, or sort all rows and leave out comparisons that no wanted position depends on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

Values = npt.NDArray[np.floating]
BLOCK_COLUMNS = 20_480
"""Columns per block: its working rows fit a core's second-level cache, and calls cost little beside work."""
_SPARE = 2


class Comparison(NamedTuple):
    """Puts the smaller of two rows at `low` and the larger at `high`, as far as either is used later."""

    low: int
    high: int
    smaller: bool
    larger: bool


class Selection(NamedTuple):
    """A network whose rows at `kept` are, in any order, those without the smallest and the largest."""

    comparisons: tuple[Comparison, ...]
    kept: tuple[int, ...]

    @property
    def operations(self) -> int:
        """Number of vector operations: minima and maxima of two rows."""
        return sum(each.smaller + each.larger for each in self.comparisons)


@lru_cache(maxsize=64)
def select_middle(rows: int, cut: int) -> Selection:
    """Build the network that leaves out the `cut` smallest and the `cut` largest of `rows` values."""
    if not 0 <= 2 * cut < rows:
        raise ValueError(f"{cut} values at both ends cannot be left out of {rows}")
    candidates = (select_by_elimination(rows, cut), select_by_sorting(rows, cut))
    return min(candidates, key=lambda selection: selection.operations)


def select_by_elimination(rows: int, cut: int) -> Selection:
    """Drop the smallest and the largest of a pool, add a row, and repeat.

    Of n values that lose c at both ends, the smallest of n - c + 1 is one of the c smallest.
    """
    pairs: list[tuple[int, int]] = []
    pool = list(range(rows - cut + 1)) if cut else list(range(rows))
    waiting = list(range(len(pool), rows))
    for left in range(cut, 0, -1):
        halves = len(pool) // 2
        lows, highs, odd = pool[:halves], pool[halves : 2 * halves], pool[2 * halves :]
        pairs += zip(lows, highs, strict=True)
        smallest, *others = [*lows, *odd]
        pairs += [(smallest, other) for other in others]
        *others, largest = [*odd, *highs]
        pairs += [(other, largest) for other in others]
        pool = [row for row in pool if row not in (smallest, largest)]
        if left > 1:
            pool.append(waiting.pop(0))
    return Selection(_prune(pairs, pool), tuple(pool))


def select_by_sorting(rows: int, cut: int) -> Selection:
    """Sort by Batcher's odd-even merge sort, without comparisons that no middle position depends on."""
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
    kept = tuple(range(cut, rows - cut))
    return Selection(_prune(pairs, kept), kept)


def _prune(pairs: Sequence[tuple[int, int]], wanted: Sequence[int]) -> tuple[Comparison, ...]:
    """Leave out what no wanted row depends on."""
    used, kept = set(wanted), list[Comparison]()
    for low, high in reversed(pairs):
        if low in used or high in used:
            kept.append(Comparison(low, high, low in used, high in used))
            used |= {low, high}
    return tuple(reversed(kept))


def middle_blocks(
    rows: Tensor, cut: int, *, width: int = BLOCK_COLUMNS
) -> Iterator[tuple[slice, list[Values]]]:
    """Yield (columns, values without the `cut` smallest and largest, in any order) of every block.

    Blocks share buffers: use a block before requesting the next, and change none that is a row itself
    (`cut` = 0).
    """
    values, selection = rows.numpy(), select_middle(len(rows), cut)
    workspace = _Workspace(len(rows), min(width, max(rows.shape[1], 1)), values.dtype)
    for start in range(0, rows.shape[1], width):
        columns = slice(start, min(start + width, rows.shape[1]))
        yield columns, workspace.run(selection, list(values[:, columns]))


class _Workspace:
    """Buffers for the rows of a block; rows of the input are read in place and never written."""

    def __init__(self, rows: int, width: int, dtype: np.dtype[np.floating]) -> None:
        self.buffers = [np.empty(width, dtype) for _ in range(rows + _SPARE)]

    def run(self, selection: Selection, block: list[Values]) -> list[Values]:
        """Compare the rows of a block."""
        length = len(block[0])
        free = [buffer[:length] for buffer in self.buffers]
        own = [False] * len(block)
        for low, high, smaller, larger in selection.comparisons:
            one, other = block[low], block[high]
            if smaller and larger:
                below = free.pop()
                np.minimum(one, other, out=below)
                above = other if own[high] else one if own[low] else free.pop()
                np.maximum(one, other, out=above)
                if own[high] and own[low]:
                    free.append(one)
                block[low], block[high] = below, above
                own[low] = own[high] = True
            else:
                into = one if own[low] else other if own[high] else free.pop()
                (np.minimum if smaller else np.maximum)(one, other, out=into)
                if own[high] and own[low]:
                    free.append(other)
                place, unused = (low, high) if smaller else (high, low)
                block[place], own[place], own[unused] = into, True, False
        return [block[place] for place in selection.kept]
