"""Judge a site from unlabelled samples: how different it is, what moved, and whether the model is fit for it.

Each test's null hypothesis is "no more different than a source was from the others", so its p-values are
small only beyond that:

    mean     noncentral Hotelling test of the samples' mean: T^2 = n' D^2, with 1/n' = 1/n + 1/N, against
             F(k, N - k) with noncentrality n' times the largest squared distance of a source from the others
    samples  the number of samples beyond the limit of distances (of energies), against the beta-binomial
             distribution of that number if they were exchangeable with the samples that set the limit

Their smallest p-value times their number (Bonferroni) is the site's.

Another question is whether the samples are those of a source at all. Its null hypothesis, one per source, is
"drawn like that source's validation samples": T = D^2 / (1/n + 1/n_s), with D^2 the squared distance of both
means in the covariance within sources. If it holds, T is a sum of chi-squared variables weighted by the
eigenvalues of the site's own covariance in that metric, for which a scaled chi-squared one with the same mean
and variance stands (Satterthwaite). A site is new if every source's p-value is below the level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from unseen.calibration.expected_accuracy import AccuracyEstimate
from unseen.calibration.moments import Gaussian, Moments
from unseen.calibration.site_reference import Limit, SiteReference

LEVEL = 0.05
"""A site with a smaller p-value is called different."""
NEW_LEVEL = 0.01
"""A site whose p-values of being each of the sources are all smaller is called new."""
TOLERATED_DROP, LARGEST_DROP = 0.05, 0.15
"""Expected loss of accuracy up to which a model is fit, and beyond which it is of no use."""
FAR = 2.0
"""How many times as far away as the farthest source a different site may be; no estimate reaches beyond."""
MANY_UNUSUAL = 0.5
"""Fraction of unusual samples beyond which a model is of no use at a different site."""
SMALLEST_SHIFT = 1e-3
"""Below this noncentrality the central distribution is used; scipy's other one fails near 0."""
FEWEST = 20
"""With fewer samples a site cannot be judged, only its samples."""
FIT, CARE, UNFIT = "fit for use", "use with care", "do not use"


def mean_p_value(squared: float, gaussian: Gaussian, *, samples: int, allowed: float) -> float:
    """Compute the chance of a mean at least so far away if the site were at the allowed distance.

    squared  squared Mahalanobis distance of the samples' mean
    allowed  squared distance of the farthest site that counts as no different
    """
    from scipy.stats import f, ncf

    size, known = len(gaussian.mean), gaussian.samples
    effective = 1 / (1 / samples + 1 / known)
    below = max(known - size, 1)
    statistic = effective * squared * below / (size * max(known - 1, 1))
    shift = effective * allowed
    if shift < SMALLEST_SHIFT:
        return float(f.sf(statistic, size, below))
    found = float(ncf.sf(statistic, size, below, shift))
    if np.isfinite(found):
        return min(max(found, 0.0), 1.0)
    # Patnaik's central F, where the series of the noncentral one does not converge
    degrees = (size + shift) ** 2 / (size + 2 * shift)
    return float(f.sf(statistic * size / (size + shift), degrees, below))


def count_p_value(beyond: int, *, samples: int, limit: Limit) -> float:
    """Compute the chance of at least so many samples beyond a limit among exchangeable ones."""
    from scipy.stats import betabinom

    if limit.value is None:
        return 1.0
    return float(betabinom.sf(beyond - 1, samples, limit.samples + 1 - limit.rank, limit.rank))


def source_p_values(reference: SiteReference, moments: Moments) -> dict[str, float]:
    """Compute for every source the chance of a mean at least so far from its own, if the site were it.

    Empty with too few samples to judge, and for models that keep no means of single sources.
    """
    from scipy.stats import chi2

    if moments.samples < FEWEST or not reference.means:
        return {}
    whitening = Gaussian(reference.gaussian.mean, reference.within, reference.gaussian.samples).whitening
    own = moments.covariance * moments.samples / (moments.samples - 1)
    spread = whitening @ own @ whitening.T
    expected, square = max(float(np.trace(spread)), 1e-12), max(float((spread**2).sum()), 1e-24)
    found = {}
    for name, mean in reference.means.items():
        squared = float(((whitening @ (moments.gaussian.mean - mean)) ** 2).sum())
        statistic = squared / (1 / moments.samples + 1 / reference.samples[name])
        found[name] = float(chi2.sf(statistic * expected / square, expected**2 / square))
    return found


class Move(NamedTuple):
    """Change of a feature's mean in the sources' stds, or of a class's share of the predictions."""

    name: str
    before: float
    here: float
    change: float


@dataclass(frozen=True)
class SiteDifference:
    """How different a site is from the sources.

    distance  Mahalanobis distance of its mean over sqrt(dimensions), and `allowed`, that of a source
    unusual   fraction of samples beyond the limit, per score
    p_values  per test; `p_value` is the site's
    yardstick whether there were sources to compare with one another
    sources   per source, the p-value of the site's samples being drawn like its own
    """

    distance: float
    allowed: float
    unusual: Mapping[str, float]
    p_values: Mapping[str, float]
    features: Sequence[Move]
    classes: Sequence[Move]
    yardstick: bool
    sources: Mapping[str, float] = field(default_factory=dict)

    @property
    def new(self) -> bool | None:
        """Whether its samples are those of no source; None where that cannot be told."""
        return max(self.sources.values()) < NEW_LEVEL if self.sources else None

    @property
    def p_value(self) -> float:
        """The site's p-value: the smallest of the tests, times their number."""
        return min(1.0, len(self.p_values) * min(self.p_values.values()))

    @property
    def far(self) -> bool:
        """Whether the site is different, and far beyond the distances between the sources."""
        return self.different and self.yardstick and self.distance > FAR * self.allowed

    @property
    def different(self) -> bool:
        """Whether the site is more different than the sources were from one another."""
        return self.p_value < LEVEL


def compare_site(
    reference: SiteReference,
    moments: Moments,
    beyond: Mapping[str, int],
    *,
    classes: Sequence[str] = (),
    most: int = 5,
) -> SiteDifference:
    """Compare a site with the sources.

    beyond   samples beyond the limit, per score
    most     features and classes to name
    """
    gaussian, samples = reference.gaussian, moments.samples
    squared = float(gaussian.squared_distances(moments.gaussian.mean[None])[0])
    tests = {"mean": mean_p_value(squared, gaussian, samples=samples, allowed=reference.allowed)}
    for name, count in beyond.items():
        tests[name] = count_p_value(count, samples=samples, limit=reference.limits[name])
    size = len(gaussian.mean)
    return SiteDifference(
        distance=float(np.sqrt(squared / size)),
        allowed=float(np.sqrt(reference.allowed / size)),
        unusual={name: count / samples for name, count in beyond.items()},
        p_values=tests,
        features=_moved_features(reference, moments)[:most],
        classes=_moved_classes(reference, moments, classes)[:most],
        yardstick=bool(reference.left_out),
        sources=source_p_values(reference, moments),
    )


def _moved_features(reference: SiteReference, moments: Moments) -> list[Move]:
    """List features by how far their mean moved; one that was constant has the others' smallest std."""
    std = reference.feature_std
    varied = std[std > 0]
    scale = np.where(std > 0, std, varied.min() if len(varied) else 1.0)
    here = moments.feature_mean
    change = (here - reference.feature_mean) / scale
    return [
        Move(
            f"feature {place + 1}",
            float(reference.feature_mean[place]),
            float(here[place]),
            float(change[place]),
        )
        for place in np.argsort(-np.abs(change), kind="stable")
    ]


def _moved_classes(reference: SiteReference, moments: Moments, classes: Sequence[str]) -> list[Move]:
    """List classes by how far their share of the predictions moved."""
    here = moments.predicted / max(moments.predicted.sum(), 1)
    change = here - reference.predicted
    if len(classes) != len(change):
        return []
    return [
        Move(classes[place], float(reference.predicted[place]), float(here[place]), float(change[place]))
        for place in np.argsort(-np.abs(change), kind="stable")
    ]


class Verdict(NamedTuple):
    """What to do with a model at a site, and the reasons, one sentence each."""

    name: str
    reasons: tuple[str, ...]


def judge(
    difference: SiteDifference,
    expected: AccuracyEstimate | None,
    accuracy: float | None,
    *,
    samples: int,
    measured: float | None = None,
) -> Verdict:
    """Decide whether a model is fit for a site.

    expected  accuracy estimated there; None where there are no classes
    accuracy  on the sources
    measured  accuracy at the site, where there are labels: it counts instead of the estimate
    """
    reasons = []
    if samples < FEWEST:
        reasons.append(f"{samples} samples are too few to judge a site; at least {FEWEST} are needed")
    if not difference.different:
        found = "no sign that the site differs from the sources more than they did from one another"
    elif difference.yardstick:
        found = "the site differs from the sources more than they did from one another"
    else:
        found = "the site differs from the only source"
    reasons.append(f"{found} (p = {difference.p_value:.2g})")
    if difference.sources:
        nearest = max(difference.sources, key=lambda name: difference.sources[name])
        reasons.append(
            f"its samples are those of no source (p < {NEW_LEVEL:g} for each): a new domain"
            if difference.new
            else f"its samples could be those of source {nearest} (p = {difference.sources[nearest]:.2g})"
        )
    unusual = difference.unusual["distance"]
    reasons.append(
        f"{unusual:.1%} of its samples are unusual; of each source at most 5 % were, seen from the others"
    )
    drop, uncertain = 0.0, False
    if expected is not None and accuracy is not None:
        drop = accuracy - expected.accuracy
        reasons.append(
            f"expected accuracy {expected.accuracy:.1%} ({expected.low:.1%} to {expected.high:.1%}), "
            f"on the sources {accuracy:.1%}"
        )
        if measured is not None:
            drop = accuracy - measured
            reasons.append(f"measured accuracy {measured:.1%}")
        elif accuracy - expected.low > LARGEST_DROP:
            reasons.append(
                f"a loss of accuracy of more than {LARGEST_DROP:.0%} cannot be ruled out by this estimate"
            )
            uncertain = True
    if difference.far:
        reasons.append(
            f"its distance {difference.distance:.2f} is beyond {FAR:g} times that of any source from the "
            f"others ({difference.allowed:.2f}): no estimate of the accuracy reaches there"
        )
    useless = drop > LARGEST_DROP or difference.far or (difference.different and unusual > MANY_UNUSUAL)
    doubtful = difference.different or drop > TOLERATED_DROP or uncertain or samples < FEWEST
    return Verdict(UNFIT if useless else CARE if doubtful else FIT, tuple(reasons))
