"""Rankings with the covariances of their areas, and paired tests between two models on the same samples.

A site computes DeLong's placement values and keeps them: areas and covariances leave it, one number per class
and pair of models. Sites share no samples, so nothing else is needed to combine them: see `combine_areas`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from unseen.calibration.histograms import Counts, Floats
from unseen.judging.ranking_curves import average_precisions, rank_scores, sensitivities

Z95 = 1.959963984540054
"""The quantile of the normal distribution for intervals of 95 %."""


class Rankings(NamedTuple):
    """Metrics of rankings at one site; the last row is the mean over the classes that have one.

    areas       under the ROC curve, (classes + 1) x models; NaN where there are too few samples
    covariance  of the areas, (classes + 1) x models x models
    precision, sensitivity  average precision, and sensitivity at 95 % specificity; like `areas`
    counts      classes x 2: samples of the class, and others
    """

    areas: Floats
    covariance: Floats
    precision: Floats
    sensitivity: Floats
    counts: Counts


def ranked_classes(classes: int) -> tuple[int, ...]:
    """Return the classes that are ranked against the rest: of two, the second alone."""
    return (1,) if classes == 2 else tuple(range(classes))


def find_rankings(scores: Sequence[Floats], targets: Counts, *, least: int) -> Rankings:
    """Compute the metrics of every class against the rest, and what DeLong's test needs.

    scores  per model, samples x classes
    least   fewest samples, of a class and of the others, that a number may rest on; at least two
    """
    chosen, least = ranked_classes(scores[0].shape[1]), max(least, 2)
    models, samples = len(scores), len(targets)
    areas, precision, sensitivity = (np.full((len(chosen) + 1, models), np.nan) for _ in range(3))
    covariance = np.full((len(chosen) + 1, models, models), np.nan)
    counts = np.zeros((len(chosen), 2), dtype=np.int64)
    total, found = np.zeros((models, samples)), 0
    for row, number in enumerate(chosen):
        own = targets == number
        counts[row] = own.sum(), samples - own.sum()
        if counts[row].min() < least:
            continue
        pairs = [find_influences(each[:, number], own) for each in scores]
        areas[row] = [area for area, _ in pairs]
        influences = np.stack([influence for _, influence in pairs])
        covariance[row] = _products(influences)
        ranked = [rank_scores(each[:, number], own) for each in scores]
        precision[row] = [float(average_precisions(*each)[0]) for each in ranked]
        sensitivity[row] = [float(sensitivities(*each)[0]) for each in ranked]
        total, found = total + influences, found + 1
    if found:
        for table in (areas, precision, sensitivity):
            table[-1] = np.nanmean(table[:-1], axis=0)
        covariance[-1] = _products(total / found)
    return Rankings(areas, covariance, precision, sensitivity, counts)


def find_influences(scores: Floats, positive: npt.NDArray[np.bool_]) -> tuple[float, Floats]:
    """Compute an area, and per sample the share that its placement has in the area's error.

    The products of two models' shares sum up to DeLong's covariance of their areas (Biometrics 44, 1988).
    """
    above, below = scores[positive], scores[~positive]
    m, n = len(above), len(below)
    over_negatives = _placements(above, below)
    under_positives = 1 - _placements(below, above)
    area = float(over_negatives.sum()) / m
    shares = np.empty(len(scores))
    shares[positive] = (over_negatives - area) / math.sqrt(m * (m - 1))
    shares[~positive] = (under_positives - area) / math.sqrt(n * (n - 1))
    return area, shares


def _placements(scores: Floats, others: Floats) -> Floats:
    """Compute the fraction of the others below each score, ties counted half."""
    ordered = np.sort(others)
    ranks = np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right")
    result: Floats = ranks / (2 * len(others))
    return result


def _products(shares: Floats) -> Floats:
    """Sum the products of every two models' shares; without BLAS, whose order of sums is not fixed."""
    models = len(shares)
    return np.array([[(shares[a] * shares[b]).sum() for b in range(models)] for a in range(models)])


class Stratum(NamedTuple):
    """One site's area per model, their covariance, and the weight of the site."""

    areas: Floats
    covariance: Floats
    weight: float


def combine_areas(strata: Sequence[Stratum]) -> Stratum | None:
    """Average areas within sites, weighted by samples; None if no site has any.

    Samples of different sites are not compared: a site whose scores are all higher changes nothing.
    """
    known = [each for each in strata if np.isfinite(each.areas).all()]
    total = sum(each.weight for each in known)
    if not known:
        return None
    shares = [each.weight / total for each in known]
    areas = sum((share * each.areas for share, each in zip(shares, known, strict=True)), np.zeros(()))
    covariance = sum(
        (share**2 * each.covariance for share, each in zip(shares, known, strict=True)), np.zeros(())
    )
    return Stratum(np.asarray(areas), np.asarray(covariance), total)


class PairedTest(NamedTuple):
    """A test between two models: the second's value minus the first's, its interval, and the p-value.

    p_value is NaN where nothing can be tested
    """

    difference: float
    low: float
    high: float
    p_value: float

    def scaled_by(self, factor: float) -> PairedTest:
        """Convert the difference to a unit that is `factor` times as fine."""
        difference, low, high = (factor * each for each in self[:3])
        return PairedTest(difference, low, high, self.p_value)


UNTESTED = PairedTest(math.nan, math.nan, math.nan, math.nan)


def delong_test(found: Stratum | None) -> PairedTest:
    """Test whether two models have the same area."""
    if found is None or not np.isfinite(found.covariance).all():
        return UNTESTED
    difference = float(found.areas[1] - found.areas[0])
    covariance = found.covariance
    variance = float(covariance[0, 0] + covariance[1, 1] - covariance[0, 1] - covariance[1, 0])
    return normal_test(difference, variance)


def normal_test(difference: float, variance: float) -> PairedTest:
    """Compare a difference with its standard error; without any error only no difference is tested, p = 1."""
    error = math.sqrt(max(variance, 0.0))
    if error < 1e-12:
        return PairedTest(difference, difference, difference, 1.0 if abs(difference) < 1e-12 else math.nan)
    p_value = math.erfc(abs(difference) / error / math.sqrt(2))
    return PairedTest(difference, difference - Z95 * error, difference + Z95 * error, p_value)


def mcnemar_test(worse: int, better: int, samples: int) -> PairedTest:
    """Compare two models by the samples that one alone has right: the exact test, a fair coin.

    worse   samples that only the first model has right
    better  samples that only the second has right
    """
    if not samples:
        return UNTESTED
    different, least = worse + better, min(worse, better)
    p_value = 1.0
    if different:
        tail = sum(math.comb(different, count) for count in range(least + 1))
        p_value = min(1.0, 2 * tail / 2**different)
    difference = (better - worse) / samples
    error = math.sqrt(max(different / samples - difference**2, 0.0) / samples)
    return PairedTest(
        difference, max(difference - Z95 * error, -1.0), min(difference + Z95 * error, 1.0), p_value
    )


def paired_mean_test(total: float, squares: float, samples: int) -> PairedTest:
    """Compare the mean of differences per sample with zero (paired t-test), from their sum and squares."""
    from scipy.stats import t

    if samples < 2:
        return UNTESTED
    mean = total / samples
    error = math.sqrt(max(squares - samples * mean**2, 0.0) / (samples - 1) / samples)
    if error < 1e-12 * max(abs(mean), 1e-300):
        return normal_test(mean, 0.0)
    reach = float(t.ppf(0.975, samples - 1)) * error
    p_value = float(2 * t.sf(abs(mean) / error, samples - 1))
    return PairedTest(mean, mean - reach, mean + reach, p_value)
