"""Helpers that several methods share: running means for the records, frozen models, an added layer."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn

from unseen.models import FlatState, Network
from unseen.training import ClientWork, Update


class RunningMeans:
    """Means of named values over samples; values stay on their device until the end."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, value: Tensor, *, samples: int) -> None:
        """Count a value that is a batch's mean over `samples`."""
        part = value.detach().double() * samples
        self._sums[name] = self._sums.get(name, torch.zeros_like(part)) + part
        self._counts[name] = self._counts.get(name, 0) + samples

    def result(self) -> dict[str, float]:
        """Return all means so far; names that were never added are absent."""
        return {name: float(total) / self._counts[name] for name, total in self._sums.items()}


def frozen_copy(work: ClientWork, weights: Tensor) -> Network:
    """Copy the shared network with the state `weights`: evaluation mode, no gradients, separate tensors.

    Evaluation mode keeps batch-norm statistics as they are and draws nothing for dropout, so that a pass
    through the copy does not affect the model that is trained.
    """
    frozen = cast(Network, copy.deepcopy(work.module)).requires_grad_(False)
    FlatState(frozen).load(weights)
    return frozen.eval()


class ExtendedNetwork(Network):
    """Network with one more layer between its extractor and its head, as in MOON and FedSR.

    Built from a copy of `network`, which is not changed, with its head unless another is given.
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
        """Return the features of the added layer, and the taps of the wrapped network."""
        features, kept = self.body.features_and_taps(inputs, taps=taps)
        return self.layer(features), kept


def explain_incomplete_extras(update: Update, kinds: set[str]) -> str:
    """Explain which extras came without the others that they belong to; empty if all or none did."""
    if not update.extras or set(update.extras) == kinds:
        return ""
    return f"sent {' and '.join(update.extras)} alone"


def elapsed_part(work: ClientWork) -> float:
    """Compute the fraction of the run's rounds before this one, for penalties that begin late."""
    return (work.round - 1) / work.plan.rounds
