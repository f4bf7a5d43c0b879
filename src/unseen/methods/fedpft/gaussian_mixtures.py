"""Gaussian mixtures of one class's features: fitted at a client, packed, sampled by the server."""

from __future__ import annotations

import warnings
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Covariance = Literal["diagonal", "spherical"]
COVARIANCE = "variances of a component: one per feature (`diagonal`), or one for all (`spherical`)"
REGULARIZATION = 1e-6
"""Added to every variance, as scikit-learn does, so that a component of equal samples has one."""
_TOLERANCE, _ITERATIONS = 1e-4, 200


class Mixture(NamedTuple):
    """Weights (components), means (components x features), variances (components x features, or x 1)."""

    weights: Tensor
    means: Tensor
    variances: Tensor

    def pack(self, components: int) -> Tensor:
        """Return a row (weight, mean, variances) per component, in float32, with rows of 0 for those missing.

        All clients' messages then have one shape, whatever their numbers of samples.
        """
        rows = torch.cat([self.weights[:, None], self.means, self.variances], dim=1)
        packed = torch.zeros(components, rows.shape[1])
        packed[: len(rows)] = rows
        return packed

    @classmethod
    def unpack(cls, rows: Tensor, *, features: int) -> Mixture:
        """Read what `pack` returned, in float64."""
        rows = rows.double()
        return cls(rows[:, 0], rows[:, 1 : 1 + features], rows[:, 1 + features :])

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw features (count x features)."""
        drawn = torch.multinomial(self.weights, count, replacement=True, generator=generator)
        noise = torch.randn(count, self.means.shape[1], generator=generator, dtype=torch.float64)
        return self.means[drawn] + self.variances[drawn].sqrt() * noise


def count_numbers(features: int, covariance: Covariance) -> int:
    """Count the numbers that describe one component: weight, mean, variances."""
    return 1 + features + (features if covariance == "diagonal" else 1)


def fit_mixture(features: Tensor, *, components: int, covariance: Covariance, seed: int) -> Mixture:
    """Fit a mixture to features (samples x features) by expectation-maximization, from k-means++ centres.

    One component has a closed form: mean and variance of the samples.
    """
    if components == 1:
        variances = features.var(0, correction=0)
        if covariance == "spherical":
            variances = variances.mean(0, keepdim=True)
        one = torch.ones(1, dtype=features.dtype)
        return Mixture(one, features.mean(0, keepdim=True), variances[None] + REGULARIZATION)
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    model = GaussianMixture(
        components,
        covariance_type="diag" if covariance == "diagonal" else "spherical",
        reg_covar=REGULARIZATION,
        tol=_TOLERANCE,
        max_iter=_ITERATIONS,
        random_state=seed % 2**32,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(features.numpy())
    weights, means, variances = map(torch.from_numpy, (model.weights_, model.means_, model.covariances_))
    return Mixture(weights, means, variances.reshape(components, -1))
