"""Feature maps in blocks of channels, oneDNN's own layout, in which CPUs compute fastest.

Maps that stay in blocks from one convolution to the next make the pooling and the ReLU between them cheap.
Such tensors support first derivatives only, and neither vmap nor export, so maps are in blocks only where a
caller allows it: in plain training steps and evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

_WANTED = ContextVar("feature maps in blocks", default=False)


@contextmanager
def blocked_maps(wanted: bool = True) -> Iterator[None]:
    """Allow maps in blocks, or forbid them again within a part that needs more than first derivatives."""
    before = _WANTED.set(wanted)
    try:
        yield
    finally:
        _WANTED.reset(before)


def in_blocks(maps: Tensor) -> Tensor:
    """Convert maps to blocks where that is allowed and possible; else return them unchanged."""
    if torch.compiler.is_compiling() or not _WANTED.get() or maps.is_mkldnn:
        return maps
    if maps.device.type != "cpu" or maps.dtype != torch.float32 or not _available():
        return maps
    if torch.is_autocast_enabled("cpu"):
        return maps
    return maps.contiguous().to_mkldnn()


class BlockedStage(nn.Sequential):
    """Convolutions, max pools and ReLUs that run faster on maps in blocks.

    The output may be in blocks (see `dense`), unless the stage is the last of its kind: then its ReLUs
    run on ordinary maps, which is faster. In a flat state its weights keep their default order, from which
    conversion to blocks is faster than from channels last.
    """

    def __init__(self, *layers: nn.Module, last: bool = False) -> None:
        super().__init__(*layers)
        self.last = last

    def forward(self, maps: Tensor) -> Tensor:
        """Run the layers, on maps in blocks where that is allowed."""
        maps = in_blocks(maps)
        for layer in self:
            maps = layer(dense(maps) if self.last and isinstance(layer, nn.ReLU) else maps)
        return maps


def dense(maps: Tensor) -> Tensor:
    """Convert maps back to an ordinary tensor."""
    return maps.to_dense() if maps.is_mkldnn else maps


def _available() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)
