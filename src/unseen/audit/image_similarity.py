"""Similarity of two images: PSNR, SSIM, and whether one identifies the other among many.

Pictures are floats on the scale 0..1 (n, channels, height, width).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

LARGEST_PSNR = 100.0
"""The value for two equal images, whose ratio would be infinite."""
_WINDOW = 7
_C1, _C2 = 0.01**2, 0.03**2
_TINY = 1e-12


def psnr(images: Tensor, others: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of every pair, in decibels."""
    error = (images - others).square().mean(dim=(1, 2, 3))
    return (-10 * torch.log10(error.clamp(min=_TINY))).clamp(max=LARGEST_PSNR)


def ssim(images: Tensor, others: Tensor) -> Tensor:
    """Structural similarity of every pair (Wang et al. 2004) with a flat window of 7x7, or what fits.

    Variances are those of samples (divided by one less), the mean is taken over all whole windows.
    """
    side = min(_WINDOW, *images.shape[2:])
    side -= 1 - side % 2
    pixels = side * side
    unbiased = pixels / max(pixels - 1, 1)

    def window(values: Tensor) -> Tensor:
        return F.avg_pool2d(values, side, stride=1)

    first, second = images.double(), others.double()
    mean1, mean2 = window(first), window(second)
    spread1 = unbiased * (window(first * first) - mean1 * mean1)
    spread2 = unbiased * (window(second * second) - mean2 * mean2)
    common = unbiased * (window(first * second) - mean1 * mean2)
    light = (2 * mean1 * mean2 + _C1) / (mean1.square() + mean2.square() + _C1)
    structure = (2 * common + _C2) / (spread1 + spread2 + _C2)
    similarity: Tensor = (light * structure).mean(dim=(1, 2, 3)).to(images.dtype)
    return similarity


class Rank(NamedTuple):
    """Position of the true original when candidates are ordered by similarity; 1 = found at once."""

    place: int
    candidates: int


def rank(rebuilt: Tensor, original: Tensor, others: Tensor) -> Rank:
    """Order the original and other images by their correlation with a rebuilt one.

    Correlation, because a rebuilt image that is only too pale, or too bright, reveals as much. A
    candidate that is as similar as the original is placed before it.
    """
    candidates = _standardize(torch.cat([original[None], others]))
    similarity = candidates @ _standardize(rebuilt[None])[0]
    return Rank(int((similarity[1:] >= similarity[0]).sum()) + 1, len(candidates))


def _standardize(images: Tensor) -> Tensor:
    flat = images.flatten(1).double()
    flat = flat - flat.mean(dim=1, keepdim=True)
    lengths: Tensor = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return flat / lengths.clamp(min=_TINY)


def match_images(rebuilt: Tensor, originals: Tensor) -> list[int]:
    """Assign a rebuilt image to each original: the closest pair first, each used once.

    A batch has no order, so this is how an owner who knows the originals would compare them.
    """
    distances = torch.cdist(originals.flatten(1), rebuilt.flatten(1))
    partner = [-1] * len(originals)
    for _ in range(min(len(originals), len(rebuilt))):
        row, column = divmod(int(distances.argmin()), distances.shape[1])
        partner[row] = column
        distances[row, :] = torch.inf
        distances[:, column] = torch.inf
    return partner
