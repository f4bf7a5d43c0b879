"""Histograms with fixed edges, so that those of several clients add up, and the quantiles they give.

Numbers between 0 and 1 (probabilities, conformal scores) are counted in bins of equal width in log-odds,
because they crowd at both ends; errors of quantities in bins of equal ratio. A quantile is the upper edge of
its bin: it is never too small, and too large by at most the bin's width.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = npt.NDArray[np.int64]
FARTHEST_LOG_ODDS = 16.0
SCORE_BINS, ERROR_BINS = 2048, 2000


def fraction_edges(bins: int) -> Floats:
    """Return the inner edges of bins on (0, 1), evenly spaced in log-odds from -16 to 16."""
    edges: Floats = 1 / (1 + np.exp(-np.linspace(-FARTHEST_LOG_ODDS, FARTHEST_LOG_ODDS, bins - 1)))
    return edges


SCORE_EDGES = fraction_edges(SCORE_BINS)
"""Inner edges of conformal scores of classes; no bin is wider than 0.004."""
ERROR_EDGES: Floats = np.logspace(-5, 5, ERROR_BINS - 1)
"""Inner edges of absolute errors in units of the (standardized) target; neighbours differ by 1.2 %."""


def count_bins(values: npt.NDArray[Any], edges: Floats) -> Counts:
    """Count values per bin; bin b holds edges[b - 1] <= value < edges[b], NaN is in the last."""
    bins = np.searchsorted(edges, values.reshape(-1), side="right")
    return np.bincount(bins, minlength=len(edges) + 1).astype(np.int64)


def quantile_bin(counts: Counts, promise: float) -> int:
    """Return the bin of the ceil((n + 1) * promise)-th smallest value, the conformal quantile of n values.

    With fewer values than that rank, no finite threshold keeps the promise: the last bin.
    """
    samples = int(counts.sum())
    rank = math.ceil((samples + 1) * promise - 1e-9)
    last = len(counts) - 1
    return last if rank > samples else int(np.searchsorted(np.cumsum(counts), rank))


def coverage_at(counts: Counts, bin: int) -> float:
    """Return the fraction of values up to and including a bin; NaN without values."""
    samples = int(counts.sum())
    return float(counts[: bin + 1].sum()) / samples if samples else math.nan


def upper_edge(edges: Floats, bin: int) -> float | None:
    """Return the value below which a bin and those before it lie; None for the last, which has no end."""
    return float(edges[bin]) if bin < len(edges) else None


def to_sparse(counts: Counts) -> list[list[int]]:
    """Return the bins that are not empty, as [bin, count], for JSON."""
    filled = np.flatnonzero(counts)
    return [[int(bin), int(counts[bin])] for bin in filled]


def from_sparse(pairs: list[list[int]], bins: int) -> Counts:
    """Read what `to_sparse` returned."""
    counts = np.zeros(bins, dtype=np.int64)
    for bin, count in pairs:
        counts[bin] = count
    return counts
