"""What the objectives share: balanced batches, the task's loss, and a penalty that compares domains."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, cast

import torch
from torch import Tensor

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights
from unseen.data import Batch
from unseen.errors import UsageError
from unseen.hparams import Settings, setting
from unseen.methods._shared import RunningMeans, elapsed_part
from unseen.methods.base import Method
from unseen.methods.domain_objectives.domain_batches import SMALLEST_PART, draw_balanced, group_by_domain
from unseen.models import Network
from unseen.tasks import Reduction
from unseen.training import ClientWork, Update

BALANCED = (
    "whether a batch holds equally many samples of each of the client's domains; if not, batches are drawn "
    "as in FedAvg, and a domain with fewer than two samples in one is left out of the comparison"
)


@dataclass(frozen=True)
class DomainSettings(Settings):
    """Settings of every objective."""

    balanced: bool = setting(True, BALANCED)
    weighting: Weighting = setting("samples", WEIGHTING)


@dataclass(frozen=True)
class DomainBatch:
    """A batch of a client, as its objective sees it.

    held  the numbers of all domains of the client, in order
    """

    work: ClientWork
    features: Tensor
    outputs: Tensor
    targets: Tensor
    domains: Tensor
    held: Sequence[int]

    @cached_property
    def present(self) -> list[int]:
        """The domains that can be compared here: those with two samples or more."""
        return [number for number in self.held if int((self.domains == number).sum()) >= SMALLEST_PART]

    def split(self, values: Tensor) -> list[Tensor]:
        """Split the rows of values into those of each domain that is present."""
        return [values[self.domains == number] for number in self.present]

    def loss(self, outputs: Tensor, targets: Tensor, *, reduction: Reduction = "mean") -> Tensor:
        """Compute the task's loss of some samples, without augmentations at the head."""
        return self.work.train.task_type.loss(
            outputs, targets, label_smoothing=self.work.plan.label_smoothing, reduction=reduction
        )

    def risks(self) -> Tensor:
        """Compute the mean loss of each domain that is present."""
        losses = self.loss(self.outputs, self.targets, reduction="none")
        return torch.stack([part.mean() for part in self.split(losses)])


S = TypeVar("S", bound=DomainSettings)


class DomainObjective(Method[S]):
    """FedAvg whose clients minimize an objective over the domains that each of them holds."""

    domains_per_client = 2
    beyond_losses = "it compares the domains within each batch"

    def client(self, work: ClientWork) -> Update:
        """Train on the objective; with the strength 0 it is the task's loss."""
        network, means = cast(Network, work.module), RunningMeans()
        groups = group_by_domain(work, self)
        if self.settings.balanced:
            work.draw = draw_balanced(list(groups.values()))
        strength = self.strength(work)

        def loss(batch: Batch) -> Tensor:
            features = network.features(batch.inputs)
            outputs = network.head(features)
            value = work.task_loss(outputs, batch.targets)
            compared = DomainBatch(work, features, outputs, batch.targets, batch.domains, tuple(groups))
            if not strength or len(compared.present) < 2:
                return value
            penalty = self.penalty(compared)
            means.add("domain_penalty", penalty, samples=len(batch.targets))
            return value + strength * penalty

        work.fit(loss)
        return work.update(diagnostics=means.result())

    @abstractmethod
    def strength(self, work: ClientWork) -> float:
        """Return the weight of the penalty in this round."""

    @abstractmethod
    def penalty(self, batch: DomainBatch) -> Tensor:
        """Compare the two or more domains of a batch."""

    def server(self, work: ServerWork) -> Tensor:
        """Average the client models."""
        return work.updates.mean(client_weights(work.updates.samples, self.settings.weighting))


def annealed(work: ClientWork, *, penalty: float, warmup: float) -> float:
    """Return the weight of a penalty: 1 in the first `warmup` of the run's rounds, then `penalty`."""
    return 1.0 if penalty and elapsed_part(work) < warmup else penalty


def require_not_negative(method: str, **values: float) -> None:
    """Refuse negative settings."""
    for name, value in values.items():
        if not value >= 0:
            raise UsageError(f"setting {name!r} of {method} must not be negative, not {value}")
