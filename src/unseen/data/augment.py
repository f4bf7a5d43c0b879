"""Augmentations: random changes to training images, whole batches at once, one draw per image.

Images are floats in 0..1 (n, channels, height, width). All draws come from the generator that
is passed in, so a batch is a pure function of it. Validation and test images never pass through here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.registry import Registry

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
AUGMENTATIONS: Registry[Augmentation] = Registry("augmentation", group="unseen.augmentations")

_CROP_AREA = (0.8, 1.0)
_CROP_RATIO = (3 / 4, 4 / 3)
_JITTER = 0.4
_GREY_CHANCE = 0.1
_SHIFT = 0.1
_LUMA = (0.299, 0.587, 0.114)


@AUGMENTATIONS.register("none")
def no_augmentation(images: Tensor, generator: torch.Generator) -> Tensor:
    """Leave the images as they are."""
    return images


@AUGMENTATIONS.register("standard")
def standard(images: Tensor, generator: torch.Generator) -> Tensor:
    """Random resized crop, horizontal flip, colour jitter and sometimes grey: the field's usual recipe."""
    return jitter_colours(crop_and_flip(images, generator), generator)


@AUGMENTATIONS.register("crop-flip")
def crop_and_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Zoom into a random window of 80 to 100 % of the area and mirror half of the images.

    Its aspect ratio is between 3:4 and 4:3, as far as a window of that area fits into the image.
    """
    draw = torch.rand(len(images), 5, generator=generator).to(images.device)
    side = _between(draw[:, 0], *_CROP_AREA).sqrt()
    stretch = _between(draw[:, 1], *(math.log(ratio) / 2 for ratio in _CROP_RATIO)).exp()
    stretch = stretch.clamp(min=side, max=1 / side)
    width, height = side * stretch, side / stretch
    mirror = torch.where(draw[:, 4] < 0.5, -1.0, 1.0)
    centre_x = (1 - width) * (2 * draw[:, 2] - 1)
    centre_y = (1 - height) * (2 * draw[:, 3] - 1)
    window = torch.stack([width * mirror, height, centre_x, centre_y], dim=1)
    return _resample(images, window, outside="border")


@AUGMENTATIONS.register("shift")
def shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to a tenth of its side, filled with black: digits have no mirror image."""
    draw = torch.rand(len(images), 2, generator=generator).to(images.device)
    move = 2 * _SHIFT * (2 * draw - 1)
    whole = torch.ones(len(images), device=images.device)
    return _resample(images, torch.stack([whole, whole, *move.unbind(1)], dim=1), outside="zeros")


def jitter_colours(images: Tensor, generator: torch.Generator) -> Tensor:
    """Change brightness, contrast and saturation by up to 40 %, and make every tenth image grey.

    The four steps are linear in an image's colours, so they are one small matrix per image:
    x' = b c (s x + (1 - s) grey(x)) + b (1 - c) mean grey, clamped once at the end.
    """
    count, channels, height, width = images.shape
    draw = torch.rand(count, 4, generator=generator).to(images.device)
    brightness, contrast, saturation = _between(draw[:, :3], 1 - _JITTER, 1 + _JITTER).unbind(1)
    saturation = torch.where(draw[:, 3] < _GREY_CHANCE, 0.0, saturation)
    luma = images.new_tensor(_LUMA if channels == 3 else [1 / channels] * channels)

    pixels = images.permute(0, 2, 3, 1).reshape(count, height * width, channels)
    mean_grey = pixels.mean(dim=1) @ luma
    identity = torch.eye(channels, device=images.device)
    to_grey = luma[:, None].expand(channels, channels)
    mix = identity * saturation[:, None, None] + to_grey * (1 - saturation[:, None, None])
    mix = mix * (brightness * contrast)[:, None, None]
    offset = (brightness * (1 - contrast) * mean_grey)[:, None, None]
    changed = torch.bmm(pixels, mix).add_(offset).clamp_(0, 1)
    return changed.view(count, height, width, channels).permute(0, 3, 1, 2)


def _resample(images: Tensor, window: Tensor, *, outside: str) -> Tensor:
    """Fill each image from a window of itself: half width, half height and centre on the scale -1..1."""
    width, height, centre_x, centre_y = window.unbind(1)
    zero = torch.zeros_like(width)
    rows = torch.stack([width, zero, centre_x, zero, height, centre_y], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(rows, list(images.shape), align_corners=False)
    filled = F.grid_sample(images, grid, mode="bilinear", padding_mode=outside, align_corners=False)
    last = images.is_contiguous(memory_format=torch.channels_last)
    return filled.clamp_(0, 1).contiguous(
        memory_format=torch.channels_last if last else torch.contiguous_format
    )


def _between(draw: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * draw
