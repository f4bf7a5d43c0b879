"""FedAvg: every client trains the common model on its own data, the server averages the results."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights
from unseen.hparams import Settings, setting
from unseen.methods.base import Method, Paper, register


@dataclass(frozen=True)
class FedAvgSettings(Settings):
    """Settings of FedAvg."""

    weighting: Weighting = setting("samples", WEIGHTING)


@register
class FedAvg(Method[FedAvgSettings]):
    """Federated averaging: w <- sum_k (n_k / n) w_k (algorithm 1 of the paper)."""

    name = "fedavg"
    title = "FedAvg"
    family = "reference"
    summary = "local training, then the sample-weighted mean of the client models"
    paper = Paper(
        title="Communication-Efficient Learning of Deep Networks from Decentralized Data",
        authors="McMahan, Moore, Ramage, Hampson, Agüera y Arcas",
        year=2017,
        venue="AISTATS",
        url="https://arxiv.org/abs/1602.05629",
    )

    def server(self, work: ServerWork) -> Tensor:
        """Average the client models."""
        return work.updates.mean(client_weights(work.updates.samples, self.settings.weighting))
