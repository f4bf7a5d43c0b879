"""What FedIIR and Fishr share: statistics of the head's gradients, and clients that keep theirs near a mean.

The head is linear, so with features f_i and derivatives d_i = dl_i/dz_i of a sample's loss by its outputs,
its gradient is d_i f_i^T for the matrix and d_i for the bias. Mean and variance over samples are products of
matrices; no gradient per sample is ever formed. Both depend on the features, so a penalty on them trains the
extractor through first derivatives alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights
from unseen.data import Batch
from unseen.errors import UsageError
from unseen.hparams import Settings, setting
from unseen.methods._shared import RunningMeans
from unseen.methods.base import Method
from unseen.models import Network
from unseen.training import ClientWork, Update


@dataclass(frozen=True)
class HeadMatchingSettings(Settings):
    """Settings that both methods have."""

    penalty: float = setting(0.0, "weight of the penalty; 0 is FedAvg")
    ema: float = setting(0.95, "part of a running mean that is kept")
    weighting: Weighting = setting("uniform", WEIGHTING)

    def __post_init__(self) -> None:
        if not self.penalty >= 0:
            raise UsageError(f"setting 'penalty' must not be negative, not {self.penalty}")
        if not 0 <= self.ema < 1:
            raise UsageError(f"setting 'ema' must be at least 0 and below 1, not {self.ema}")


S = TypeVar("S", bound=HeadMatchingSettings)


class HeadMatching(Method[S]):
    """FedAvg with a penalty on the distance of a statistic of head gradients from the clients' mean.

    statistic  the kind that a client sends; the server keeps and broadcasts its mean under `mean_key`
    """

    statistic: str
    mixed_targets = True

    def __init__(self, settings: S) -> None:
        super().__init__(settings)
        if not settings.penalty:
            self.sends, self.beyond_losses = Method.sends, ""

    @property
    def mean_key(self) -> str:
        """Name of the clients' mean statistic, in the server's state and in what it sends."""
        return f"mean {self.statistic}"

    @abstractmethod
    def compare(self, work: ClientWork, reference: Tensor | None) -> HeadComparison:
        """Return the penalty of this round, which also collects what the client sends."""

    def broadcast(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Send the clients' mean; there is none before the first round."""
        return {self.mean_key: state[self.mean_key]} if self.mean_key in state else {}

    def describe_extras(self, module: nn.Module) -> Mapping[str, Tensor]:
        """Describe the statistic: a number per parameter of the head."""
        if not self.settings.penalty:
            return {}
        head = self.deployed(module).head
        count = sum(parameter.numel() for parameter in head.parameters())
        return {self.statistic: torch.empty(count, device="meta")}

    def client(self, work: ClientWork) -> Update:
        """Train on the task's loss and the penalty, and send the client's own statistic."""
        if not self.settings.penalty:
            return super().client(work)
        network, means = cast(Network, work.module), RunningMeans()
        comparison = self.compare(work, work.received.get(self.mean_key))

        def loss(batch: Batch) -> Tensor:
            features = network.features(batch.inputs)
            outputs = network.head(features)
            value = work.task_loss(outputs, batch.targets)
            penalty, weight = comparison.penalty(features, output_gradients(work, outputs, batch.targets))
            if penalty is None:
                return value
            means.add("head_gradient_penalty", penalty, samples=len(batch.targets))
            return value + weight * penalty

        work.fit(loss)
        return work.update(extras={self.statistic: comparison.result()}, diagnostics=means.result())

    def server(self, work: ServerWork) -> Tensor:
        """Average the client models, and their statistics with the same weights."""
        updates = work.updates
        weights = client_weights(updates.samples, self.weighting)
        if self.settings.penalty:
            sent = torch.stack([extras[self.statistic] for extras in updates.extras])
            mean = updates.mean_of_vectors(sent, weights)
            work.state[self.mean_key] = self.renew(work.state.get(self.mean_key), mean)
            work.diagnostics["mean_statistic_length"] = float(work.state[self.mean_key].norm())
        return updates.mean(weights)

    def renew(self, former: Tensor | None, mean: Tensor) -> Tensor:
        """Return what the server broadcasts next, from the former value and this round's mean."""
        return mean


class HeadComparison:
    """The penalty of one client in one round, and the statistic that it sends afterwards."""

    def penalty(self, features: Tensor, gradients: Tensor) -> tuple[Tensor | None, float]:
        """Return the penalty of a batch and its weight; None where there is none yet.

        gradients  derivatives of the samples' losses by the outputs, with their graph
        """
        raise NotImplementedError

    def result(self) -> Tensor:
        """Return the client's statistic, flat and without a graph."""
        raise NotImplementedError


def output_gradients(work: ClientWork, outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute d_i = dl_i/dz_i for every sample, with the graph that a penalty on it needs."""
    losses = work.train.task_type.loss(
        outputs, targets, label_smoothing=work.plan.label_smoothing, reduction="sum"
    )
    (gradients,) = torch.autograd.grad(losses, outputs, create_graph=True)
    return gradients


def has_bias(work: ClientWork) -> bool:
    """Check whether the head has a bias."""
    return cast(Network, work.module).head.bias is not None


def mean_head_gradient(features: Tensor, gradients: Tensor, *, bias: bool = True) -> Tensor:
    """Compute the gradient of the mean loss by the head: its matrix row by row, then its bias."""
    return _flat(gradients.T @ features / len(features), gradients.mean(0), bias=bias)


def head_gradient_variance(features: Tensor, gradients: Tensor, *, bias: bool = True) -> Tensor:
    """Compute the variance over samples of every entry of the head's gradient, divided by n."""
    mean = mean_head_gradient(features, gradients, bias=bias)
    squares = _flat(
        gradients.square().T @ features.square() / len(features), gradients.square().mean(0), bias=bias
    )
    return squares - mean.square()


def _flat(matrix: Tensor, vector: Tensor, *, bias: bool) -> Tensor:
    return torch.cat([matrix.flatten(), vector]) if bias else matrix.flatten()
