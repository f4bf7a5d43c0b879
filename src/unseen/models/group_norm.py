"""Group norm instead of batch norm: each sample is normalized by itself, without running statistics.

Differential privacy needs it: with batch norm, every sample of a batch affects the gradient of every other,
and its running statistics are values computed from samples that get no noise.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.errors import UsageError
from unseen.models.network import Network

GROUP_NORM = "+groupnorm"
"""Suffix of a network's name: the same network with group norm."""
_MOST_GROUPS = 32
"""As many groups as the paper (Wu and He 2018) uses, or the most that divide the channels evenly."""


def replace_batch_norm(network: Network, *, name: str) -> None:
    """Replace every batch norm with group norm; scales and shifts are kept."""
    places = [(path, layer) for path, layer in network.named_modules() if isinstance(layer, _BatchNorm)]
    if not places:
        raise UsageError(f"model {name!r} has no batch norm to replace: leave {GROUP_NORM!r} out")
    for path, layer in places:
        owner, _, attribute = path.rpartition(".")
        setattr(network.get_submodule(owner), attribute, _group_norm_like(layer))
    network.notes += (f"{len(places)} layers of batch norm became group norm, without running statistics",)


def _group_norm_like(layer: _BatchNorm) -> nn.Module:
    """Group norm with the layer's scale and shift, and the activation that some of timm's layers include."""
    groups = math.gcd(_MOST_GROUPS, layer.num_features)
    made = nn.GroupNorm(groups, layer.num_features, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        with torch.no_grad():
            made.weight.copy_(layer.weight)
            made.bias.copy_(layer.bias)
    held = [part for part in layer.children() if not isinstance(part, nn.Identity)]
    return nn.Sequential(made, *held) if held else made
