"""FedBN: every client keeps its own batch norm; all other layers are averaged.

The paper evaluates each client with its own batch norm and does not define what a domain without one gets.
Its authors advise the average over the training clients (med-air/FedBN, issue 9), which is deployed here.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights, without_counters
from unseen.data import Batch
from unseen.errors import UsageError
from unseen.hparams import Settings, setting
from unseen.methods._shared import RunningMeans
from unseen.methods.base import Method, Paper, register
from unseen.models import Layout, Network
from unseen.training import ClientWork, Update

KEPT = "batch norm"
NOTHING_TO_KEEP = (
    "fedbn: this network has no batch norm, so nothing stays at the clients and the method is FedAvg; "
    "choose a model with batch norm (such as resnet18)"
)


@dataclass(frozen=True)
class FedBNSettings(Settings):
    """Settings of FedBN."""

    share_statistics: bool = setting(
        True,
        "whether clients send their batch-norm values, so that the deployed model has the average of them; "
        "if not, they never leave and the deployed model keeps those it started with",
    )
    weighting: Weighting = setting("uniform", WEIGHTING)
    head_guide: float = setting(
        0.0,
        "weight of gPerXAN's term: the loss of the received head, frozen, on the client's features (there "
        "0.5); 0 = without it",
        absent=0.0,
    )

    def __post_init__(self) -> None:
        if not self.head_guide >= 0:
            raise UsageError(f"setting 'head_guide' of fedbn must not be negative, not {self.head_guide}")


@register
class FedBN(Method[FedBNSettings]):
    """Local batch norm (algorithm 1): clients train on from their own scales, shifts, means and variances.

    Deployed on an unseen domain: the averaged layers with the batch-norm values averaged over the round's
    clients. No client trains with that average, except in its first round.
    """

    name = "fedbn"
    title = "FedBN"
    summary = "clients keep their own batch norm; an unseen domain gets its average over the clients"
    paper = Paper(
        title="FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
        authors="Li, Jiang, Zhang, Kamp, Dou",
        year=2021,
        venue="ICLR",
        url="https://arxiv.org/abs/2102.07623",
    )
    beyond_losses = ""
    keeps_statistics = True
    mixed_targets = True

    def __init__(self, settings: FedBNSettings) -> None:
        super().__init__(settings)
        self._kept = torch.empty(0, dtype=torch.int64)
        if not settings.share_statistics:
            self.sends = ("model weights without batch norm", "number of samples")
            self.in_state = self.sends[:1]
        if settings.head_guide:
            self.beyond_losses = "with head_guide it keeps means over batches of a term of its loss"

    def build(self, network: Network, *, seed: int) -> nn.Module:
        """Find the batch norm; a network without any gets a note for the user."""
        self._kept = batch_norm_positions(network)
        if not len(self._kept) and NOTHING_TO_KEEP not in network.notes:
            network.notes += (NOTHING_TO_KEEP,)
        return network

    def client(self, work: ClientWork) -> Update:
        """Train from the received layers and the client's own batch norm, and keep the latter."""
        kept, start = self._kept, work.start.to(work.flat.vector.device)
        if KEPT in work.state:
            mixed = start.clone()
            mixed[kept] = work.state[KEPT].to(start.device)
            work.flat.load(mixed)
        means = RunningMeans()
        update = self._train_guided(work, means) if self.settings.head_guide else super().client(work)
        own, received = update.weights[kept], start[kept]
        if len(kept) and bool(torch.isfinite(own).all()):
            work.state[KEPT] = own
        if not self.settings.share_statistics:
            update.weights[kept] = received
        numbers = (kept < without_counters(work.flat.layout).stop).to(own.device)
        distance = float((own - received)[numbers].norm() / received[numbers].norm().clamp(min=1e-12))
        return replace(update, diagnostics={"batch_norm_distance": distance, **means.result()})

    def _train_guided(self, work: ClientWork, means: RunningMeans) -> Update:
        """Train on CE(h_k(f)) + head_guide * CE(h(f)) with the received head h frozen (gPerXAN).

        Features are pulled to where the server's head classifies them well.
        """
        network = cast(Network, work.module)
        received = copy.deepcopy(network.head).requires_grad_(False)

        def loss(batch: Batch) -> Tensor:
            features = network.features(batch.inputs)
            own = work.task_loss(network.head(features), batch.targets)
            guide = work.task_loss(received(features), batch.targets)
            means.add("loss_of_received_head", guide, samples=len(features))
            return own + self.settings.head_guide * guide

        work.fit(loss)
        return work.update()

    def server(self, work: ServerWork) -> Tensor:
        """Average what was sent; batch norm that was not sent keeps its values bit for bit."""
        updates = work.updates
        merged = updates.mean(client_weights(updates.samples, self.settings.weighting))
        if not self.settings.share_statistics:
            merged[self._kept] = work.weights[self._kept]
        work.diagnostics["batch_norm_values"] = len(self._kept)
        return merged


def batch_norm_positions(module: nn.Module) -> Tensor:
    """Find the batch-norm entries of the flat state: scales, shifts, running statistics, batch counters.

    Layers are recognized by their type: names such as `bn1` miss those inside a `downsample` or a
    `Sequential`.
    """
    owners = {
        name for name, part in module.named_modules(remove_duplicate=False) if isinstance(part, _BatchNorm)
    }
    places = [
        torch.arange(entry.start, entry.stop)
        for entry in Layout.of(module).entries
        if entry.name.rpartition(".")[0] in owners
    ]
    return torch.cat([torch.empty(0, dtype=torch.int64), *places])
