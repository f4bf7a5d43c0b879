"""Gradient matching (FedOMG, after CAGrad): one step that agrees with the clients' updates, also the worst.

CAGrad looks for the step within a ball of radius c ||g_0|| around the mean update g_0 whose smallest inner
product with any client's update is largest. Its dual needs the Gram matrix G of the updates only: with
a = G 1 / K and b = mean(a), which is ||g_0||^2, minimize over weights s of the clients (not negative, sum 1)

    <s, a> + c sqrt(b) sqrt(s^T G s)

The step is g_0 + c sqrt(b) / sqrt(s^T G s) * sum_k s_k g_k. The problem is convex and has as many unknowns as
there are clients, so Newton's method solves it exactly.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.aggregation.gradient_surgery import SurgeryResult, VisitOrder, cosines

Scaling = Literal["mean-preserving", "as-released"]
SMOOTHING = 1e-4
"""Added to squared lengths in units of the mean length, as in CAGrad's code: roots stay differentiable."""
GAP = 1e-12
"""Largest distance of the solver's objective from its minimum."""
Vector = NDArray[np.float64]


class Matching(NamedTuple):
    """Solution of the dual: weights of the clients, their factor lambda in the step, Newton steps."""

    weights: Vector
    factor: float
    steps: int


def match_updates(
    gram: Tensor,
    *,
    order: VisitOrder | None = None,
    shares: Tensor | None = None,
    radius: float,
    rate: float,
    scaling: Scaling = "mean-preserving",
) -> SurgeryResult:
    """Find the coefficients of the clients' updates in the matched step; every row of the result has them.

    mean-preserving  g_k = K p_k Delta_k, whose mean is FedAvg's step, and the step divided by 1 + c: where
                     all clients agree it is FedAvg's
    as-released      g_k = p_k Delta_k, whose mean is FedAvg's step divided by K, and the step divided by
                     1 + c^2

    gram    inner products of the updates Delta_k
    order   not used: the result does not depend on it
    shares  p_k, the clients' weights, which sum to one; None = equal
    radius  c of the equation
    rate    the server's learning rate
    """
    clients = len(gram)
    parts = np.full(clients, 1 / clients) if shares is None else shares.double().numpy()
    released = scaling == "as-released"
    lengths = parts if released else clients * parts
    found = solve_matching(
        gram.numpy() * np.outer(lengths, lengths), radius=radius, floor=SMOOTHING if released else 0.0
    )
    divisor = 1 + (radius**2 if released else radius)
    coefficients = rate * lengths * (1 / clients + found.factor * found.weights) / divisor
    conflicts = int((gram < 0).triu(diagonal=1).sum())
    rows = torch.from_numpy(np.tile(coefficients, (clients, 1)))
    return SurgeryResult(rows, conflicts, found.steps, cosines(gram))


def solve_matching(gram: Vector, *, radius: float, floor: float = 0.0) -> Matching:
    """Solve the dual of CAGrad for updates of which only the inner products are known.

    floor  added to squared lengths before they are scaled, and to the length by which lambda is divided, as
           the released code does; 0 = the result does not depend on the unit of the updates
    """
    clients = len(gram)
    unit = float(np.sqrt(np.clip(gram.diagonal(), 0, None) + floor).mean())
    scaled = gram / unit**2 if unit else gram
    with_mean = scaled.mean(axis=1)
    pull = radius * float(np.sqrt(max(with_mean.mean(), 0.0) + SMOOTHING))
    weights, steps = np.full(clients, 1 / clients), 0
    if pull:
        weights, steps = _minimize_on_simplex(with_mean, scaled, pull)
    length = float(np.sqrt(weights @ scaled @ weights + SMOOTHING))
    return Matching(weights, pull / (length + floor), steps)


def _minimize_on_simplex(linear: Vector, matrix: Vector, pull: float) -> tuple[Vector, int]:
    """Minimize <s, a> + c' sqrt(s^T G s + e) over the simplex by Newton's method with a log barrier.

    Steps are taken in units of s itself, in which the barrier's second derivative is the identity, so that
    the systems stay well-conditioned however close a weight comes to zero.
    """
    clients = len(linear)
    inner, weights, steps = np.eye(clients), np.full(clients, 1 / clients), 0
    sharpness = 1.0
    while True:
        for _ in range(100):
            product = matrix @ weights
            length = np.sqrt(weights @ product + SMOOTHING)
            slope = linear + pull * product / length
            curvature = pull * (matrix / length - np.outer(product, product) / length**3)
            scaled_slope = sharpness * weights * slope - 1
            system = sharpness * curvature * np.outer(weights, weights) + inner
            free, held = np.linalg.solve(system, np.stack([scaled_slope, weights], axis=1)).T
            direction = -free + (weights @ free) / (weights @ held) * held
            decrement = -float(direction @ scaled_slope)
            if decrement < 1e-9:
                break
            damping = 1 + np.sqrt(decrement) if decrement > 0.1 else 1.0
            weights = weights * (1 + direction / damping)
            steps += 1
        if clients / sharpness <= GAP:
            return weights / weights.sum(), steps
        sharpness *= 20.0
