"""Whole arrays of small pictures at once: resizing, rotating, grey to colour."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.data.decode import Pixels

_CHUNK = 4096


def resize_images(images: Pixels, size: int, *, smooth: bool = False) -> Pixels:
    """Bring (n, height, width, channels) to squares: bilinear with antialiasing, or bicubic if `smooth`."""
    if images.shape[1:3] == (size, size):
        return images
    mode = "bicubic" if smooth else "bilinear"
    return _in_chunks(
        images,
        size,
        lambda part: F.interpolate(part, size=(size, size), mode=mode, antialias=True, align_corners=False),
    )


def rotate_images(images: Pixels, degrees: float) -> Pixels:
    """Rotate squares (n, side, side, channels) clockwise about their centre: bilinear, black outside.

    A negative angle turns counter-clockwise.
    """
    angle = math.radians(degrees)
    turn = torch.tensor([[math.cos(angle), math.sin(angle), 0.0], [-math.sin(angle), math.cos(angle), 0.0]])
    side = images.shape[1]

    def rotate(part: Tensor) -> Tensor:
        grid = F.affine_grid(turn.expand(len(part), 2, 3), list(part.shape), align_corners=False)
        return F.grid_sample(part, grid, mode="bilinear", padding_mode="zeros", align_corners=False)

    return _in_chunks(images, side, rotate)


def to_rgb(images: Pixels) -> Pixels:
    """Give (n, height, width) or one-channel pictures three equal channels."""
    if images.ndim == 3:
        images = images[..., None]
    return np.repeat(images, 3, axis=3) if images.shape[3] == 1 else images


def _in_chunks(images: Pixels, side: int, work: Callable[[Tensor], Tensor]) -> Pixels:
    """Apply `work` to float pictures (n, channels, height, width) part by part, rounding to uint8."""
    result = np.empty((len(images), side, side, images.shape[3]), np.uint8)
    for start in range(0, len(images), _CHUNK):
        part = torch.from_numpy(np.ascontiguousarray(images[start : start + _CHUNK]))
        done = work(part.permute(0, 3, 1, 2).float()).round_().clamp_(0, 255)
        result[start : start + _CHUNK] = done.to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return result
