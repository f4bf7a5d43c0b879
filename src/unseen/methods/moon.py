"""MOON: clients learn features near those of the server's model and away from their own former ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights
from unseen.data import Batch
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, setting
from unseen.methods._shared import ExtendedNetwork, RunningMeans, frozen_copy
from unseen.methods.base import Method, Paper, register
from unseen.models import Network
from unseen.seeding import global_torch_seed
from unseen.training import ClientWork, Update

PREVIOUS_MODEL = "previous model"
"""Key in a client's state: the model after its latest round."""


@dataclass(frozen=True)
class MOONSettings(Settings):
    """Settings of MOON."""

    mu: float = setting(
        1.0,
        "weight of the contrastive term; 0 is FedAvg; the paper tunes 0.1, 1, 5 and 10",
        search=LogUniform(0.1, 10.0),
    )
    temperature: float = setting(0.5, "temperature tau of the similarities", search=LogUniform(0.1, 1.0))
    projection: int | None = setting(
        None,
        "width of a two-layer projection in front of a new head (paper 256); none = the network's feature",
    )
    weighting: Weighting = setting("samples", WEIGHTING)

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise UsageError(f"setting 'mu' of moon must not be negative, not {self.mu}")
        if not self.temperature > 0:
            raise UsageError(f"setting 'temperature' of moon must be above 0, not {self.temperature}")
        if self.projection is not None and self.projection < 1:
            raise UsageError(
                f"setting 'projection' of moon must be at least 1 or none, not {self.projection}"
            )


@register
class MOON(Method[MOONSettings]):
    """Model-contrastive learning: clients minimize l_sup + mu * l_con (equations 3 and 4, algorithm 1).

    The positive is the model as received, the negative the client's own of its latest round. In a client's
    first round there is none: with the received model instead, the term would be the constant log 2.
    """

    name = "moon"
    title = "MOON"
    summary = "contrasts a client's features with those of the server's model and of its own former one"
    paper = Paper(
        title="Model-Contrastive Federated Learning",
        authors="Li, He, Song",
        year=2021,
        venue="CVPR",
        url="https://arxiv.org/abs/2103.16257",
    )
    beyond_losses = "it keeps means over batches of feature similarities"
    mixed_targets = True

    def build(self, network: Network, *, seed: int) -> nn.Module:
        """Return the network itself, or with the paper's projection between its features and a new head."""
        width = self.settings.projection
        if width is None:
            return network
        size, outputs = network.feature_size, network.head.out_features
        with global_torch_seed(seed, "moon: projection"):
            projection = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, width))
            return ExtendedNetwork(network, projection, head=nn.Linear(width, outputs))

    def client(self, work: ClientWork) -> Update:
        """Train on both terms, and keep the result for the client's next round."""
        if not self.settings.mu:
            return super().client(work)
        term = _ContrastiveTerm(work, self.settings) if PREVIOUS_MODEL in work.state else None
        network = cast(Network, work.module)

        def loss(batch: Batch) -> Tensor:
            features = network.features(batch.inputs)
            value = work.task_loss(network.head(features), batch.targets)
            return value if term is None else value + self.settings.mu * term(batch.inputs, features)

        work.fit(loss)
        update = work.update(diagnostics=term.means.result() if term is not None else {})
        work.state[PREVIOUS_MODEL] = update.weights.clone()
        return update

    def server(self, work: ServerWork) -> Tensor:
        """Average the client models."""
        return work.updates.mean(client_weights(work.updates.samples, self.settings.weighting))


class _ContrastiveTerm:
    """Term l_con of a client's round, with running means of the feature similarities to both models."""

    def __init__(self, work: ClientWork, settings: MOONSettings) -> None:
        self.received = frozen_copy(work, work.start)
        self.previous = frozen_copy(work, work.state[PREVIOUS_MODEL])
        self.temperature = settings.temperature
        self.means = RunningMeans()

    def __call__(self, inputs: Tensor, features: Tensor) -> Tensor:
        """Compute the term on a batch, given its features under the trained model."""
        with torch.no_grad():
            towards, away = self.received.features(inputs), self.previous.features(inputs)
        to_received = F.cosine_similarity(features, towards)
        to_previous = F.cosine_similarity(features, away)
        loss = contrastive_loss(to_received, to_previous, temperature=self.temperature)
        self.means.add("contrastive_loss", loss, samples=len(features))
        self.means.add("similarity_to_server", to_received.mean(), samples=len(features))
        self.means.add("similarity_to_previous", to_previous.mean(), samples=len(features))
        return loss


def contrastive_loss(to_received: Tensor, to_previous: Tensor, *, temperature: float) -> Tensor:
    """Compute equation 3, the mean of -log(e^(a/tau) / (e^(a/tau) + e^(b/tau))) = log(1 + e^((b-a)/tau))."""
    return F.softplus((to_previous - to_received) / temperature).mean()
