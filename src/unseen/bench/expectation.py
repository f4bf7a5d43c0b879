"""The accuracy to expect at a site that none of the data comes from, from the leave-one-domain-out folds.

Every held-out domain is one draw of "a new site"; seeds only repeat the draw. So the seeds of a domain are
averaged first, and the interval comes from the spread between domains alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unseen.bench.statistics import mean_and_error, t_quantile
from unseen.report.wording import is_share, metric_name, number

ASSUMPTION = (
    "It holds if the new site is to these domains what they are to one another: as if it had been drawn at "
    "random from the same kind of places. The folds share training data, so the interval is a little too "
    "narrow; a model trained on all domains sees one more than each of these did."
)
BOUNDS = {"pearson_r": (-1.0, 1.0)}


@dataclass(frozen=True)
class Expected:
    """What to expect on a new site.

    domains              how many held-out domains it rests on
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
    """Expected accuracy on a new site from each held-out domain's values (one a seed); None without any.

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
    least, most = (0.0, 1.0) if is_share(metric) else BOUNDS.get(metric, (-math.inf, math.inf))
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
    """Say what the numbers mean."""
    value, metric = number(expected.mean, expected.metric), expected.metric
    told = value if is_share(metric) else f"{metric_name(metric)} {value}"
    if expected.low is None or expected.high is None:
        return (
            f"{method}: {told} on the only held-out domain. One domain cannot say how much sites differ, "
            "so there is no interval for a new one."
        )
    wide = "" if expected.domains >= 4 else f" With only {expected.domains} domains this is very uncertain."
    return (
        f"{method}: expect {told} on a new site, the mean over {expected.domains} held-out domains; "
        f"the mean over all such sites lies between {number(expected.low, metric)} and "
        f"{number(expected.high, metric)} with 95 % confidence, a single new site between "
        f"{number(expected.site_low, metric)} and {number(expected.site_high, metric)}.{wide}"
    )
