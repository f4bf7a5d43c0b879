"""Ridge regression from sums: solutions for many strengths, and their exact errors on other samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from unseen.methods.closed_form.feature_sums import FeatureSums
from unseen.methods.closed_form.linear_head import LinearHead, Scaling, Standardization, standardize

STRENGTHS = tuple(10.0 ** (half / 2) for half in range(-10, 9))
"""Strengths tried: 10^-5 to 10^4 in half decades."""


@dataclass(frozen=True)
class RidgeProblem:
    """Least squares on standardized features z in the basis of the eigenvectors of their covariance.

    (C + strength I) W = B with C the mean of z z^T and B that of z (y - mean y)^T; C = V diag(e) V^T makes
    the solution V (e + strength)^-1 V^T B for every strength at the cost of one decomposition.
    """

    count: float
    standardization: Standardization
    basis: Tensor
    eigenvalues: Tensor
    projected: Tensor
    target_mean: Tensor
    target_variance: float

    def solve(self, strength: float) -> LinearHead:
        """Return the solution for a strength, as a head on the features as they are."""
        weight = (self.basis @ self._coefficients(strength)).T
        return LinearHead(weight, self.target_mean).on_raw_features(self.standardization)

    @classmethod
    def of(cls, sums: FeatureSums, *, scaling: Scaling, samples: float | None = None) -> RidgeProblem:
        """Set up the problem from sums over training samples.

        samples  their number, where weights make the sums' count another one
        """
        squares = sums.products.diagonal()
        standardization = standardize(sums.count, sums.features, squares, scaling=scaling)
        centred = sums.standardized(*standardization)
        target_mean = sums.targets / sums.count
        eigenvalues, basis = torch.linalg.eigh(centred.products / centred.count)
        cross = centred.cross - torch.outer(centred.features, target_mean)
        return cls(
            count=float(sums.count) if samples is None else samples,
            standardization=standardization,
            basis=basis,
            eigenvalues=eigenvalues.clamp(min=0),
            projected=basis.T @ (cross / centred.count),
            target_mean=target_mean,
            target_variance=float(sums.squares / sums.count - target_mean.square().sum()),
        )

    def validation_error(self, strength: float, validation: FeatureSums) -> float:
        """Compute the mean of |y - W f - b|^2 over other samples from their sums alone."""
        return squared_error(self.solve(strength), validation)

    def generalized_error(self, strength: float) -> float:
        """Compute generalized cross-validation on the training sums (Golub, Heath, Wahba 1979).

        n RSS / (n - df)^2 with the degrees of freedom df of the fit, the mean included.
        """
        coefficients = self._coefficients(strength)
        fitted = 2 * (coefficients * self.projected).sum()
        residual = self.target_variance - fitted + (self.eigenvalues[:, None] * coefficients.square()).sum()
        freedom = 1 + float((self.eigenvalues / (self.eigenvalues + strength)).sum())
        left = max(1 - freedom / self.count, 0.0)
        return float(residual) / left**2 if left else float("inf")

    def _coefficients(self, strength: float) -> Tensor:
        return self.projected / (self.eigenvalues + strength)[:, None]


def squared_error(head: LinearHead, sums: FeatureSums) -> float:
    """Compute the mean of |y - W f - b|^2 from sums.

    sum |y|^2 - 2 tr(W sum f y^T) - 2 b . sum y + tr(W sum f f^T W^T) + 2 b . W sum f + n |b|^2
    """
    weight, bias = head
    total = (
        sums.squares
        - 2 * (weight * sums.cross.T).sum()
        - 2 * bias @ sums.targets
        + ((weight @ sums.products) * weight).sum()
        + 2 * bias @ (weight @ sums.features)
        + sums.count * bias.square().sum()
    )
    return float(total / sums.count)


class ChosenStrength(NamedTuple):
    """Strength with the smallest error, and the error of every strength tried."""

    strength: float
    errors: dict[float, float]


def choose_strength(problem: RidgeProblem, validation: FeatureSums) -> ChosenStrength:
    """Choose the strength by validation samples, or by generalized cross-validation where there are none.

    Of equal errors the stronger one wins.
    """
    judged = float(validation.count) > 0
    errors = {
        strength: problem.validation_error(strength, validation)
        if judged
        else problem.generalized_error(strength)
        for strength in STRENGTHS
    }
    return ChosenStrength(min(reversed(STRENGTHS), key=errors.__getitem__), errors)
