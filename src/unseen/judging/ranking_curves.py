"""Metrics of rankings, of many pairs of histograms at once: what `calibration.ranking` computes for one.

A histogram with a bin per different score gives the exact metric of the scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt

from unseen.calibration.histograms import Floats
from unseen.calibration.ranking import SPECIFICITY

Curve = Callable[[Floats, Floats], Floats]
"""Computes a metric per pair of histograms (pairs x bins) of positive and of negative samples."""


def areas(positives: Floats, negatives: Floats) -> Floats:
    """Compute areas under ROC curves."""
    below = np.cumsum(negatives, axis=1) - negatives / 2
    pairs = positives.sum(axis=1) * negatives.sum(axis=1)
    return cast(Floats, (positives * below).sum(axis=1) / pairs)


def average_precisions(positives: Floats, negatives: Floats) -> Floats:
    """Compute average precisions."""
    true, false = (np.cumsum(each[:, ::-1], axis=1)[:, ::-1] for each in (positives, negatives))
    precision = true / np.maximum(true + false, 1)
    return cast(Floats, (positives * precision).sum(axis=1) / positives.sum(axis=1))


def sensitivities(positives: Floats, negatives: Floats) -> Floats:
    """Compute the largest sensitivities of thresholds whose specificity is at least 95 %."""
    below = np.cumsum(negatives, axis=1) / negatives.sum(axis=1, keepdims=True)
    last = (below >= SPECIFICITY).argmax(axis=1)  # the last bin below the threshold
    missed = np.cumsum(positives, axis=1)[np.arange(len(last)), last]
    return cast(Floats, 1 - missed / positives.sum(axis=1))


CURVES: dict[str, Curve] = {
    "auroc": areas,
    "auprc": average_precisions,
    "sensitivity_at_specificity_95": sensitivities,
}


def rank_scores(scores: Floats, positive: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Count positive and negative samples per different score, each as one row."""
    bins, place = np.unique(scores, return_inverse=True)
    counted = (np.bincount(place[own], minlength=len(bins)) for own in (positive, ~positive))
    above, below = (each[None].astype(np.float64) for each in counted)
    return above, below
