"""FedIIR: clients keep the gradient of their head near the mean over all clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor

from unseen.hparams import LogUniform, setting
from unseen.methods.base import Paper, register
from unseen.methods.head_gradients.head_matching import (
    HeadComparison,
    HeadMatching,
    HeadMatchingSettings,
    has_bias,
    mean_head_gradient,
    output_gradients,
)
from unseen.models import Network
from unseen.training import ClientWork, batch_positions

GRADIENT = "mean head gradient"


@dataclass(frozen=True)
class FedIIRSettings(HeadMatchingSettings):
    """Settings of FedIIR."""

    penalty: float = setting(
        0.001,
        "gamma: weight of the penalty; 0 is FedAvg; the authors use 0.01 on Rotated MNIST, 0.005 on VLCS, "
        "0.001 on PACS and 0.0005 on Office-Home",
        search=LogUniform(1e-4, 1e-2),
    )
    ema: float = setting(
        0.95, "part of the former mean gradient that the server keeps in a round; it starts at 0"
    )
    gradient: Literal["received", "training"] = setting(
        "received",
        "where a client takes the head gradient that it sends: at the received weights, in a pass without "
        "backpropagation through the features, or as the mean over its training batches, which costs nothing",
    )


@register
class FedIIR(HeadMatching[FedIIRSettings]):
    """Clients minimize F_k(w) + gamma |grad_head F_k(w) - g|^2 with g the running mean over the clients.

    g is of the round before, so that a round stays one exchange; it is 0 in the first.
    """

    name = "fediir"
    title = "FedIIR"
    summary = "keeps the gradients of the clients' heads near their mean, for relations that hold everywhere"
    paper = Paper(
        title="Out-of-Distribution Generalization of Federated Learning via Implicit Invariant Relationships",
        authors="Guo, Guo, Cao, Wu, Chang",
        year=2023,
        venue="ICML",
        url="https://proceedings.mlr.press/v202/guo23b.html",
    )
    statistic = GRADIENT
    sends: tuple[str, ...] = ("model weights", "number of samples", GRADIENT)
    merges = {GRADIENT: "mean"}  # noqa: RUF012 (declared as the class's own in Method)
    beyond_losses = "it sends the mean gradient of the head on its samples"

    def compare(self, work: ClientWork, reference: Tensor | None) -> HeadComparison:
        """Compare with the server's running mean; 0 before there is one."""
        measured = gradient_as_received(work) if self.settings.gradient == "received" else None
        return _MeanComparison(work, self.settings.penalty, reference, measured)

    def renew(self, former: Tensor | None, mean: Tensor) -> Tensor:
        """Compute g <- ema g + (1 - ema) mean, from g = 0 without correction, as the authors do."""
        kept = torch.zeros_like(mean) if former is None else former
        return self.settings.ema * kept + (1 - self.settings.ema) * mean


class _MeanComparison(HeadComparison):
    def __init__(
        self, work: ClientWork, strength: float, reference: Tensor | None, measured: Tensor | None
    ) -> None:
        self.bias = has_bias(work)
        self.strength, self.measured = strength, measured
        device = work.flat.parameters.device
        self.reference = None if reference is None else reference.to(device)
        self.total, self.batches = torch.zeros((), device=device), 0

    def penalty(self, features: Tensor, gradients: Tensor) -> tuple[Tensor | None, float]:
        own = mean_head_gradient(features, gradients, bias=self.bias)
        if self.measured is None:
            self.total, self.batches = self.total + own.detach(), self.batches + 1
        distance = own if self.reference is None else own - self.reference
        return distance.square().sum(), self.strength

    def result(self) -> Tensor:
        return self.total / self.batches if self.measured is None else self.measured


def gradient_as_received(work: ClientWork) -> Tensor:
    """Compute the mean over batches of the head's gradient at the received weights.

    Batch norm uses the batch's statistics as in training, and the running ones are put back.
    """
    network = cast(Network, work.module)
    order, augment = work.generator("head gradient: order"), work.generator("head gradient: augmentation")
    bias, found = has_bias(work), []
    network.train()
    for positions in batch_positions(len(work.train), work.plan.batch_size, generator=order):
        batch = work.prepare(work.train.gather(positions), augment)
        with torch.no_grad():
            features = network.features(batch.inputs)
        outputs = network.head(features)
        gradients = output_gradients(work, outputs, batch.targets).detach()
        found.append(mean_head_gradient(features, gradients, bias=bias))
    work.flat.load(work.start)
    return torch.stack(found).mean(0)
