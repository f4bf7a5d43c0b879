"""The operations of augmentation policies, on batches: each image gets its own operation and strength.

Images with the same operation are changed together. Shears and rotations are about the centre; all that move
an image take the nearest pixel, as the policies' authors do, and fill with black.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.data.augment import change_colours

GEOMETRIC = ("shear-x", "shear-y", "translate-x", "translate-y", "rotate")
COLOUR = ("brightness", "contrast", "colour")
_LEVELS = 256


def apply_operations(images: Tensor, operations: tuple[str, ...], chosen: Tensor, strength: Tensor) -> None:
    """Apply to every image, in place, the operation at its position `chosen` in `operations`; none at -1.

    Strengths: shears as slopes, translations as parts of the side, rotations in degrees; brightness,
    contrast, colour and sharpness as factors (1 = unchanged); bits for posterize, a threshold for solarize.
    """
    groups: list[tuple[tuple[str, ...], Callable[[Tensor, Tensor, list[str]], Tensor]]] = [
        (GEOMETRIC, _move),
        (COLOUR, _colour),
        *(((name,), partial(_change, name)) for name in PIXELWISE),
    ]
    names = [operations[place] if place >= 0 else "" for place in chosen.tolist()]
    for members, change in groups:
        rows = [row for row, name in enumerate(names) if name in members]
        if rows:
            places = torch.tensor(rows)
            there = places.to(images.device)
            part = images.index_select(0, there)
            changed = change(part, strength[places].to(images), [names[row] for row in rows])
            images.index_copy_(0, there, changed)


def _move(images: Tensor, strength: Tensor, names: list[str]) -> Tensor:
    return move(images, move_matrices(names, strength, *images.shape[-2:]).to(images))


def _colour(images: Tensor, strength: Tensor, names: list[str]) -> Tensor:
    mine = [torch.tensor([name == wanted for name in names], device=images.device) for wanted in COLOUR]
    return change_colours(images, *(torch.where(chosen, strength, 1.0) for chosen in mine))


def _change(name: str, images: Tensor, strength: Tensor, _: list[str]) -> Tensor:
    return PIXELWISE[name](images, strength[:, None, None, None])


def move_matrices(names: list[str], strength: Tensor, height: int, width: int) -> Tensor:
    """Return the affine maps (n, 2, 3) from places in the new image to those in the old one, on -1..1."""
    pairs = zip(names, strength.tolist(), strict=True)
    return torch.tensor([_move_matrix(name, value, height / width) for name, value in pairs])


def _move_matrix(name: str, value: float, ratio: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if name == "rotate":
        sine, cosine = math.sin(math.radians(value)), math.cos(math.radians(value))
        return (cosine, -sine * ratio, 0.0), (sine / ratio, cosine, 0.0)
    shear_x, shear_y, right, down = (
        value if name == wanted else 0.0 for wanted in ("shear-x", "shear-y", "translate-x", "translate-y")
    )
    return (1.0, -shear_x * ratio, -2 * right), (-shear_y / ratio, 1.0, -2 * down)


def move(images: Tensor, matrices: Tensor) -> Tensor:
    """Fill each image from its own nearest pixels at the places that an affine map names; black outside."""
    height, width = images.shape[-2:]
    down, across = ((2 * torch.arange(side, device=images.device) + 1) / side - 1 for side in (height, width))
    by_column, by_row, offset = (matrices[:, :, place, None] for place in range(3))
    grid = images.new_empty(len(images), height, width, 2)
    for axis in range(2):
        along = by_column[:, axis] * across
        along_rows = by_row[:, axis] * down + offset[:, axis]
        torch.add(along_rows[:, :, None], along[:, None, :], out=grid[..., axis])
    return F.grid_sample(images, grid, mode="nearest", padding_mode="zeros", align_corners=False)


def sharpen(images: Tensor, factor: Tensor) -> Tensor:
    """Move away from (factor above 1) or towards a 3x3 blur whose centre weighs 5 of 13; edges stay."""
    inner = images[:, :, 1:-1, 1:-1]
    in_rows = images[:, :, :-2] + images[:, :, 1:-1] + images[:, :, 2:]
    blurred = (in_rows[..., :-2] + in_rows[..., 1:-1] + in_rows[..., 2:] + 4 * inner) / 13
    changed = images.clone()
    changed[:, :, 1:-1, 1:-1] = torch.lerp(blurred, inner, factor)
    return changed.clamp_(0, 1)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest bits of the eight of every value."""
    step = 2 ** (8 - bits.round())
    return (_bytes(images) / step).floor_().mul_(step).div_(_LEVELS - 1)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert values at or above the threshold."""
    return torch.where(images >= threshold, 1 - images, images)


def autocontrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch every channel to the whole range 0..1; a channel with one value stays."""
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    factor = torch.where(high > low, 1 / (high - low), 1.0)
    return torch.where(high > low, (images - low) * factor, images).clamp_(0, 1)


def equalize(images: Tensor, _: Tensor) -> Tensor:
    """Spread the values of every channel so that their histogram is flat, by the rule of Pillow.

    With s = (pixels - count of the brightest level) // 255, level v becomes (count below v + s // 2) // s.
    """
    count, channels, height, width = images.shape
    levels = _bytes(images).long().reshape(count * channels, height * width)
    histogram = torch.zeros(count * channels, _LEVELS, dtype=torch.long, device=images.device)
    histogram.scatter_add_(1, levels, torch.ones_like(levels))
    brightest = levels.amax(dim=1, keepdim=True)
    step = (height * width - histogram.gather(1, brightest)) // (_LEVELS - 1)
    below = histogram.cumsum(1) - histogram
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(0, _LEVELS - 1)
    table = torch.where(step > 0, table, torch.arange(_LEVELS, device=images.device))
    return (table.gather(1, levels).to(images) / (_LEVELS - 1)).view(images.shape)


PIXELWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sharpness": sharpen,
    "posterize": posterize,
    "solarize": solarize,
    "autocontrast": autocontrast,
    "equalize": equalize,
}


def _bytes(images: Tensor) -> Tensor:
    return (images * (_LEVELS - 1)).round_()
