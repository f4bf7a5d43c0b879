"""Expected accuracy without labels: average thresholded confidence, from histograms of confidence.

Garg, Balakrishnan, Lipton, Neyshabur, Sedghi: "Leveraging Unlabeled Data to Predict Out-of-Distribution
Performance" (ICLR 2022). The threshold is the confidence below which the sources have as many samples as they
have wrong answers; the accuracy at a new site is estimated as the fraction of its samples above.

The model trained on its sources, so there the threshold is right and elsewhere mostly too kind. Where runs of
the same training left out one source each, they say by how much: the mean difference of estimated and true
accuracy in log-odds, so that a correction is large where accuracies are middling and small near 100 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from unseen.calibration.histograms import SCORE_EDGES, Counts, Floats, count_bins

NORMAL_95 = 1.959964


def confidence_sums(probabilities: Floats, targets: Counts) -> Counts:
    """Count the likeliest class's probability among wrong and among right answers (2 x bins)."""
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == targets
    return np.stack([count_bins(confidence[right == wanted], SCORE_EDGES) for wanted in (False, True)])


def accuracy_of(confidence: Counts) -> float:
    """Return the fraction of right answers; NaN without samples."""
    samples = int(confidence.sum())
    return float(confidence[1].sum()) / samples if samples else math.nan


def threshold_bin(confidence: Counts) -> int:
    """Return the first bin above the threshold: as many samples below as there are wrong answers.

    Of the two bins between which that number falls, the one that comes closer.
    """
    below = np.concatenate([[0], np.cumsum(confidence.sum(axis=0))])
    return int(np.argmin(np.abs(below - confidence[0].sum())))


def fraction_above(confidence: Counts, bin: int) -> float:
    """Estimate the accuracy of samples by the fraction of them from a bin on; NaN without samples."""
    counts = over_answers(confidence)
    samples = int(counts.sum())
    return float(counts[bin:].sum()) / samples if samples else math.nan


def over_answers(confidence: Counts) -> Counts:
    """Add up wrong and right answers; without labels there is one row already."""
    return confidence.sum(axis=0) if confidence.ndim == 2 else confidence


class AccuracyEstimate(NamedTuple):
    """Accuracy estimated without labels, and the interval around it."""

    accuracy: float
    low: float
    high: float


def left_out_errors(
    sources: Mapping[str, Counts], outside: Mapping[str, Counts] | None = None
) -> dict[str, float]:
    """Return estimated minus true accuracy: of each source by the others' threshold, and on other domains.

    outside  domains that the model did not train on, estimated by the threshold of all sources
    """
    known = {name: counts for name, counts in sources.items() if counts.sum()}
    if not known:
        return {}
    total = np.sum(list(known.values()), axis=0)
    errors = {}
    if len(known) > 1:
        for name, own in known.items():
            errors[name] = fraction_above(own, threshold_bin(total - own)) - accuracy_of(own)
    for name, own in (outside or {}).items():
        if own.sum():
            errors[name] = fraction_above(own, threshold_bin(total)) - accuracy_of(own)
    return errors


SMALLEST_FRACTION = 0.005
"""Accuracies nearer than this to 0 or 1 count as this far away in log-odds."""


def log_odds(accuracy: float) -> float:
    """Compute log(a / (1 - a)), bounded."""
    bounded = min(max(accuracy, SMALLEST_FRACTION), 1 - SMALLEST_FRACTION)
    return math.log(bounded / (1 - bounded))


def find_shift(points: Sequence[tuple[float, float]]) -> float:
    """Average the log-odds of estimates less those of the true accuracies, over (estimate, truth)."""
    return sum(log_odds(estimate) - log_odds(truth) for estimate, truth in points) / len(points)


def correct_accuracy(estimate: float, shift: float) -> float:
    """Take a shift of log-odds from an estimate; without a shift it stays as it is."""
    return 1 / (1 + math.exp(shift - log_odds(estimate))) if shift else estimate


def estimate_accuracy(
    confidence: Counts, bin: int, errors: Mapping[str, float], *, shift: float = 0.0
) -> AccuracyEstimate:
    """Estimate the accuracy of samples from the histogram of their confidence.

    The interval is the largest leave-one-source-out error, plus what so many samples leave open.

    bin     the threshold's
    errors  of `left_out_errors`
    shift   of `find_shift`, where there were runs to find it
    """
    counts = over_answers(confidence)
    estimate = correct_accuracy(fraction_above(counts, bin), shift)
    worst = max((abs(error) for error in errors.values()), default=0.0)
    noise = NORMAL_95 * math.sqrt(estimate * (1 - estimate) / int(counts.sum()))
    half = worst + noise
    return AccuracyEstimate(estimate, max(estimate - half, 0.0), min(estimate + half, 1.0))
