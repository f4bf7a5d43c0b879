"""Normalize images: bytes scaled to 0..1, minus a mean, divided by a std, per channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalize:
    """Per-channel mean and std on the scale 0..1; one value serves all channels.

    The defaults leave images on the scale 0..1, and float images as they are. Rows of a table pass unchanged.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(
                f"mean has {len(self.mean)} values and std {len(self.std)}; expected as many of each"
            )
        if not all(value > 0 for value in self.std):
            raise ValueError(f"every std must be above 0; got {self.std}")

    def __call__(self, inputs: Tensor) -> Tensor:
        """Convert uint8 images to normalized floats in one multiply-add, keeping their memory layout."""
        if inputs.dtype == torch.uint8:
            factors = [1 / (255 * std) for std in self.std]
            own = inputs.to(torch.float32)
            return self._multiply_add(own, factors, out=own)
        if inputs.ndim == 4 and not self._changes_nothing:
            raise ValueError("expected uint8 images; floats on the scale 0..1 go through finish()")
        return inputs

    def scale(self, inputs: Tensor) -> Tensor:
        """Convert uint8 images to floats on the scale 0..1, the first half; tables pass unchanged."""
        return inputs.to(torch.float32).mul_(1 / 255) if inputs.dtype == torch.uint8 else inputs

    def finish(self, images: Tensor) -> Tensor:
        """Normalize float images on the scale 0..1, the second half; tables pass unchanged."""
        if images.ndim != 4 or self._changes_nothing:
            return images
        return self._multiply_add(images, [1 / std for std in self.std])

    def undo(self, images: Tensor) -> Tensor:
        """Convert normalized images back to the scale 0..1: the inverse of `finish`."""
        if images.ndim != 4 or self._changes_nothing:
            return images
        mean, std = (images.new_tensor(values).view(1, -1, 1, 1) for values in (self.mean, self.std))
        return torch.addcmul(mean, images, std)

    def to_dict(self) -> dict[str, list[float]]:
        """Return the values as plain lists, for files."""
        return {"mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Normalize:
        """Read what `to_dict` returned."""
        return cls(mean=tuple(map(float, values["mean"])), std=tuple(map(float, values["std"])))

    @property
    def _changes_nothing(self) -> bool:
        return not any(self.mean) and all(std == 1 for std in self.std)

    def _multiply_add(self, images: Tensor, factors: Sequence[float], out: Tensor | None = None) -> Tensor:
        channels, width = images.shape[1], images.shape[3]
        if len(self.mean) not in (1, channels):
            raise ValueError(
                f"{len(self.mean)} means for images of {channels} channels; expected 1 or {channels}"
            )
        offsets = [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]
        last = images.is_contiguous(memory_format=torch.channels_last)
        factor, offset = (
            _as_row(
                tuple(values), channels, width, channels_last=last, dtype=images.dtype, device=images.device
            )
            for values in (factors, offsets)
        )
        return torch.mul(images, factor, out=out).add_(offset)


@lru_cache(maxsize=64)
def _as_row(
    values: tuple[float, ...],
    channels: int,
    width: int,
    *,
    channels_last: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Lay out one value per channel like a row of the images: with channels last, three times as fast.

    Cached for the next batch, and created outside inference mode, whose tensors training could not use.
    """
    layout = torch.channels_last if channels_last else torch.contiguous_format
    with torch.inference_mode(False):
        each = torch.tensor(values, dtype=dtype, device=device).view(1, -1, 1, 1)
        return each.expand(1, channels, 1, width).contiguous(memory_format=layout)


IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""Normalization that networks pretrained on ImageNet expect."""
