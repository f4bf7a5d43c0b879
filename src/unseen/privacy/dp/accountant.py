"""Privacy accounting by opacus' Rényi accountant for the Poisson-sampled Gaussian mechanism.

Neighbors are data sets that differ by adding or removing one unit (a client, or a sample). A step samples
every unit independently with probability `rate`, and adds Gaussian noise of std `noise` times the bound on a
unit's contribution to the sum. With rate 1 there is no amplification by sampling.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from unseen.errors import UsageError, missing_extra

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
