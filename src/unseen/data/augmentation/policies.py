"""Policies, which draw operations and strengths per image: TrivialAugment, RandAugment, AugMix."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from unseen.data.augment import laid_out_like
from unseen.data.augmentation.augmentation_list import AUGMENTATIONS, Between
from unseen.data.augmentation.pixel_operations import GEOMETRIC, apply_operations

_LARGEST = 30
"""Largest magnitude: they are whole numbers from 0."""


class Range(NamedTuple):
    """Strength of an operation at magnitude u in 0..1: start + change * u, with a random sign if `signed`."""

    start: float
    change: float
    signed: bool = False


class Space:
    """The operations of a policy, each with its range of strengths."""

    def __init__(self, ranges: dict[str, Range]) -> None:
        self.ranges, self.operations = ranges, tuple(ranges)
        self._start, self._change, self._signed = (
            torch.tensor(column) for column in zip(*ranges.values(), strict=True)
        )

    def apply(self, images: Tensor, magnitude: Tensor, draw: Tensor, *, acting: Tensor | None = None) -> None:
        """Apply one operation per image, in place.

        magnitude  in 0..1, per image
        draw       two uniform numbers per image: which operation, and the sign of its strength
        acting     the images that are changed; all unless given
        """
        chosen = (draw[:, 0] * len(self.operations)).long()
        sign = torch.where(self._signed[chosen] & (draw[:, 1] < 0.5), -1.0, 1.0)
        strength = self._start[chosen] + sign * self._change[chosen] * magnitude
        if acting is not None:
            chosen = torch.where(acting, chosen, -1)
        apply_operations(images, self.operations, chosen, strength)


def make_space(
    *, shear: float, translate: float, rotate: float, enhance: float, bits: tuple[int, int]
) -> Space:
    """Make a space from the largest strengths; without `enhance` it has no colours and no sharpness.

    translate  in parts of the side
    bits       of posterize, at the least and the largest magnitude
    """
    largest = dict(zip(GEOMETRIC, (shear, shear, translate, translate, rotate), strict=True))
    enhanced = ("brightness", "colour", "contrast", "sharpness") if enhance else ()
    return Space(
        {
            "identity": Range(0, 0),
            **{name: Range(0, value, signed=True) for name, value in largest.items()},
            **{name: Range(1, enhance, signed=True) for name in enhanced},
            "posterize": Range(bits[0], bits[1] - bits[0]),
            "solarize": Range(1, -1),
            "autocontrast": Range(0, 0),
            "equalize": Range(0, 0),
        }
    )


WIDE = make_space(shear=0.99, translate=32 / 224, rotate=135, enhance=0.99, bits=(8, 2))
"""The wide space of TrivialAugment; its 32 pixels count for sides of 224."""
NARROW = make_space(shear=0.3, translate=150 / 331, rotate=30, enhance=0.9, bits=(8, 4))
"""The space of RandAugment."""
UNLIKE_CORRUPTIONS = make_space(shear=0.3, translate=1 / 3, rotate=30, enhance=0, bits=(4, 0))
"""The space of AugMix, without operations that resemble the corruptions of its benchmark."""


@AUGMENTATIONS.register("trivial-augment")
def trivial_augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """TrivialAugment (Müller and Hutter 2021): one random operation of random strength per image."""
    draw = torch.rand(len(images), 3, generator=generator)
    magnitude = (draw[:, 2] * (_LARGEST + 1)).floor() / _LARGEST
    changed = _planes(images)
    WIDE.apply(changed, magnitude, draw)
    return laid_out_like(images, changed)


@AUGMENTATIONS.register("rand-augment")
def rand_augment(
    images: Tensor,
    generator: torch.Generator,
    *,
    operations: Annotated[int, Between(1, 20, "number of operations in a row")] = 2,
    magnitude: Annotated[int, Between(0, _LARGEST, "strength of each operation")] = 9,
) -> Tensor:
    """RandAugment (Cubuk et al. 2020): two random operations in a row per image, at magnitude 9 of 30."""
    fixed = torch.full((len(images),), magnitude / _LARGEST)
    changed = _planes(images)
    for draw in torch.rand(operations, len(images), 2, generator=generator):
        NARROW.apply(changed, fixed, draw)
    return laid_out_like(images, changed)


@AUGMENTATIONS.register("augmix")
def augmix(
    images: Tensor,
    generator: torch.Generator,
    *,
    severity: Annotated[int, Between(1, 10, "largest strength of an operation")] = 3,
    width: Annotated[int, Between(1, 10, "number of chains that are blended")] = 3,
) -> Tensor:
    """AugMix (Hendrycks et al. 2020): blend an image with three chains of one to three operations on it.

    x' = (1 - m) x + m sum_i w_i chain_i(x), with m uniform and w uniform on the simplex, per image.
    The paper's consistency loss is not part of it.
    """
    count, longest = len(images), 3
    weights = torch.rand(count, width, generator=generator).clamp_(min=1e-12).log_().neg_()
    blend = torch.rand(count, 1, generator=generator)
    weights = blend * weights / weights.sum(1, keepdim=True)
    draw = torch.rand(longest, width * count, 3, generator=generator)
    length = 1 + (longest * torch.rand(width * count, generator=generator)).long()

    original = _planes(images)
    chains = original.repeat(width, 1, 1, 1)
    for number, each in enumerate(draw):
        magnitude = (0.1 + (severity - 0.1) * each[:, 2]) / 10
        UNLIKE_CORRUPTIONS.apply(chains, magnitude, each, acting=length > number)
    mixed = original.mul_(1 - blend.to(images)[:, :, None, None])
    for chain, weight in zip(chains.view(width, *images.shape), weights.T.to(images), strict=True):
        mixed.addcmul_(chain, weight[:, None, None, None])
    return laid_out_like(images, mixed.clamp_(0, 1))


def _planes(images: Tensor) -> Tensor:
    """Copy images channel by channel, the layout in which operations are faster."""
    return images.clone(memory_format=torch.contiguous_format)
