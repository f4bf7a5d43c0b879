"""A small vision transformer for small images: the fast member of MDFL's transformer family."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from unseen.models.factory import MODELS, InputSpec, ModelEntry
from unseen.models.network import Network

_WIDTH, _HEADS, _DEPTH = 64, 4, 4


class Block(nn.Module):
    """Self-attention and a two-layer perceptron, each behind a layer norm, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform tokens (n, count, width)."""
        split = self.queries_keys_values(self.norm1(tokens)).unflatten(2, (3, self.heads, -1))
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(queries, keys, values)
        tokens = tokens + self.merge(attended.transpose(1, 2).flatten(2))
        return cast(Tensor, tokens + self.perceptron(self.norm2(tokens)))


class MiniViT(Network):
    """Patches, learned positions, a few blocks; the feature is the mean token.

    Patches are 4x4 pixels, 2x2 up to images of 16; other sides are padded with zeros at the right and bottom.
    Taps are the outputs of the last three blocks as maps.
    """

    def __init__(self, spec: InputSpec) -> None:
        super().__init__()
        channels, height, width = spec.image_shape("mini-vit", smallest=4)
        patch = 2 if min(height, width) <= 16 else 4
        self.filling = (0, -width % patch, 0, -height % patch)
        self.grid = (-(-height // patch), -(-width // patch))
        self.patches = nn.Conv2d(channels, _WIDTH, patch, stride=patch)
        self.positions = nn.Parameter(torch.empty(1, self.grid[0] * self.grid[1], _WIDTH))
        nn.init.trunc_normal_(self.positions, std=0.02)
        self.blocks = nn.ModuleList(Block(_WIDTH, _HEADS) for _ in range(_DEPTH))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, spec.outputs)
        self.tap_names = tuple(f"blocks.{number}" for number in range(_DEPTH - 3, _DEPTH))

    def extract(self, inputs: Tensor, *, taps: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the mean token of the last block and, if requested, the block outputs as maps."""
        maps = self.patches(functional.pad(inputs, self.filling) if any(self.filling) else inputs)
        tokens = maps.flatten(2).transpose(1, 2) + self.positions
        kept = []
        for number, block in enumerate(self.blocks):
            tokens = block(tokens)
            if taps and f"blocks.{number}" in self.tap_names:
                kept.append(tokens.transpose(1, 2).unflatten(2, self.grid))
        return self.norm(tokens).mean(1), tuple(kept)

    def early_stages(self) -> tuple[str, ...]:
        """Name the first two blocks."""
        return "blocks.0", "blocks.1"


MODELS.register("mini-vit")(
    ModelEntry(
        MiniViT, "vision transformer for small images: 4 blocks, width 64 (ours)", (1, 28, 28), 138_890
    )
)
