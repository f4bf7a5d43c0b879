"""What a model keeps of its sources to tell how different a new site is: moments, limits, a threshold.

"Different" means: more different than the sources were from one another. So every limit comes from leaving
one source out: its distance from the others, and its samples' distances from the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from unseen.calibration.expected_accuracy import left_out_errors, threshold_bin
from unseen.calibration.histograms import Counts, Floats, quantile_bin, upper_edge
from unseen.calibration.moments import Gaussian, Moments, shrink_covariance
from unseen.errors import UnseenError

UNUSUAL = 0.05
"""Fraction of a source's samples that are further away than the limit of its distances."""
DISTANCE_EDGES: Floats = np.logspace(-3, 5, 2047)
"""Inner edges of Mahalanobis distances; neighbours differ by 0.9 %."""
ENERGY_EDGES: Floats = np.linspace(-128, 128, 2047)
"""Inner edges of energies, 1/8 apart."""
EDGES = {"distance": DISTANCE_EDGES, "energy": ENERGY_EDGES}
FEWEST_SAMPLES = 8
"""A source with fewer validation samples has no moments worth keeping."""


def energies(logits: Floats) -> Floats:
    """Compute -log sum exp of the logits, high where the model knows nothing (Liu et al., NeurIPS 2020)."""
    highest = logits.max(axis=1, keepdims=True)
    result: Floats = -(highest[:, 0] + np.log(np.exp(logits - highest).sum(axis=1)))
    return result


def left_out_gaussians(moments: Mapping[str, Moments]) -> dict[str, Gaussian]:
    """Return for every source the mean and covariance of the others; of a single source, its own."""
    return {
        name: sum_moments([each for other, each in moments.items() if other != name] or [own]).gaussian
        for name, own in moments.items()
    }


def sum_moments(moments: Sequence[Moments]) -> Moments:
    """Add up the moments of several sources."""
    return reduce(add, moments)


@dataclass(frozen=True)
class Limit:
    """The limit of a score: that of the source with the largest quantile, its samples and the rank there.

    value  samples at or above it are unusual; None: no sample is
    """

    value: float | None
    samples: int
    rank: int

    def beyond(self, scores: Floats) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Mark unusual samples."""
        return np.zeros(len(scores), dtype=bool) if self.value is None else ~(scores < self.value)


def find_limit(histograms: Sequence[Counts], edges: Floats) -> Limit:
    """Find the limit that no more than 5 % of any source's samples reach, as a conformal quantile."""
    bins = [quantile_bin(counts, 1 - UNUSUAL) for counts in histograms]
    place = int(np.argmax(bins))
    samples = int(histograms[place].sum())
    rank = math.ceil((samples + 1) * (1 - UNUSUAL) - 1e-9)
    return Limit(None if rank > samples else upper_edge(edges, bins[place]), samples, rank)


def left_out_distance(own: Gaussian, others: Gaussian) -> float:
    """Estimate the squared distance of a source's mean from the others', less what chance adds to it."""
    squared = float(others.squared_distances(own.mean[None])[0])
    chance = len(own.mean) * (1 / own.samples + 1 / others.samples)
    return max(squared - chance, 0.0)


@dataclass(frozen=True)
class SiteReference:
    """The sources, as far as they are needed to judge another site.

    gaussian      mean and covariance of the projected features of all sources
    feature_mean, feature_std  of every feature
    predicted     fraction of the predictions per class; empty where there are no classes
    left_out      squared distance of every source's mean from the others'; empty with one source
    limits        of the scores of samples: `distance`, and `energy` where there are classes
    threshold     bin of the confidence above which answers count as right; None without classes
    errors        estimated minus true accuracy, see `left_out_errors`
    accuracy      of the sources' validation samples together
    samples       validation samples per source
    means         of every source's projected features; empty in models of older versions
    within        covariance around these means, of all sources together
    shift         of log-odds by which estimated accuracies are too high, see `find_shift`
    """

    gaussian: Gaussian
    feature_mean: Floats
    feature_std: Floats
    predicted: Floats
    limits: Mapping[str, Limit]
    samples: Mapping[str, int]
    left_out: Mapping[str, float] = field(default_factory=dict)
    threshold: int | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    accuracy: float | None = None
    means: Mapping[str, Floats] = field(default_factory=dict)
    within: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    shift: float = 0.0

    @property
    def allowed(self) -> float:
        """The squared distance up to which a site is no more different than a source from the others."""
        return max(self.left_out.values(), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the reference as JSON values, with ten digits."""
        upper = np.triu_indices(len(self.gaussian.mean))
        return {
            "samples": dict(self.samples),
            "left_out": dict(self.left_out),
            "limits": {name: vars(limit) for name, limit in self.limits.items()},
            "threshold": self.threshold,
            "errors": dict(self.errors),
            "accuracy": self.accuracy,
            "shift": self.shift,
            "predicted": _round_all(self.predicted),
            "mean": _round_all(self.gaussian.mean),
            "covariance": _round_all(self.gaussian.covariance[upper]),
            "means": {name: _round_all(mean) for name, mean in self.means.items()},
            "within": _round_all(self.within[upper]) if self.means else [],
            "feature_mean": _round_all(self.feature_mean),
            "feature_std": _round_all(self.feature_std),
        }

    def summary(self) -> dict[str, Any]:
        """Return what a record needs: all but means and covariance."""
        kept = ("samples", "left_out", "limits", "threshold", "errors", "accuracy")
        return {name: value for name, value in self.to_dict().items() if name in kept}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SiteReference:
        """Read a reference from a model's header."""
        try:
            samples = {str(name): int(count) for name, count in values["samples"].items()}
            mean = _floats(values["mean"])
            covariance = _symmetric(values["covariance"], len(mean))
            means = {str(name): _floats(own) for name, own in values.get("means", {}).items()}
            if any(len(own) != len(mean) for own in means.values()) or not means.keys() <= samples.keys():
                raise ValueError("means of other sources or lengths")
            return cls(
                Gaussian(mean, covariance, sum(samples.values())),
                _floats(values["feature_mean"]),
                _floats(values["feature_std"]),
                _floats(values["predicted"]),
                {name: Limit(**limit) for name, limit in values["limits"].items()},
                samples,
                dict(values["left_out"]),
                values["threshold"],
                dict(values["errors"]),
                values["accuracy"],
                means,
                _symmetric(values["within"], len(mean)) if means else np.zeros((0, 0)),
                float(values.get("shift", 0.0)),
            )
        except (TypeError, KeyError, ValueError, AttributeError, np.linalg.LinAlgError) as error:
            raise UnseenError(
                f"unreadable moments of the sources ({type(error).__name__}: {error})"
            ) from error


def describe_sources(moments: Mapping[str, Moments]) -> tuple[dict[str, Floats], Floats]:
    """Return the mean of every source, and the shrunk covariance around these means, of all together."""
    samples = sum(own.samples for own in moments.values())
    within: Floats = np.sum([own.samples / samples * own.covariance for own in moments.values()], axis=0)
    means = {name: own.gaussian.mean for name, own in moments.items()}
    return means, shrink_covariance(within, samples)


def fit_reference(
    moments: Mapping[str, Moments],
    scores: Mapping[str, Mapping[str, Counts]],
    outside: Mapping[str, Counts] | None = None,
) -> SiteReference:
    """Put together what the sources sent.

    moments  per source
    scores   per source the histograms of `distance` (from the others), `energy` and `confidence`
    outside  histograms of confidence on domains that the model did not train on
    """
    total = sum_moments(list(moments.values()))
    others = left_out_gaussians(moments)
    means, within = describe_sources(moments)
    alone = len(moments) < 2
    confidence = {name: found["confidence"] for name, found in scores.items() if "confidence" in found}
    pooled = np.sum(list(confidence.values()), axis=0) if confidence else None
    return SiteReference(
        gaussian=total.gaussian,
        feature_mean=total.feature_mean,
        feature_std=total.feature_std,
        predicted=total.predicted / max(total.predicted.sum(), 1),
        limits={
            name: find_limit([found[name] for found in scores.values()], edges)
            for name, edges in EDGES.items()
            if all(name in found for found in scores.values())
        },
        samples={name: own.samples for name, own in moments.items()},
        left_out={}
        if alone
        else {name: left_out_distance(own.gaussian, others[name]) for name, own in moments.items()},
        threshold=None if pooled is None else threshold_bin(pooled),
        errors=left_out_errors(confidence, outside),
        accuracy=None if pooled is None else float(pooled[1].sum() / pooled.sum()),
        means=means,
        within=within,
    )


def _round_all(values: Floats) -> list[float]:
    return [float(f"{value:.10g}") for value in values.tolist()]


def _symmetric(upper: Any, size: int) -> Floats:
    """Read a covariance from its upper triangle; one that is not positive definite is refused."""
    found = np.zeros((size, size))
    found[np.triu_indices(size)] = _floats(upper)
    found = found + np.triu(found, 1).T
    np.linalg.cholesky(found)
    return found


def _floats(values: Any) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not np.isfinite(found).all():
        raise ValueError("expected a list of finite numbers")
    return found
