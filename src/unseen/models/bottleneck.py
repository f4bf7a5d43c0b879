"""A bottleneck in front of the head, as in the released network of CSAC: linear to 256, batch norm, ReLU."""

from __future__ import annotations

from torch import nn

from unseen.models.network import Network

BOTTLENECK = "+bottleneck"
"""Suffix of a network's name: the same network with a bottleneck."""
WIDTH = 256


def add_bottleneck(network: Network, *, width: int = WIDTH) -> None:
    """Put a linear layer, batch norm and a ReLU behind the extractor, and a new head behind them.

    They become part of the features; taps and the names of all other tensors stay.
    """
    outputs = network.head.out_features
    network.bottleneck = nn.Sequential(
        nn.Linear(network.feature_size, width), nn.BatchNorm1d(width), nn.ReLU()
    )
    network.head = nn.Linear(width, outputs)
