"""Privacy accounting by opacus' Rényi accountant for the Poisson-sampled Gaussian mechanism.

Neighbors are data sets that differ by adding or removing one unit (a client, or a sample). A step samples
every unit independently with probability `rate`, and adds Gaussian noise of std `noise` times the bound on a
unit's contribution to the sum. With rate 1 there is no amplification by sampling.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from unseen.errors import UsageError, missing_extra

Real = npt.NDArray[np.float64]
USUAL_DELTA = 1e-5
_TOLERANCE = 0.005
"""Fraction of a target epsilon that may remain unused."""


class Steps(NamedTuple):
    """Steps of the mechanism with the same sampling rate."""

    rate: float
    number: int


def default_delta(units: int) -> float:
    """Return 1e-5, or 1 / units^1.1 if smaller: always below 1 / units."""
    return min(USUAL_DELTA, 1 / math.pow(units, 1.1))


def compute_epsilon(steps: Sequence[Steps], *, noise: float, delta: float) -> float:
    """Compute the epsilon that these steps spend at this delta."""
    accountant = _opacus().RDPAccountant()
    accountant.history = [(noise, rate, number) for rate, number in steps if number]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order is the")
        return float(accountant.get_epsilon(delta=delta))


@dataclass(frozen=True)
class RenyiCurve:
    """Rényi divergences of a mechanism at opacus' orders: they add up over mechanisms and give epsilon."""

    divergences: Real

    @classmethod
    def of(cls, noise: float, rate: float, steps: int) -> RenyiCurve:
        """Compute the curve of steps of the sampled Gaussian mechanism."""
        _opacus()
        from opacus.accountants.analysis.rdp import compute_rdp

        found = compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=_orders())
        return cls(np.asarray(found, dtype=np.float64))

    @classmethod
    def nothing(cls) -> RenyiCurve:
        """Return the curve of a mechanism that releases nothing."""
        return cls(np.zeros(len(_orders())))

    @classmethod
    def sum(cls, curves: Iterable[RenyiCurve]) -> RenyiCurve:
        """Compose mechanisms on the same data."""
        return cls(np.sum([curve.divergences for curve in curves], axis=0))

    @classmethod
    def upper(cls, curves: Iterable[RenyiCurve]) -> RenyiCurve:
        """Bound mechanisms on disjoint data, of which any unit meets one only."""
        return cls(np.max([curve.divergences for curve in curves], axis=0))

    def __add__(self, other: RenyiCurve) -> RenyiCurve:
        return RenyiCurve.sum([self, other])

    def epsilon(self, delta: float) -> float:
        """Convert to the smallest epsilon at this delta."""
        from opacus.accountants.analysis.rdp import get_privacy_spent

        if not self.divergences.any():
            return 0.0
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Optimal order is the")
            epsilon, _ = get_privacy_spent(orders=_orders(), rdp=self.divergences, delta=delta)
        return max(float(epsilon), 0.0)


def _orders() -> list[float]:
    orders: list[float] = _opacus().RDPAccountant.DEFAULT_ALPHAS
    return orders


def find_noise(epsilon: float, steps: Steps, *, delta: float) -> float:
    """Find the smallest noise multiplier with which these steps spend at most epsilon."""
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order is the")
        try:
            return float(
                get_noise_multiplier(
                    target_epsilon=epsilon,
                    target_delta=delta,
                    sample_rate=steps.rate,
                    steps=steps.number,
                    accountant="rdp",
                    epsilon_tolerance=_TOLERANCE * epsilon,
                )
            )
        except ValueError as error:
            raise UsageError(
                f"no noise keeps {steps.number} steps within epsilon {epsilon:g} at delta {delta:g}: give a "
                "larger epsilon, fewer --rounds or a larger delta"
            ) from error


def require_opacus() -> None:
    """Raise an error that names the extra to install if opacus is missing."""
    _opacus()


def _opacus() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus import accountants
    except ImportError:
        raise missing_extra("opacus", "dp", "differential privacy") from None
    return accountants
