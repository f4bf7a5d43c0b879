"""Reliability of predicted probabilities: how often an answer of a given confidence is right."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from unseen.calibration.histograms import Counts, Floats

BINS = 15


def log_softmax(logits: Floats) -> Floats:
    """Compute the logarithms of probabilities without overflow."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def reliability_sums(probabilities: Floats, targets: Counts) -> Floats:
    """Sum per bin of confidence (3 x 15): samples, their confidence, and right answers.

    The confidence is the probability of the likeliest class; bin b holds b/15 < confidence <= (b + 1)/15.
    """
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == targets
    known = np.nan_to_num(confidence)
    bins = np.clip(np.ceil(known * BINS).astype(int) - 1, 0, BINS - 1)
    rows = [np.bincount(bins, weights=each, minlength=BINS) for each in (np.ones_like(known), known, right)]
    return np.stack(rows)


def proper_scores(log_probabilities: Floats, targets: Counts) -> Floats:
    """Sum the negative log-likelihood and the Brier score (squared distance to the one-hot truth)."""
    probabilities = np.exp(log_probabilities)
    rows = np.arange(len(targets))
    truth = log_probabilities[rows, targets]
    brier = (probabilities**2).sum(axis=1) - 2 * probabilities[rows, targets] + 1
    return np.array([-truth.sum(), brier.sum()])


def expected_calibration_error(sums: Floats) -> float:
    """Compute the mean over samples of |accuracy - confidence| of their bin (ECE, 15 bins of equal width)."""
    samples = sums[0].sum()
    return float(np.abs(sums[2] - sums[1]).sum() / samples) if samples else math.nan


def describe_reliability(sums: Floats, proper: Floats) -> dict[str, Any]:
    """Describe calibration for the records: ECE, Brier, NLL, and the bins of the reliability diagram."""
    samples = float(sums[0].sum())
    return {
        "ece": expected_calibration_error(sums),
        "brier": float(proper[1]) / samples if samples else math.nan,
        "nll": float(proper[0]) / samples if samples else math.nan,
        "bins": [[int(count), float(confidence), int(right)] for count, confidence, right in sums.T.tolist()],
    }
