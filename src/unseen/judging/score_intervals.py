"""Metrics with intervals of 95 %, of one site or of all together, from the same sums.

No interval needs a sample: proportions follow Wilson, areas under the ROC curve DeLong, means their standard
errors; a metric of a histogram or of a confusion matrix is computed again for 1000 tables drawn from it,
which is the bootstrap over the samples.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import numpy as np

from unseen.calibration.histograms import Counts, Floats
from unseen.judging.paired_tests import Z95
from unseen.judging.ranking_curves import CURVES
from unseen.seeding import numpy_generator
from unseen.tasks.accumulators import ClassificationAccumulator, RegressionAccumulator
from unseen.tasks.detail_accumulators import DetailAccumulator
from unseen.tasks.detail_metrics import Detail

DRAWS = 1000
ACROSS = "auroc_across_sites"
"""The area when samples of all sites are ranked together, beside the one within sites."""


class Score(NamedTuple):
    """A metric's value, its interval, and its width where it comes from a histogram (else 0)."""

    value: float
    low: float
    high: float
    width: float = 0.0

    def scaled_by(self, factor: float) -> Score:
        """Convert to a unit that is `factor` times as fine."""
        return Score(*(factor * each for each in self))


Scores = dict[str, Score]
UNKNOWN = Score(math.nan, math.nan, math.nan)


def compute_scores(sums: DetailAccumulator) -> Scores:
    """Compute every metric of a model from its sums; the area is that of the histogram."""
    if isinstance(sums.plain, ClassificationAccumulator):
        return _class_scores(sums, sums.plain)
    return _value_scores(sums, cast(RegressionAccumulator, sums.plain))


def _class_scores(sums: DetailAccumulator, plain: ClassificationAccumulator) -> Scores:
    found, count = sums.details(), sums.count
    confusion = plain.confusion.numpy()
    right = int(confusion.diagonal().sum())
    drawn = _draw(confusion.reshape(-1), "confusion").reshape(DRAWS, *confusion.shape)
    scores = {"accuracy": wilson(right, count)}
    for name, repeat in (("balanced_accuracy", _balance), ("macro_f1", _macro_f1)):
        scores[name] = _percentiles(found, name, repeat(drawn))
    scores |= _ranking_scores(found, sums.sums["ranking"])
    scores["ece"] = _calibration_score(found, sums.sums["reliability_after"])
    for place, name in ((1, "brier"), (0, "nll")):
        total, square = (float(sums.sums[key][place]) for key in ("proper_after", "squares_after"))
        scores[name] = mean_score(total, square, count, low=0.0)
    return scores


def _value_scores(sums: DetailAccumulator, plain: RegressionAccumulator) -> Scores:
    """Compute the metrics of values; R2 and RMSE have intervals by the delta method, r by Fisher's z."""
    count, metrics, found = sums.count, plain.metrics(), sums.details().values
    scale = float(plain.scale)
    _, t, _, tt, _, _, square = plain.moments.tolist()
    fourth, square_t, square_tt, ttt, tttt = sums.sums["powers"].tolist()
    mean = t / max(count, 1)
    spread, error = tt / max(count, 1) - mean**2, square / max(count, 1)
    # second moments, about the mean of the truth, of squared errors and squared deviations
    squares = fourth / count - error**2
    crossed = (square_tt - 2 * mean * square_t + mean**2 * square) / count - error * spread
    deviations = (tttt - 4 * mean * ttt + 6 * mean**2 * tt - 3 * count * mean**4) / count - spread**2
    scores = {"mae": mean_score(float(sums.sums["absolute"][0]), square, count, low=0.0).scaled_by(scale)}
    scores["rmse"] = root_score(error, squares, count).scaled_by(scale)
    r2 = found["r2"]
    if math.isnan(r2):
        scores["r2"] = UNKNOWN
    else:
        ratio = error / spread
        variance = (squares - 2 * ratio * crossed + ratio**2 * deviations) / spread**2 / count
        reach = Z95 * math.sqrt(max(variance, 0.0))
        scores["r2"] = Score(r2, r2 - reach, min(r2 + reach, 1.0))
    scores["pearson_r"] = _fisher(metrics["pearson_r"], count)
    return scores


def _fisher(value: float, count: int) -> Score:
    if math.isnan(value) or count < 4:
        return Score(value, math.nan, math.nan)
    middle, reach = math.atanh(min(max(value, -1 + 1e-15), 1 - 1e-15)), Z95 / math.sqrt(count - 3)
    return Score(value, math.tanh(middle - reach), math.tanh(middle + reach))


def wilson(right: int, count: int) -> Score:
    """Compute a proportion with Wilson's interval."""
    if not count:
        return UNKNOWN
    share, square = right / count, Z95**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    reach = Z95 / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    return Score(share, max(middle - reach, 0.0), min(middle + reach, 1.0))


def area_score(area: float, variance: float, smaller: int) -> Score:
    """Compute an area with DeLong's interval on the scale of log-odds, which stays between 0 and 1.

    smaller  samples of the smaller side; with no pair out of order DeLong's variance is 0, and the interval
             is that of as many successes without a failure
    """
    if math.isnan(area) or math.isnan(variance):
        return UNKNOWN
    if not 0 < area < 1 or variance <= 0:
        bound = 0.025 ** (1 / max(smaller, 1))
        return Score(area, min(area, bound) if area > 0.5 else 0.0, 1.0 if area > 0.5 else 1 - bound)
    middle = math.log(area / (1 - area))
    reach = Z95 * math.sqrt(variance) / (area * (1 - area))
    low, high = (1 / (1 + math.exp(min(-(middle + side * reach), 700.0))) for side in (-1, 1))
    return Score(area, low, high)


def mean_score(total: float, squares: float, count: int, *, low: float = -math.inf) -> Score:
    """Compute a mean from the sums of values and of their squares; `low` bounds the interval."""
    if not count:
        return UNKNOWN
    mean = total / count
    reach = Z95 * math.sqrt(max(squares / count - mean**2, 0.0) / max(count - 1, 1))
    return Score(mean, max(mean - reach, low), mean + reach)


def root_score(mean: float, variance: float, count: int) -> Score:
    """Compute the root of a mean, such as of squared errors, with the delta method."""
    root = math.sqrt(mean)
    reach = Z95 * math.sqrt(max(variance, 0.0) / count) / (2 * root) if root > 0 else 0.0
    return Score(root, max(root - reach, 0.0), root + reach)


def _ranking_scores(found: Detail, ranking: Counts) -> Scores:
    """Average the classes' values and the ends of their intervals, which is cautious: errors may differ."""
    chosen = ranking[1:] if len(ranking) == 2 else ranking
    usable = [pair for pair in chosen if pair[0].sum() and pair[1].sum()]
    ends: dict[str, list[Floats]] = {name: [] for name in CURVES}
    for number, pair in enumerate(usable):
        filled = pair.sum(axis=0) > 0
        positives, negatives = (_draw(each[filled], number, side) for side, each in enumerate(pair))
        for name, curve in CURVES.items():
            ends[name].append(np.percentile(curve(positives, negatives), (2.5, 97.5)))
    scores = {}
    for name, pairs in ends.items():
        value, width = found.values[name], found.widths.get(name, 0.0)
        low, high = np.mean(pairs, axis=0).tolist() if pairs else (math.nan, math.nan)
        scores[name] = Score(value, min(low, value), max(high, value), width) if pairs else UNKNOWN
    return scores


def with_exact(score: Score, value: float) -> Score:
    """Replace the value of a histogram by the exact one, and move the interval with it."""
    if math.isnan(value) or math.isnan(score.value):
        return UNKNOWN
    low, high = (min(max(end + value - score.value, 0.0), 1.0) for end in (score.low, score.high))
    return Score(value, low, high)


def _calibration_score(found: Detail, sums: Floats) -> Score:
    """Draw bins of confidence and right answers anew; the interval is mirrored, as the error is biased."""
    value = found.values["ece"]
    count, confidence, right = sums
    if not count.sum():
        return UNKNOWN
    drawn = _draw(np.concatenate([right, count - right]), "ece").reshape(DRAWS, 2, -1)
    per_sample = np.divide(confidence, count, out=np.zeros_like(confidence), where=count > 0)
    errors = np.abs(drawn[:, 0] - drawn.sum(axis=1) * per_sample).sum(axis=1) / count.sum()
    high, low = np.percentile(errors, (2.5, 97.5)).tolist()
    return Score(value, max(min(2 * value - low, value), 0.0), min(max(2 * value - high, value), 1.0))


def _draw(counts: Floats | Counts, *names: str | int) -> Floats:
    """Draw tables of as many samples, each sample from the table's own cells."""
    whole = np.round(counts).astype(np.int64)
    samples = int(whole.sum())
    filled = np.flatnonzero(whole)
    drawn = np.zeros((DRAWS, len(whole)))
    if samples:
        generator = numpy_generator(0, "judge", *names)
        drawn[:, filled] = generator.multinomial(samples, whole[filled] / samples, size=DRAWS)
    return drawn


def _balance(drawn: Floats) -> Floats:
    total = drawn.sum(axis=2)
    right = drawn.diagonal(axis1=1, axis2=2)
    recall = np.divide(right, total, out=np.zeros_like(total), where=total > 0)
    return cast(Floats, recall.sum(axis=1) / np.maximum((total > 0).sum(axis=1), 1))


def _macro_f1(drawn: Floats) -> Floats:
    total = drawn.sum(axis=1) + drawn.sum(axis=2)
    right = 2 * drawn.diagonal(axis1=1, axis2=2)
    each = np.divide(right, total, out=np.zeros_like(total), where=total > 0)
    return cast(Floats, each.sum(axis=1) / np.maximum((total > 0).sum(axis=1), 1))


def _percentiles(found: Detail, name: str, repeated: Any) -> Score:
    low, high = np.percentile(repeated, (2.5, 97.5)).tolist()
    value = found.values[name]
    return Score(value, min(low, value), max(high, value))
