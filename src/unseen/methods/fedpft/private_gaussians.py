"""One Gaussian per class with differential privacy of samples: the Gaussian mechanism on clipped sums.

A sample of class c with clipped features f, |f| <= C, adds (1, f / C, f^2 / C^2) to the sums of its class
(f^2 feature by feature) and nothing to those of others. Each of the three parts has norm at most 1, as
sum f_i^4 <= (sum f_i^2)^2. Replacing a sample by another of the same class changes the count by 0, the second
part by at most 2 and the third, of vectors without negative numbers, by at most sqrt(2): together sqrt(6).
Replacing it by one of another class changes two vectors by at most sqrt(3) each: together sqrt(6) again. So
noise of std sqrt(6) times the noise multiplier on every number protects all classes' sums at once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unseen.methods.fedpft.gaussian_mixtures import REGULARIZATION, Covariance, Mixture
from unseen.privacy.dp.noise import NoiseStream

SENSITIVITY = math.sqrt(6)
"""Largest change of all sums of a client, in units of the clipping norm, if one sample is replaced."""


def find_noise_multiplier(epsilon: float, delta: float) -> float:
    """Find the std of noise, per unit of sensitivity, of an (epsilon, delta) Gaussian mechanism.

    Balle and Wang (2018), theorem 8: the mechanism is exactly (epsilon, delta)-private if and only if
    Phi(1 / 2s - epsilon s) - e^epsilon Phi(-1 / 2s - epsilon s) <= delta. The left side falls with s.
    """
    low, high = 0.0, 1.0
    while gaussian_delta(high, epsilon) > delta:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, epsilon) > delta else (low, middle)
    return high


def gaussian_delta(multiplier: float, epsilon: float) -> float:
    """Compute the smallest delta of the Gaussian mechanism of sensitivity 1 at this epsilon."""
    far, near = torch.tensor([-1.0, 1.0], dtype=torch.float64) / (2 * multiplier) - epsilon * multiplier
    tail = torch.exp(epsilon + torch.special.log_ndtr(far))
    return float(torch.special.ndtr(near) - tail)


def sum_clipped(features: Tensor, labels: Tensor, *, classes: int, clip_norm: float) -> Tensor:
    """Sum (1, f / C, f^2 / C^2) over the samples of each class (classes x 1 + 2 features)."""
    norms = features.norm(dim=1, keepdim=True)
    scaled = features / norms.clamp(min=clip_norm)
    rows = torch.cat([torch.ones_like(norms), scaled, scaled.square()], dim=1)
    return torch.zeros(classes, rows.shape[1], dtype=rows.dtype).index_add_(0, labels, rows)


def add_noise(sums: Tensor, *, multiplier: float, stream: NoiseStream) -> Tensor:
    """Add the noise that protects single samples to every number."""
    noise = torch.from_numpy(stream.normal(sums.numel())).reshape(sums.shape)
    return sums + SENSITIVITY * multiplier * noise


def read_gaussian(
    sums: Tensor, *, samples: int, clip_norm: float, covariance: Covariance
) -> tuple[int, Mixture]:
    """Turn one class's noised sums into a count and a Gaussian; a count of 0 where noise is all there is.

    Only the noised sums and the client's number of samples are used, so it costs no privacy.

    samples  number of the client's samples of all classes, which a count cannot exceed
    """
    count = min(max(round(float(sums[0])), 0), samples)
    first, second = (sums[1:] / max(float(sums[0]), 1.0)).tensor_split(2)
    mean = first / first.norm().clamp(min=1)
    variances = (second - mean.square()).clamp(min=0)
    if covariance == "spherical":
        variances = variances.mean(0, keepdim=True)
    one = torch.ones(1, dtype=sums.dtype)
    return count, Mixture(one, clip_norm * mean[None], clip_norm**2 * variances[None] + REGULARIZATION)
