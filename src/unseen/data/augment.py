"""Augmentations: random changes in training, named in a list such as `standard+mixstyle:0.5`.

An augmentation of images gets floats in 0..1 (n, channels, height, width) and makes one draw per image, whole
batches at once. All draws come from the generator that is passed in, so a batch is a pure function of it.
Others act on what the network computes of a batch (see `Level`); `training/feature_augment.py` calls them.
Validation and test samples never pass through here.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.data.augmentation.augmentation_list import AUGMENTATIONS

__all__ = [
    "AUGMENTATIONS",
    "change_colours",
    "crop_and_flip",
    "crop_windows",
    "jitter_colours",
    "laid_out_like",
    "luma_weights",
    "resample_windows",
    "rotate_hues",
    "shift",
]
_SMALLEST_CROP = 0.8
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
    return crop_windows(images, draw, smallest=_SMALLEST_CROP)


def crop_windows(images: Tensor, draw: Tensor, *, smallest: float) -> Tensor:
    """Zoom into windows by five uniform draws per image: area, ratio, place x, place y, mirror.

    smallest  the least part of the area
    """
    side = _between(draw[:, 0], smallest, 1.0).sqrt()
    stretch = _between(draw[:, 1], *(math.log(ratio) / 2 for ratio in _CROP_RATIO)).exp()
    stretch = stretch.clamp(min=side, max=1 / side)
    width, height = side * stretch, side / stretch
    mirror = torch.where(draw[:, 4] < 0.5, -1.0, 1.0)
    centre_x = (1 - width) * (2 * draw[:, 2] - 1)
    centre_y = (1 - height) * (2 * draw[:, 3] - 1)
    window = torch.stack([width * mirror, height, centre_x, centre_y], dim=1)
    return resample_windows(images, window, outside="border")


@AUGMENTATIONS.register("shift")
def shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to a tenth of its side, filled with black: digits have no mirror image."""
    draw = torch.rand(len(images), 2, generator=generator).to(images.device)
    move = 2 * _SHIFT * (2 * draw - 1)
    whole = torch.ones(len(images), device=images.device)
    return resample_windows(images, torch.stack([whole, whole, *move.unbind(1)], dim=1), outside="zeros")


def jitter_colours(images: Tensor, generator: torch.Generator) -> Tensor:
    """Change brightness, contrast and saturation by up to 40 %, and make every tenth image grey."""
    draw = torch.rand(len(images), 4, generator=generator).to(images.device)
    brightness, contrast, saturation = _between(draw[:, :3], 1 - _JITTER, 1 + _JITTER).unbind(1)
    saturation = torch.where(draw[:, 3] < _GREY_CHANCE, 0.0, saturation)
    return change_colours(images, brightness, contrast, saturation)


def change_colours(
    images: Tensor,
    brightness: Tensor,
    contrast: Tensor,
    saturation: Tensor,
    *,
    rotation: Tensor | None = None,
) -> Tensor:
    """Scale brightness, contrast and saturation of each image, and rotate its hues.

    The steps are linear in an image's colours, so they are one small matrix per image:
    x' = b c (s x + (1 - s) grey(x)) + b (1 - c) mean grey, clamped once at the end. A rotation keeps
    grey(x), so it may come first.

    rotation  matrices (n, channels, channels) from `rotate_hues`, applied to colours as columns
    """
    count, channels, height, width = images.shape
    luma = luma_weights(channels, images)
    pixels = images.permute(0, 2, 3, 1).reshape(count, height * width, channels)
    mean_grey = pixels.mean(dim=1) @ luma
    identity = torch.eye(channels, device=images.device)
    to_grey = luma[:, None].expand(channels, channels)
    mix = identity * saturation[:, None, None] + to_grey * (1 - saturation[:, None, None])
    if rotation is not None:
        mix = rotation.mT @ mix
    mix = mix * (brightness * contrast)[:, None, None]
    offset = (brightness * (1 - contrast) * mean_grey)[:, None, None]
    changed = torch.bmm(pixels, mix).add_(offset).clamp_(0, 1)
    return changed.view(count, height, width, channels).permute(0, 3, 1, 2)


def rotate_hues(turns: Tensor) -> Tensor:
    """Return the matrices (n, 3, 3) that rotate the hue of RGB columns by a part of a turn, in YIQ space.

    Y is the luma; I and Q span the plane of colours without grey, in which the rotation takes place.
    """
    to_yiq = turns.new_tensor([_LUMA, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)])
    angle = 2 * math.pi * turns
    rotation = torch.eye(3, device=turns.device).repeat(len(turns), 1, 1)
    rotation[:, 1, 1] = rotation[:, 2, 2] = angle.cos()
    rotation[:, 2, 1] = angle.sin()
    rotation[:, 1, 2] = -angle.sin()
    matrices: Tensor = torch.linalg.inv(to_yiq) @ rotation @ to_yiq
    return matrices


def luma_weights(channels: int, like: Tensor) -> Tensor:
    """Return the weight of each channel in grey: the eye's for RGB, else equal."""
    return like.new_tensor(_LUMA if channels == 3 else [1 / channels] * channels)


def resample_windows(images: Tensor, window: Tensor, *, outside: str) -> Tensor:
    """Fill each image from a window of itself: half width, half height and centre on the scale -1..1."""
    width, height, centre_x, centre_y = window.unbind(1)
    zero = torch.zeros_like(width)
    rows = torch.stack([width, zero, centre_x, zero, height, centre_y], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(rows, list(images.shape), align_corners=False)
    filled = F.grid_sample(images, grid, mode="bilinear", padding_mode=outside, align_corners=False)
    return laid_out_like(images, filled.clamp_(0, 1))


def laid_out_like(images: Tensor, changed: Tensor) -> Tensor:
    """Return `changed` in the memory layout of `images`."""
    last = images.is_contiguous(memory_format=torch.channels_last)
    return changed.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def _between(draw: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * draw
