"""Metrics of a ranking from two histograms of predicted probabilities: of positive and of negative samples.

Each value is exactly that of the probabilities rounded to their bins (samples in one bin are ties), and comes
with a width: the metric of the probabilities themselves differs from it by no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from unseen.calibration.histograms import Counts, Floats, count_bins, fraction_edges

MANY_CLASSES = 64
SPECIFICITY = 0.95


class Ranked(NamedTuple):
    """A metric of a ranking, and how far that of the unrounded probabilities can be from it."""

    value: float
    width: float


RankingMetric = Callable[[Counts, Counts], Ranked]
UNDEFINED = Ranked(math.nan, math.nan)


def ranking_edges(classes: int) -> Floats:
    """Return the edges of the histograms: 512 bins, or 64 for many classes, of which each has its own."""
    return fraction_edges(512 if classes <= MANY_CLASSES else 64)


def count_ranking(probabilities: Floats, targets: Counts) -> Counts:
    """Count each class's probability among samples that are of it and that are not: classes x 2 x bins."""
    classes = probabilities.shape[1]
    edges = ranking_edges(classes)
    found = np.zeros((classes, 2, len(edges) + 1), dtype=np.int64)
    for number in range(classes):
        own = targets == number
        found[number, 0] = count_bins(probabilities[own, number], edges)
        found[number, 1] = count_bins(probabilities[~own, number], edges)
    return found


def auroc(positives: Counts, negatives: Counts) -> Ranked:
    """Compute the area under the ROC curve: the chance that a positive sample ranks above a negative one."""
    pairs = float(positives.sum()) * float(negatives.sum())
    if not pairs:
        return UNDEFINED
    below = np.cumsum(negatives) - negatives
    tied = float((positives.astype(float) * negatives).sum()) / 2
    return Ranked((float((positives.astype(float) * below).sum()) + tied) / pairs, tied / pairs)


def average_precision(positives: Counts, negatives: Counts) -> Ranked:
    """Compute the area under the precision-recall curve as average precision, sum of (R_n - R_(n-1)) P_n.

    Within a bin that starts with a true and b false positives, the precision at its i-th positive is at
    least (a + i) / (a + i + b + n), with all n negatives before it, and at most (a + p) / (a + p + b).
    """
    total = int(positives.sum())
    if not total or not negatives.sum():
        return UNDEFINED
    value = low = high = 0.0
    true = false = 0
    filled = np.flatnonzero(positives + negatives)[::-1]
    for p, n in zip(positives[filled].tolist(), negatives[filled].tolist(), strict=True):
        if p:
            reached = true + np.arange(1, p + 1)
            value += p * (true + p) / (true + p + false + n)
            low += float((reached / (reached + false + n)).sum())
            high += p * (true + p) / (true + p + false)
        true, false = true + p, false + n
    return Ranked(value / total, max(high - value, value - low) / total)


def sensitivity_at_specificity(positives: Counts, negatives: Counts) -> Ranked:
    """Compute the largest sensitivity of a threshold whose specificity is at least 95 %."""
    if not positives.sum() or not negatives.sum():
        return UNDEFINED
    below = np.concatenate([[0], np.cumsum(negatives)]) / negatives.sum()
    above = np.concatenate([np.cumsum(positives[::-1])[::-1], [0]]) / positives.sum()
    first = int(np.argmax(below >= SPECIFICITY))
    return Ranked(float(above[first]), float(above[first - 1] - above[first]) if first else 0.0)


def over_classes(metric: RankingMetric, ranking: Counts) -> Ranked:
    """Average a metric over the classes, one against the rest; of two classes, the second alone.

    Classes without samples, and those that all samples are of, do not count.
    """
    chosen = ranking[1:] if len(ranking) == 2 else ranking
    found = [metric(positives, negatives) for positives, negatives in chosen]
    known = [each for each in found if not math.isnan(each.value)]
    if not known:
        return UNDEFINED
    return Ranked(
        sum(each.value for each in known) / len(known), sum(each.width for each in known) / len(known)
    )
