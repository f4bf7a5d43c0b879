"""How alike two pictures are: PSNR, SSIM, and whether one picks the other out among many.

Pictures are floats on the scale 0..1 (n, channels, height, width).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

LARGEST_PSNR = 100.0
"""What two equal pictures get, whose ratio would be infinite."""
_WINDOW = 7
_C1, _C2 = 0.01**2, 0.03**2
_TINY = 1e-12


def psnr(pictures: Tensor, others: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of every pair, in decibels."""
    error = (pictures - others).square().mean(dim=(1, 2, 3))
    return (-10 * torch.log10(error.clamp(min=_TINY))).clamp(max=LARGEST_PSNR)


def ssim(pictures: Tensor, others: Tensor) -> Tensor:
    """Structural similarity of every pair (Wang et al. 2004) with a flat window of 7x7, or what fits.

    Variances are those of samples (divided by one less), the mean is taken over all whole windows.
    """
    side = min(_WINDOW, *pictures.shape[2:])
    side -= 1 - side % 2
    pixels = side * side
    unbiased = pixels / max(pixels - 1, 1)

    def window(values: Tensor) -> Tensor:
        return F.avg_pool2d(values, side, stride=1)

    first, second = pictures.double(), others.double()
    mean1, mean2 = window(first), window(second)
    spread1 = unbiased * (window(first * first) - mean1 * mean1)
    spread2 = unbiased * (window(second * second) - mean2 * mean2)
    common = unbiased * (window(first * second) - mean1 * mean2)
    light = (2 * mean1 * mean2 + _C1) / (mean1.square() + mean2.square() + _C1)
    structure = (2 * common + _C2) / (spread1 + spread2 + _C2)
    likeness: Tensor = (light * structure).mean(dim=(1, 2, 3)).to(pictures.dtype)
    return likeness


class Rank(NamedTuple):
    """At which place the true original stands when candidates are ordered by likeness; 1 is found at once."""

    place: int
    candidates: int


def rank(rebuilt: Tensor, original: Tensor, others: Tensor) -> Rank:
    """Order the original and other pictures by their correlation with a rebuilt one.

    Correlation, because a rebuilt picture that is only too pale, or too bright, tells as much. A candidate
    that is as like as the original stands before it.
    """
    candidates = _standardised(torch.cat([original[None], others]))
    likeness = candidates @ _standardised(rebuilt[None])[0]
    return Rank(int((likeness[1:] >= likeness[0]).sum()) + 1, len(candidates))


def _standardised(pictures: Tensor) -> Tensor:
    flat = pictures.flatten(1).double()
    flat = flat - flat.mean(dim=1, keepdim=True)
    lengths: Tensor = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return flat / lengths.clamp(min=_TINY)


def match_images(rebuilt: Tensor, originals: Tensor) -> list[int]:
    """Which rebuilt picture stands for each original: the closest pair first, each used once.

    A batch has no order, so this is how an owner who knows the originals would lay them side by side.
    """
    distances = torch.cdist(originals.flatten(1), rebuilt.flatten(1))
    partner = [-1] * len(originals)
    for _ in range(min(len(originals), len(rebuilt))):
        row, column = divmod(int(distances.argmin()), distances.shape[1])
        partner[row] = column
        distances[row, :] = torch.inf
        distances[:, column] = torch.inf
    return partner
