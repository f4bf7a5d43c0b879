"""Augmentations of feature maps after the first stages of a network: MixStyle, EFDMix, DSU.

Maps come as (n, channels, positions). The mean and deviation of a channel over its positions are the image's
style. Each acts on half of the batches; whether it does is drawn once per batch and stage.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from unseen.data.augmentation.augmentation_list import AUGMENTATIONS, Between, acts_on
from unseen.data.augmentation.sample_mixing import Alpha, draw_beta, draw_partners

Probability = Annotated[float, Between(0, 1, "fraction of the batches that it changes")]
_EPSILON = 1e-6


@AUGMENTATIONS.register("mixstyle")
@acts_on("stages", mixes_samples=True)
def mixstyle(
    maps: Tensor, generator: torch.Generator, *, probability: Probability = 0.5, alpha: Alpha = 0.1
) -> Tensor:
    """MixStyle (Zhou et al. 2021): blend channel means and deviations of feature maps between images.

    x' = s' (x - m) / s + m' with m' = t m_i + (1 - t) m_partner, likewise s', and t ~ Beta(alpha, alpha) per
    image. Gradients do not flow through m and s.
    """
    if not _happens(probability, generator):
        return maps
    share = draw_beta(len(maps), alpha, generator).to(maps)[:, None, None]
    partner = draw_partners(len(maps), generator).to(maps.device)
    mean, deviation = (value.detach() for value in style_of(maps))
    return blend_styles(maps, (mean, deviation), (mean[partner], deviation[partner]), share)


@AUGMENTATIONS.register("efdmix")
@acts_on("stages", mixes_samples=True)
def efdmix(
    maps: Tensor, generator: torch.Generator, *, probability: Probability = 0.5, alpha: Alpha = 0.1
) -> Tensor:
    """EFDMix (Zhang et al. 2022): blend the whole distribution of a channel's values, not its moments alone.

    The k-th smallest value moves towards the partner's k-th smallest: x' = x + (1 - t) (sorted partner - x),
    where the difference counts as a constant.
    """
    if not _happens(probability, generator):
        return maps
    share = draw_beta(len(maps), alpha, generator).to(maps)[:, None, None]
    partner = draw_partners(len(maps), generator).to(maps.device)
    own = maps.detach()
    ordered, place = own.sort(dim=2)
    matched = torch.empty_like(own).scatter_(2, place, ordered[partner])
    return maps + (matched - own) * (1 - share)


@AUGMENTATIONS.register("dsu")
@acts_on("stages", mixes_samples=True)
def dsu(maps: Tensor, generator: torch.Generator, *, probability: Probability = 0.5) -> Tensor:
    """DSU (Li et al. 2022): noise on channel means and deviations, as wide as they vary in a batch.

    x' = (s + e_s S_s) (x - m) / s + m + e_m S_m, where S_m and S_s are the deviations of m and s over the
    batch, and e_m, e_s are standard normal per image and channel.
    """
    if not _happens(probability, generator) or len(maps) < 2:
        return maps
    mean, deviation = style_of(maps)
    noise = torch.randn(2, *mean.shape, generator=generator).to(maps)
    new_mean = mean + noise[0] * (mean.var(dim=0, keepdim=True) + _EPSILON).sqrt()
    new_deviation = deviation + noise[1] * (deviation.var(dim=0, keepdim=True) + _EPSILON).sqrt()
    factor = new_deviation / deviation
    return torch.addcmul(new_mean - factor * mean, maps, factor)


def style_of(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of every channel of every image, (n, channels, 1) each."""
    variance, mean = torch.var_mean(maps, dim=2, keepdim=True)
    return mean, (variance + _EPSILON).sqrt()


def blend_styles(
    maps: Tensor, own: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], share: Tensor
) -> Tensor:
    """Replace each map's style `own` (see `style_of`) by share * own + (1 - share) * other."""
    mean, deviation = own
    mixed_mean, mixed_deviation = (
        torch.lerp(away, kept, share) for kept, away in zip(own, other, strict=True)
    )
    factor = mixed_deviation / deviation
    return torch.addcmul(mixed_mean - factor * mean, maps, factor)


def _happens(probability: float, generator: torch.Generator) -> bool:
    return float(torch.rand((), generator=generator)) < probability
