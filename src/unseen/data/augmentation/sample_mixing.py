"""Augmentations that mix images of a batch, which are images of one client: Mixup, CutMix, amplitude mix.

The partner of an image is drawn as a permutation of the batch, so an image may be its own.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from unseen.data.augment import laid_out_like
from unseen.data.augmentation.augmentation_list import AUGMENTATIONS, Between, Mixed, acts_on

Alpha = Annotated[float, Between(0.001, 1000, "both parameters of the Beta distribution of the shares")]

_EPSILON = 1e-12
"""Amplitudes below it have no phase, so they stay zero."""


def draw_beta(count: int, alpha: float, generator: torch.Generator) -> Tensor:
    """Draw shares from Beta(alpha, alpha), one per image."""
    seed = int(torch.randint(2**62, (1,), generator=generator))
    return torch.from_numpy(np.random.default_rng(seed).beta(alpha, alpha, count).astype(np.float32))


def draw_partners(count: int, generator: torch.Generator) -> Tensor:
    """Draw a permutation of a batch: the partner of every image."""
    return torch.randperm(count, generator=generator)


@AUGMENTATIONS.register("mixup")
@acts_on("images", mixes_targets=True)
def mixup(images: Tensor, generator: torch.Generator, *, alpha: Alpha = 0.2) -> Mixed:
    """Mixup (Zhang et al. 2018): blend each image and label with another's, by Beta(0.2, 0.2)."""
    share = draw_beta(len(images), alpha, generator).to(images.device)
    partner = draw_partners(len(images), generator).to(images.device)
    return Mixed(torch.lerp(images[partner], images, share[:, None, None, None]), partner, share)


@AUGMENTATIONS.register("cutmix")
@acts_on("images", mixes_targets=True)
def cutmix(images: Tensor, generator: torch.Generator, *, alpha: Alpha = 1.0) -> Mixed:
    """CutMix (Yun et al. 2019): paste a rectangle of another image; labels are blended by area.

    The rectangle has sides sqrt(1 - share) times the image's around a uniform centre and is cut off at the
    edges, after which the share is that of the pixels left.
    """
    count, _, height, width = images.shape
    drawn = draw_beta(count, alpha, generator)
    partner = draw_partners(count, generator).to(images.device)
    centre = torch.rand(count, 2, generator=generator)
    rows, row_count = _stretch(centre[:, 0], (1 - drawn).sqrt(), height)
    columns, column_count = _stretch(centre[:, 1], (1 - drawn).sqrt(), width)
    pasted = (rows[:, :, None] & columns[:, None, :]).to(images.device)
    share = 1 - (row_count * column_count).float() / (height * width)
    return Mixed(torch.where(pasted[:, None], images[partner], images), partner, share.to(images.device))


def _stretch(centre: Tensor, length: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Mark the positions along a side that a stretch covers, and count them."""
    middle, half = (centre * side).floor(), (length * side / 2).floor()
    place = torch.arange(side)
    covered = (place >= (middle - half)[:, None]) & (place < (middle + half)[:, None])
    return covered, covered.sum(1)


@AUGMENTATIONS.register("amplitude-mix")
@acts_on("images", mixes_samples=True)
def mix_amplitudes_locally(
    images: Tensor,
    generator: torch.Generator,
    *,
    most: Annotated[float, Between(0, 1, "largest share of the partner's amplitude")] = 1.0,
) -> Tensor:
    """Amplitude mix (FACT, Xu et al. 2021): blend Fourier amplitudes of images; phases and labels stay.

    |F'| = (1 - t) |F_i| + t |F_partner| at every frequency, with t uniform in 0..most per image.
    """
    share = (most * torch.rand(len(images), generator=generator)).to(images.device)
    partner = draw_partners(len(images), generator).to(images.device)
    spectrum = torch.fft.rfft2(images.contiguous())
    amplitude = torch.view_as_real(spectrum).square().sum(-1).sqrt_()
    wanted = torch.lerp(amplitude, amplitude[partner], share[:, None, None, None])
    mixed = torch.fft.irfft2(spectrum.mul_(wanted.div_(amplitude.clamp_(min=_EPSILON))), s=images.shape[-2:])
    return laid_out_like(images, mixed.clamp_(0, 1))
