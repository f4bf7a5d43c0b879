"""Single augmentations of images to combine: crop, flip, colour, grayscale."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from unseen.data.augment import change_colours, crop_windows, luma_weights, rotate_hues
from unseen.data.augmentation.augmentation_list import AUGMENTATIONS, Between

Chance = Annotated[float, Between(0, 1, "fraction of the images that it changes")]


@AUGMENTATIONS.register("crop")
def crop(
    images: Tensor,
    generator: torch.Generator,
    *,
    smallest: Annotated[float, Between(0.01, 1, "least fraction of the area that a window shows")] = 0.8,
) -> Tensor:
    """Random resized crop: a window of 80 to 100 % of the area; `crop:0.3` from 30 %."""
    draw = torch.rand(len(images), 4, generator=generator)
    unmirrored = torch.ones(len(images), 1)
    return crop_windows(images, torch.cat([draw, unmirrored], dim=1).to(images.device), smallest=smallest)


@AUGMENTATIONS.register("flip")
def flip(images: Tensor, generator: torch.Generator, *, chance: Chance = 0.5) -> Tensor:
    """Mirror every second image, left to right."""
    mirrored = (torch.rand(len(images), generator=generator) < chance).to(images.device)
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


@AUGMENTATIONS.register("colour")
def jitter_all_colours(
    images: Tensor,
    generator: torch.Generator,
    *,
    strength: Annotated[float, Between(0, 1, "largest change of brightness, contrast, saturation")] = 0.4,
    hue: Annotated[float, Between(0, 0.5, "largest rotation of the hue, in turns")] = 0.1,
) -> Tensor:
    """Change brightness, contrast, saturation by up to 40 %; rotate the hue by up to 0.1 turns."""
    draw = 2 * torch.rand(len(images), 4, generator=generator).to(images.device) - 1
    brightness, contrast, saturation = (1 + strength * draw[:, :3]).unbind(1)
    rotation = rotate_hues(hue * draw[:, 3]) if images.shape[1] == 3 else None
    return change_colours(images, brightness, contrast, saturation, rotation=rotation)


@AUGMENTATIONS.register("grayscale")
def grayscale(images: Tensor, generator: torch.Generator, *, chance: Chance = 0.1) -> Tensor:
    """Make every tenth image grey."""
    chosen = (torch.rand(len(images), generator=generator) < chance).to(images.device)
    grey = torch.einsum("nchw,c->nhw", images, luma_weights(images.shape[1], images))
    return torch.where(chosen[:, None, None, None], grey[:, None], images)
