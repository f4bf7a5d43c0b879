"""How much privacy was spent: opacus' Rényi accountant for the Poisson-sampled Gaussian mechanism.

Neighbours are data sets that differ by adding or taking away one unit (a client, or a sample). A step draws
every unit on its own with probability `rate` and adds Gaussian noise of `noise` times the bound on a unit's
part to the sum of the parts drawn. With rate 1 everyone is always in, and nothing is won by drawing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from unseen.errors import UsageError, missing_extra

USUAL_DELTA = 1e-5
_TOLERANCE = 0.005
"""How much of a target epsilon may remain unused, relative to it."""


class Steps(NamedTuple):
    """Some steps of the mechanism, all with the same rate."""

    rate: float
    number: int


def default_delta(units: int) -> float:
    """The delta of 1e-5, or 1 / units^1.1 where that is smaller: below one in the number of units."""
    return min(USUAL_DELTA, 1 / math.pow(units, 1.1))


def compute_epsilon(steps: Sequence[Steps], *, noise: float, delta: float) -> float:
    """The epsilon that these steps have spent, at this delta."""
    accountant = _opacus().RDPAccountant()
    accountant.history = [(noise, rate, number) for rate, number in steps if number]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order is the")
        return float(accountant.get_epsilon(delta=delta))


def find_noise(epsilon: float, steps: Steps, *, delta: float) -> float:
    """The noise multiplier with which these steps spend no more than epsilon, and hardly less."""
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
    """Say how to install opacus if it is not there."""
    _opacus()


def _opacus() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus import accountants
    except ImportError:
        raise missing_extra("opacus", "dp", "differential privacy") from None
    return accountants
