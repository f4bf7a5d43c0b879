"""Whole numbers from shares: how many samples each taker gets so that none is lost or dealt twice."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import Indices


def apportion(
    total: int,
    shares: npt.NDArray[np.float64],
    *,
    generator: np.random.Generator,
    at_least: Indices | None = None,
) -> Indices:
    """Divide `total` by `shares` (they sum to 1), each taker within one of its exact quota.

    The largest remainders are rounded up, equal ones in random order. Takers promised `at_least` some
    are served first, at the cost of those farthest above their quota.
    """
    quotas = total * shares
    counts = np.floor(quotas + 1e-9).astype(np.int64)
    promised = np.zeros(len(shares), dtype=np.int64) if at_least is None else at_least
    counts = np.maximum(counts, promised)
    lottery = generator.permutation(len(shares))
    missing = total - int(counts.sum())
    if missing > 0:
        order = np.lexsort((lottery, np.round(counts - quotas, 9)))
        counts[order[:missing]] += 1
    while missing < 0:
        order = np.lexsort((lottery, np.round(quotas - counts, 9)))
        givers = order[counts[order] > promised[order]][:-missing]
        if not len(givers):
            raise ValueError(f"{total} cannot give every taker what it was promised")
        counts[givers] -= 1
        missing += len(givers)
    return counts
