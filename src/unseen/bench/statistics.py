"""Statistics of repeated runs: means with standard errors, paired tests, expected accuracy on a new site.

Pure functions on numbers. A pair is two runs that differ only in the method (same held-out domain, same
seed); a pair with a missing or undefined run does not count and is reported as missing.

The t-test is that of `scipy.stats.ttest_rel`, computed with SciPy's t-distribution. Wilcoxon's test is
written here, because SciPy's is not exact where differences tie, and accuracies on few samples tie often: for
the differences 1, 1, 2, 2, 3, 3, -1, 4 its `exact` (SciPy 1.17) gives p = 0.0234 where enumerating all signs
gives 0.03125, as ours does, and with ties its default is an approximation from 14 pairs on. Holm's correction
is short and would otherwise need another dependency.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from unseen.report.formatting import format_value
from unseen.tasks import is_fraction, metric_bounds, metric_label

Key = TypeVar("Key", bound=Hashable)
Floats = npt.NDArray[np.float64]

LEVEL = 0.05
"""Significance level: a p-value below it is called significant."""
ROUNDING = 1e-12
"""Differences of fractions up to this size are rounding errors and count as zero."""


@dataclass(frozen=True)
class Estimate:
    """Mean of `count` values and its standard error, which is None for a single value."""

    mean: float
    error: float | None
    count: int


@dataclass(frozen=True)
class Comparison:
    """Paired comparison of a method with a baseline, not corrected for other comparisons.

    pairs        how many pairs there are
    missing      how many more there would be if no run were missing
    difference   mean of (method - baseline); NaN without pairs
    error        standard error of the difference
    low, high    interval that covers the true difference with 95 % confidence (t-distribution)
    t_p          two-sided p-value of the paired t-test; none below two pairs, or when all differences are
                 equal but not zero, where the test has no variance to use; 1 when all are zero
    wilcoxon_p   two-sided exact p-value of Wilcoxon's signed-rank test; 1 when all differences are zero
    effect_size  paired Cohen's d: mean of the differences divided by their std
    """

    pairs: int
    missing: int
    difference: float
    error: float | None = None
    low: float | None = None
    high: float | None = None
    t_p: float | None = None
    wilcoxon_p: float | None = None
    effect_size: float | None = None

    @property
    def same(self) -> bool:
        """Whether both runs of every pair gave the same value."""
        return self.pairs > 0 and self.difference == 0 and self.error in (None, 0.0)


def mean_and_error(values: Iterable[float]) -> Estimate | None:
    """Return mean and standard error (sample std / sqrt(count)); None without any value."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return None
    error = float(np.std(known, ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else None
    return Estimate(float(np.mean(known)), error, len(known))


def paired_comparison(ours: Mapping[Key, float], baseline: Mapping[Key, float]) -> Comparison:
    """Compare two methods over the keys (such as held-out domain and seed) for which both have a value."""
    either = list(dict.fromkeys([*ours, *baseline]))
    both = [key for key in either if _finite(ours.get(key)) and _finite(baseline.get(key))]
    differences = np.array([ours[key] - baseline[key] for key in both], dtype=np.float64)
    differences[np.abs(differences) < ROUNDING] = 0.0
    count, missing = len(both), len(either) - len(both)
    if count == 0:
        return Comparison(0, missing, math.nan)
    mean = float(differences.mean())
    if not differences.any():
        tested = 1.0 if count > 1 else None
        return Comparison(count, missing, 0.0, 0.0 if count > 1 else None, t_p=tested, wilcoxon_p=tested)
    if count == 1:
        return Comparison(1, missing, mean)
    ranked = wilcoxon_p_value(differences)
    deviation = float(differences.std(ddof=1))
    if deviation < ROUNDING:
        return Comparison(count, missing, mean, 0.0, wilcoxon_p=ranked)
    from scipy.special import stdtr

    error = deviation / math.sqrt(count)
    reach = t_quantile(count - 1) * error
    return Comparison(
        pairs=count,
        missing=missing,
        difference=mean,
        error=error,
        low=mean - reach,
        high=mean + reach,
        t_p=float(2 * stdtr(count - 1, -abs(mean / error))),
        wilcoxon_p=ranked,
        effect_size=mean / deviation,
    )


def wilcoxon_p_value(differences: Sequence[float] | Floats) -> float:
    """Compute the two-sided p-value of Wilcoxon's signed-rank test, exact also where differences tie.

    Ties are common, since accuracies on few samples take few values. Zeros are left out (Wilcoxon's own
    rule), ties share their mean rank, and the sum of positive ranks is compared with its distribution over
    all assignments of signs, which is built up rank by rank. Ranks are doubled to keep them whole numbers.
    """
    moved = np.asarray([value for value in differences if value != 0], dtype=np.float64)
    if not len(moved):
        return 1.0
    sizes = np.round(np.abs(moved), 12)
    doubled = np.array([2 * np.sum(sizes < size) + np.sum(sizes == size) + 1 for size in sizes])
    chance = np.zeros(int(doubled.sum()) + 1)
    chance[0] = 1.0
    for rank in doubled:
        chance[rank:] = (chance[rank:] + chance[:-rank]) / 2
        chance[:rank] /= 2
    seen = int(doubled[moved > 0].sum())
    tail = min(chance[: seen + 1].sum(), chance[seen:].sum())
    return float(min(1.0, 2 * tail))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Apply Holm's correction for multiple comparisons; entries that are None stay None.

    The smallest of m is multiplied by m, the next by m - 1, and so on, and none may be below the one before.
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for step, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - step)))
        corrected[place] = highest
    return corrected


def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """Return how many standard errors to either side cover all but `level` of a t-distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - level / 2))


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


ASSUMPTION = (
    "It holds if the new site is to these domains what they are to one another: as if it had been drawn at "
    "random from the same kind of places. The folds share training data, so the interval is a little too "
    "narrow; a model trained on all domains sees one more than each of these did."
)


@dataclass(frozen=True)
class Expected:
    """Expected accuracy on a new site.

    domains              number of held-out domains it is estimated from
    mean                 mean over them
    low, high            95 % confidence interval of the mean over all sites of that kind; None for one domain
    site_low, site_high  95 % prediction interval of a single new site: much wider, since sites differ
    """

    metric: str
    domains: int
    mean: float
    low: float | None = None
    high: float | None = None
    site_low: float | None = None
    site_high: float | None = None


def expected_accuracy(
    by_domain: Mapping[str, Sequence[float]], *, metric: str = "accuracy"
) -> Expected | None:
    """Estimate the accuracy on a new site from the values (one per seed) of each held-out domain.

    Student's t over n domains: mean +- t s / sqrt(n) for the mean, mean +- t s sqrt(1 + 1 / n) for one site.
    """
    means = [found.mean for values in by_domain.values() if (found := mean_and_error(values)) is not None]
    if not means:
        return None
    mean, count = float(np.mean(means)), len(means)
    if count == 1:
        return Expected(metric, 1, mean)
    reach = t_quantile(count - 1) * float(np.std(means, ddof=1))
    of_mean, of_site = reach / math.sqrt(count), reach * math.sqrt(1 + 1 / count)
    least, most = metric_bounds(metric)
    return Expected(
        metric=metric,
        domains=count,
        mean=mean,
        low=max(least, mean - of_mean),
        high=min(most, mean + of_mean),
        site_low=max(least, mean - of_site),
        site_high=min(most, mean + of_site),
    )


def expectation_sentence(expected: Expected, method: str) -> str:
    """Describe the expected accuracy of a method in one or two sentences."""
    value, metric = format_value(expected.mean, expected.metric), expected.metric
    shown = value if is_fraction(metric) else f"{metric_label(metric)} {value}"
    if expected.low is None or expected.high is None:
        return (
            f"{method}: {shown} on the only held-out domain. One domain cannot say how much sites differ, "
            "so there is no interval for a new one."
        )
    wide = "" if expected.domains >= 4 else f" With only {expected.domains} domains this is very uncertain."
    return (
        f"{method}: expect {shown} on a new site, the mean over {expected.domains} held-out domains; "
        f"the mean over all such sites lies between {format_value(expected.low, metric)} and "
        f"{format_value(expected.high, metric)} with 95 % confidence, a single new site between "
        f"{format_value(expected.site_low, metric)} and {format_value(expected.site_high, metric)}.{wide}"
    )
