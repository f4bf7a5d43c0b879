"""Moments of features: sums over samples that add up over clients, and the Mahalanobis distance they give.

Long feature vectors are projected to 64 numbers by a fixed random matrix, whose entries are the same
everywhere: the distance needs products of pairs, of which 2048 features would have two million.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from unseen.calibration.histograms import Counts, Floats
from unseen.seeding import numpy_generator

MOST_DIMENSIONS = 64


@lru_cache(maxsize=4)
def projection(features: int) -> Floats | None:
    """Return the matrix by which features are projected; None where they are few enough as they are.

    Gaussian entries (Johnson, Lindenstrauss 1984). The Mahalanobis distance does not change with the basis.
    """
    if features <= MOST_DIMENSIONS:
        return None
    drawn = numpy_generator(0, "projection of features", features).standard_normal(
        (features, MOST_DIMENSIONS)
    )
    matrix: Floats = drawn / np.sqrt(MOST_DIMENSIONS)
    return matrix


def project(features: Floats) -> Floats:
    """Project features (samples x features), or sums of them."""
    matrix = projection(features.shape[-1])
    return features if matrix is None else features @ matrix


def count_products(features: int) -> int:
    """Count the products of two projected features, each pair once."""
    size = min(features, MOST_DIMENSIONS)
    return size * (size + 1) // 2


def moment_sums(features: Floats) -> tuple[Floats, Floats]:
    """Sum up features and their squares (2 x features), and products of projected ones (upper triangle)."""
    projected = project(features)
    rows, columns = np.triu_indices(projected.shape[1])
    return np.stack([features.sum(axis=0), (features**2).sum(axis=0)]), (projected.T @ projected)[
        rows, columns
    ]


@dataclass(frozen=True)
class Moments:
    """Sums over samples: how many, features and their squares, products, and predictions per class.

    predicted  samples per predicted class; empty where there are no classes
    """

    samples: int
    features: Floats
    products: Floats
    predicted: Counts

    def __add__(self, other: Moments) -> Moments:
        """Add the sums of other samples."""
        return Moments(
            self.samples + other.samples,
            self.features + other.features,
            self.products + other.products,
            self.predicted + other.predicted,
        )

    @property
    def finite(self) -> bool:
        """Whether no sum overflowed."""
        return bool(np.isfinite(self.features).all() and np.isfinite(self.products).all())

    @property
    def feature_mean(self) -> Floats:
        """Mean of every feature."""
        mean: Floats = self.features[0] / self.samples
        return mean

    @property
    def feature_std(self) -> Floats:
        """Std of every feature."""
        std: Floats = np.sqrt(np.maximum(self.features[1] / self.samples - self.feature_mean**2, 0))
        return std

    @cached_property
    def covariance(self) -> Floats:
        """Covariance of the projected features, as it is."""
        mean = project(self.feature_mean)
        size = len(mean)
        products = np.zeros((size, size))
        products[np.triu_indices(size)] = self.products / self.samples
        covariance: Floats = products + np.triu(products, 1).T - np.outer(mean, mean)
        return covariance

    @cached_property
    def gaussian(self) -> Gaussian:
        """Mean and shrunk covariance of the projected features."""
        covariance = shrink_covariance(self.covariance, self.samples)
        return Gaussian(project(self.feature_mean), covariance, self.samples)


def shrink_covariance(covariance: Floats, samples: int) -> Floats:
    """Shrink a covariance towards a multiple of the identity by OAS, which needs nothing but moments.

    Chen, Wiesel, Eldar, Hero: "Shrinkage Algorithms for MMSE Covariance Estimation" (2010), eq. 23.
    """
    size = len(covariance)
    mean_variance = float(np.trace(covariance)) / size
    square = float((covariance**2).mean())
    above = square + mean_variance**2
    below = (samples + 1) * (square - mean_variance**2 / size)
    share = 1.0 if below <= 0 else min(above / below, 1.0)
    floor = 1e-12 + 1e-6 * mean_variance
    shrunk: Floats = (1 - share) * covariance + (share * mean_variance + floor) * np.eye(size)
    return shrunk


@dataclass(frozen=True)
class Gaussian:
    """Mean and covariance of projected features, and the number of samples that they were estimated from."""

    mean: Floats
    covariance: Floats
    samples: int

    @cached_property
    def whitening(self) -> Floats:
        """Inverse of the Cholesky factor: distances are lengths of (x - mean) times its transpose."""
        inverse: Floats = np.linalg.inv(np.linalg.cholesky(self.covariance))
        return inverse

    def squared_distances(self, projected: Floats) -> Floats:
        """Compute (x - mean)^T C^-1 (x - mean) of every row."""
        whitened = (projected - self.mean) @ self.whitening.T
        squared: Floats = (whitened**2).sum(axis=1)
        return squared

    def distances(self, features: Floats) -> Floats:
        """Compute the Mahalanobis distance of every sample, divided by sqrt(dimensions): about 1 at home."""
        distances: Floats = np.sqrt(self.squared_distances(project(features)) / len(self.mean))
        return distances
