"""Names of networks with suffixes: NAME+bottleneck+groupnorm."""

from __future__ import annotations

from unseen.models.bottleneck import BOTTLENECK
from unseen.models.group_norm import GROUP_NORM


def plain_name(model: str) -> str:
    """Return the name of the network without its suffixes; pretrained weights have that name."""
    return model.removesuffix(GROUP_NORM).removesuffix(BOTTLENECK)
