"""Distances between two sets of features: maximum mean discrepancy with several Gaussian kernels, or MSE.

Both work on stacks of feature sets and return the matrix of all pairs at once, so that the distances inside a
set are computed once, however many partners the set has.
"""

from __future__ import annotations

import torch
from torch import Tensor

BANDWIDTHS = tuple(3.0**power for power in range(-3, 2))
"""Bandwidth of each kernel in units of the mean squared distance: 1/27, 1/9, 1/3, 1, 3."""
_SMALLEST_BANDWIDTH = 1e-30


def pairwise_mmd(first: Tensor, second: Tensor) -> Tensor:
    """Compute the squared MMD of every pair of sets: (L, n, d) and (M, n, d) give (L, M).

    For sets x and y of n features:

        mean_{i != j} k(x_i, x_j) + mean_{i != j} k(y_i, y_j) - 2 mean_{i, j} k(x_i, y_j)
        k(u, v) = sum_b exp(-|u - v|^2 / (2 b s)),  b in BANDWIDTHS

    s is the mean of the squared distances over all (2n)^2 pairs of the joint set, a constant for the backward
    pass. The within-terms are unbiased, so the value may be slightly negative. One sample has no within-term:
    for n = 1 all distances are zero.
    """
    samples = first.shape[1]
    if samples < 2:
        return (first.sum() + second.sum()).mul(0).expand(len(first), len(second))
    middle = torch.cat([first, second]).detach().mean((0, 1))
    first, second = first - middle, second - middle
    inside_first = _squared_distances(first, first)[:, None]
    inside_second = _squared_distances(second, second)[None]
    between = _squared_distances(first[:, None], second[None])
    scale = mean_squared_distance(inside_first, inside_second, between)
    return (
        _mean_off_diagonal(_kernel(inside_first, scale))
        + _mean_off_diagonal(_kernel(inside_second, scale))
        - 2 * _kernel(between, scale).mean((-2, -1))
    )


def pairwise_mse(first: Tensor, second: Tensor) -> Tensor:
    """Compute the mean squared error of every pair of sets: (L, n, d) and (M, n, d) give (L, M)."""
    return (first[:, None] - second[None]).square().mean((-2, -1))


@torch.no_grad()
def mean_squared_distance(inside_first: Tensor, inside_second: Tensor, between: Tensor) -> Tensor:
    """Average over all (2n)^2 pairs of the joint set, from its blocks; 1 where all features are equal."""
    total = inside_first.sum((-2, -1)) + inside_second.sum((-2, -1)) + 2 * between.sum((-2, -1))
    mean = total / (4 * between.shape[-1] ** 2)
    return torch.where(mean > _SMALLEST_BANDWIDTH, mean, 1.0)


def _squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """Compute |u - v|^2 of all pairs of rows with one matrix product; features should be centered."""
    products = first @ second.transpose(-1, -2)
    lengths = first.square().sum(-1)[..., :, None] + second.square().sum(-1)[..., None, :]
    return (lengths - 2 * products).clamp_min(0)


def _kernel(squared: Tensor, scale: Tensor) -> Tensor:
    """Sum the Gaussian kernels; `squared` (..., n, n) broadcasts against one scale per pair."""
    relative = squared / (-2 * scale[..., None, None])
    return torch.stack([relative / bandwidth for bandwidth in BANDWIDTHS]).exp().sum(0)


def _mean_off_diagonal(matrices: Tensor) -> Tensor:
    """Compute the mean over i != j of (..., n, n)."""
    size = matrices.shape[-1]
    total = matrices.sum((-2, -1)) - matrices.diagonal(dim1=-2, dim2=-1).sum(-1)
    return total / (size * (size - 1))
