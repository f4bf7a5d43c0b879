"""StableFDG's attention-based feature highlighter: a second pooling of the last map, where a class agrees.

The query of an image is averaged with that of another image of its class, so that positions stand out that
look alike in both. At test an image is its own partner.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unseen.errors import UsageError
from unseen.methods._shared import ExtendedNetwork
from unseen.models import Network
from unseen.seeding import global_torch_seed

_WIDTHS = ("out_channels", "out_features", "num_features", "num_channels")
"""Attributes of layers that say how many channels they return."""


class Highlighter(nn.Module):
    """Appends to features the mean of a map's positions, weighted by attention.

    Position j weighs softmax_j( mean over positions i of (q_i + q'_i) / 2 . k_j ) with queries q, queries q'
    of the partner, and keys k, each scaled to length 1; they come from 1x1 convolutions.
    """

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.query, self.key = nn.Conv2d(channels, size, 1), nn.Conv2d(channels, size, 1)

    def attention(self, maps: Tensor, partners: Tensor | None = None) -> Tensor:
        """Return the weight of every position of every map (n, positions); those of a map add up to 1."""
        query = F.normalize(self.query(maps).flatten(2), dim=1).mean(2)
        key = F.normalize(self.key(maps).flatten(2), dim=1)
        if partners is not None:
            query = (query + query[partners]) / 2
        return torch.einsum("nc,ncp->np", query, key).softmax(dim=1)

    def forward(self, features: Tensor, maps: Tensor, weights: Tensor) -> Tensor:
        """Append to features the weighted mean of the maps."""
        return torch.cat([features, torch.einsum("ncp,np->nc", maps.flatten(2), weights)], dim=1)


class HighlightedNetwork(ExtendedNetwork):
    """Network whose head also sees the highlighted mean of its last map.

    Behind a ResNet's pooling that is the paper's [mean of f, sum of a f]. The first part are a network's
    features, whatever they are.
    """

    layer: Highlighter

    def extract(self, inputs: Tensor, *, taps: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return features with every image as its own partner, and the taps of the wrapped network."""
        features, kept = self.body.features_and_taps(inputs, taps=True)
        return self.layer(features, kept[-1], self.layer.attention(kept[-1])), kept if taps else ()

    def features_in_pairs(self, inputs: Tensor, find_partners: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """Return features of images that have partners, and the attention.

        find_partners  called after the pass through the wrapped network, which may add images to a batch
        """
        features, kept = self.body.features_and_taps(inputs, taps=True)
        maps = kept[-1]
        if maps.shape[:2] != (len(features), self.layer.query.in_channels):
            raise UsageError(
                f"stablefdg cannot highlight the maps of model {self.model_name!r}, which are "
                f"{tuple(maps.shape)} for {len(features)} images: use --set highlighter=false, or --set "
                "oversampling=0 so that no images are added inside the network"
            )
        weights = self.layer.attention(maps, find_partners())
        return self.layer(features, maps, weights), weights


def with_highlighter(network: Network, *, size: int, seed: int) -> HighlightedNetwork:
    """Give a network a highlighter of its last map and a new head; both are drawn from the seed.

    size  channels of queries and keys
    """
    if not network.tap_names:
        raise UsageError(
            "stablefdg highlights positions of the last map, but the trained part of model "
            f"{network.model_name!r} has no maps: use --train all, a convolutional network, or "
            "--set highlighter=false"
        )
    channels = _map_channels(network)
    with global_torch_seed(seed, "stablefdg: highlighter"):
        layer = Highlighter(channels, size)
        head = nn.Linear(network.feature_size + channels, network.head.out_features)
    return HighlightedNetwork(network, layer, head=head)


def _map_channels(network: Network) -> int:
    """Find the channels of a network's last tap: the width of the last layer in its module."""
    for layer in reversed(list(network.get_submodule(network.tap_path(network.tap_names[-1])).modules())):
        for name in _WIDTHS:
            if isinstance(width := getattr(layer, name, None), int):
                return width
    raise UsageError(
        f"stablefdg does not find the width of the maps of model {network.model_name!r}: "
        "use --set highlighter=false"
    )


def next_of_class(targets: Tensor) -> Tensor:
    """Return for every image the position of the next one of its class, in a ring; its own if it is alone."""
    order = targets.argsort(stable=True)
    sizes = targets[order].unique_consecutive(return_counts=True)[1]
    ends = sizes.cumsum(0)
    following = torch.arange(1, len(targets) + 1, device=targets.device)
    following[ends - 1] = ends - sizes
    partners = torch.empty_like(order)
    partners[order] = order[following]
    return partners
