"""A network with one more layer between its extractor and its head: what MOON and FedSR put there."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from unseen.models import Network


class ExtendedNetwork(Network):
    """Features are `layer` of the given network's features; everything that serves networks serves it.

    It is made of a copy of `network`, which stays as it is, and takes over its head unless another is given.
    """

    def __init__(self, network: Network, layer: nn.Module, *, head: nn.Linear | None = None) -> None:
        super().__init__()
        body = copy.deepcopy(network)
        own_head = body.head
        del body.head
        self.body, self.layer, self.head = body, layer, head or own_head
        self.model_name, self.tap_names = network.model_name, network.tap_names
        self.pixel_mean, self.pixel_std = network.pixel_mean, network.pixel_std
        self.notes = network.notes

    def extract(self, inputs: Tensor, *, taps: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the further features, and the taps of the network inside."""
        features, kept = self.body.extract(inputs, taps=taps)
        return self.layer(features), kept
