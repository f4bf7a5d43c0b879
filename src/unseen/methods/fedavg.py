"""FedAvg: every client trains the common model on its own data, the server averages the results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unseen.aggregation import ServerWork
from unseen.hparams import Settings, setting
from unseen.methods.base import Method, Paper, register


@dataclass(frozen=True)
class FedAvgSettings(Settings):
    """Settings of FedAvg."""

    weighting: Literal["samples", "uniform"] = setting(
        "samples", "weigh clients by their number of samples, or all alike"
    )


@register
class FedAvg(Method[FedAvgSettings]):
    """Federated averaging: w <- sum_k (n_k / n) w_k (algorithm 1 of the paper)."""

    name = "fedavg"
    title = "FedAvg"
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
        samples = work.updates.samples
        return work.updates.mean(
            samples if self.settings.weighting == "samples" else torch.ones_like(samples)
        )
