"""CSAC's projections (eq. 5): one convolution per tapped layer and model brings all maps to one size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Size, Tensor, nn

from unseen.models import Output


class Geometry(NamedTuple):
    """Kernel and stride of a convolution without padding."""

    kernel: tuple[int, int]
    stride: tuple[int, int]


def geometry(maps: Sequence[int], target: Sequence[int]) -> Geometry:
    """Choose the convolution that brings maps of one size (height, width) to a smaller or equal one exactly.

    Along each side stride = size // target and kernel = size - (target - 1) * stride, so that the windows
    cover every pixel: 28 -> 7 gives 4x4 windows 4 apart, 12 -> 4 gives 3x3 windows 3 apart.
    """
    strides = [size // wanted for size, wanted in zip(maps, target, strict=True)]
    kernels = [
        size - (wanted - 1) * stride for size, wanted, stride in zip(maps, target, strides, strict=True)
    ]
    return Geometry((kernels[0], kernels[1]), (strides[0], strides[1]))


def tapped_maps(output: Output) -> tuple[Tensor, ...]:
    """Return the maps of the tapped layers; without taps the features, as maps of one pixel."""
    return output.taps or (output.features[:, :, None, None],)


class Projections(nn.Module):
    """Both sides' convolutions, and the 1x1 queries and keys if the position-wise map uses them.

    The common size is that of the last tapped layer (of the smallest, should that be another one).
    """

    def __init__(self, shapes: Sequence[Size], *, channels: int, query_key: bool) -> None:
        super().__init__()
        target = min(shape[-2] for shape in shapes), min(shape[-1] for shape in shapes)
        self.fused = nn.ModuleList(_projection(shape, target, channels) for shape in shapes)
        self.local = nn.ModuleList(_projection(shape, target, channels) for shape in shapes)
        pointwise = len(shapes) if query_key else 0
        self.queries = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(pointwise))
        self.keys = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(pointwise))

    def forward(self, fused: Sequence[Tensor], local: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Project both networks' maps; each side comes back as (layers, n, channels, positions)."""
        return _apply(self.fused, fused).flatten(3), _apply(self.local, local).flatten(3)

    def queried(self, fused: Tensor, local: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the position-wise map compares: queries and keys, or the projected maps themselves."""
        if not self.queries:
            return fused, local
        queries = _apply(self.queries, fused[..., None])
        return queries.flatten(3), _apply(self.keys, local[..., None]).flatten(3)


def _projection(shape: Size, target: tuple[int, int], channels: int) -> nn.Conv2d:
    kernel, stride = geometry(shape[-2:], target)
    return nn.Conv2d(shape[-3], channels, kernel, stride=stride)


def _apply(layers: nn.ModuleList, maps: Sequence[Tensor] | Tensor) -> Tensor:
    return torch.stack([layer(values) for layer, values in zip(layers, maps, strict=True)])
