"""FPL and FedProto: clients pull their features towards class prototypes that all clients contribute to.

Both average models as FedAvg does. They differ in what the server makes of the clients' prototypes, and in
the term of the client's loss.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from unseen.aggregation import ServerWork, Weighting, client_weights
from unseen.data import Batch
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, setting
from unseen.methods._shared import RunningMeans, explain_incomplete_extras
from unseen.methods.base import Method, Paper, register
from unseen.methods.fpl.finch import average_clusters, cluster_points
from unseen.methods.fpl.prototypes import (
    CLASSES,
    COUNTS,
    MEANS,
    PROTOTYPES,
    PROTOTYPES_FROM,
    GlobalPrototypes,
    LocalPrototypes,
    PrototypesFrom,
)
from unseen.models import Network
from unseen.training import ClientWork, LocalTrainingConfig, Update


@dataclass(frozen=True)
class PrototypeSettings(Settings):
    """Settings that FPL and FedProto share."""

    prototypes_from: PrototypesFrom = setting("training", PROTOTYPES_FROM)


@dataclass(frozen=True)
class FPLSettings(PrototypeSettings):
    """Settings of FPL."""

    contrast: float = setting(
        1.0,
        "weight of the contrast with the cluster prototypes; 0 = without it",
        search=LogUniform(0.1, 10.0),
    )
    regularization: float = setting(
        1.0,
        "weight of the squared distance to the unbiased prototype; 0 = without it",
        search=LogUniform(0.1, 10.0),
    )
    temperature: float = setting(
        0.02, "temperature tau of the similarities (released code)", search=LogUniform(0.01, 1.0)
    )
    clustering: bool = setting(True, "false: the mean of the clients' prototypes takes the clusters' place")

    def __post_init__(self) -> None:
        for name in ("contrast", "regularization"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"setting {name!r} of fpl must not be negative, not {getattr(self, name)}")
        if not self.temperature > 0:
            raise UsageError(f"setting 'temperature' of fpl must be above 0, not {self.temperature}")


@dataclass(frozen=True)
class FedProtoSettings(PrototypeSettings):
    """Settings of FedProto."""

    strength: float = setting(
        1.0,
        "weight lambda of the squared distance to the prototype of the class (released code); 0 is FedAvg",
        search=LogUniform(0.1, 10.0),
    )
    prototype_weighting: Weighting = setting(
        "uniform",
        "weights of the clients' prototypes of a class: `uniform` as in the released code, or by the "
        "client's `samples` of the class as in the paper",
    )

    def __post_init__(self) -> None:
        if not self.strength >= 0:
            raise UsageError(f"setting 'strength' of fedproto must not be negative, not {self.strength}")


P = TypeVar("P", bound=PrototypeSettings)
Term = tuple[str, float, Tensor]
"""A term of a client's loss: its name in the records, its weight, its value."""


class PrototypeMethod(Method[P]):
    """FedAvg whose clients send class prototypes and train on terms against the server's, from round 2 on."""

    sends = ("model weights", "number of samples", PROTOTYPES, COUNTS)
    beyond_losses = "it sends mean features of its samples, class by class"
    fixed_weights = ""

    @abstractmethod
    def terms(self, features: Tensor, targets: Tensor, prototypes: GlobalPrototypes) -> list[Term]:
        """Compute the terms that a client's loss has in addition on a batch."""

    @abstractmethod
    def merge_prototypes(self, prototypes: Tensor, counts: Tensor) -> Tensor:
        """Merge the prototypes of one class (clients x features) into one or more."""

    def broadcast(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Send the merged prototypes; there are none before the first round."""
        return {key: state[key] for key in (MEANS, CLASSES) if key in state}

    def client(self, work: ClientWork) -> Update:
        """Train on all terms, and send the prototypes with the weights."""
        if not work.train.task_type.has_classes:
            raise UsageError(f"{self.name} needs classes, but this is regression: use --method fedavg")
        network, means = cast(Network, work.module), RunningMeans()
        own = LocalPrototypes(work, self.settings.prototypes_from)
        prototypes: GlobalPrototypes | None = None
        if MEANS in work.received:
            prototypes = GlobalPrototypes(
                work.received, classes=len(work.train.classes), device=work.prepare.device
            )

        def loss(batch: Batch) -> Tensor:
            features = network.features(batch.inputs)
            value = work.task_loss(network.head(features), batch.targets)
            own.watch(features, batch)
            if prototypes is not None:
                for name, weight, term in self.terms(features, batch.targets, prototypes):
                    means.add(name, term, samples=len(features))
                    value = value + weight * term if weight else value
            return value

        work.fit(loss)
        return work.update(extras=own.to_send(), diagnostics=means.result())

    def describe_extras(self, module: nn.Module) -> Mapping[str, Tensor]:
        """Describe prototypes and counts of all classes."""
        head = self.deployed(module).head
        return {
            PROTOTYPES: torch.empty(head.out_features, head.in_features, device="meta"),
            COUNTS: torch.empty(head.out_features, dtype=torch.int64, device="meta"),
        }

    def explain_unusable_extras(
        self, update: Update, *, plan: LocalTrainingConfig, outputs: int, own: Sequence[int]
    ) -> str:
        """Refuse counts that the number of samples contradicts, and prototypes without counts."""
        if set(update.extras) != {PROTOTYPES, COUNTS}:
            return explain_incomplete_extras(update, {PROTOTYPES, COUNTS})
        counts = update.extras[COUNTS]
        if bool((counts < 0).any()) or int(counts.sum()) > update.samples:
            return "sent class counts that no samples have"
        return ""

    def server(self, work: ServerWork) -> Tensor:
        """Average the client models, and merge the prototypes of the round's clients class by class."""
        sent = work.updates.extras
        prototypes = torch.stack([extras[PROTOTYPES] for extras in sent]).double()
        counts = torch.stack([extras[COUNTS] for extras in sent])
        merged = {
            label: self.merge_prototypes(prototypes[held, label], counts[held, label])
            for label, held in enumerate((counts > 0).T)
            if bool(held.any())
        }
        if merged:
            work.state[MEANS] = torch.cat(list(merged.values())).float()
            sizes = torch.tensor([len(each) for each in merged.values()])
            work.state[CLASSES] = torch.tensor(list(merged)).repeat_interleave(sizes)
            work.diagnostics["prototypes_per_class"] = len(work.state[MEANS]) / len(merged)
        return work.updates.mean(client_weights(work.updates.samples, self.weighting))


@register
class FPL(PrototypeMethod[FPLSettings]):
    """Cluster prototypes and unbiased prototypes: CE + contrast * InfoNCE + regularization * MSE.

    The server clusters the clients' prototypes of a class by FINCH. A feature is attracted by all clusters of
    its class and repelled by those of the others, and pulled to the mean of its class's clusters.
    """

    name = "fpl"
    title = "FPL"
    summary = "contrasts features with clustered class prototypes of all clients, and pulls them to the mean"
    paper = Paper(
        title="Rethinking Federated Learning with Domain Shift: A Prototype View",
        authors="Huang, Ye, Shi, Li, Du",
        year=2023,
        venue="CVPR",
        url="https://openaccess.thecvf.com/content/CVPR2023/html/"
        "Huang_Rethinking_Federated_Learning_With_Domain_Shift_A_Prototype_View_CVPR_2023_paper.html",
    )

    def terms(self, features: Tensor, targets: Tensor, prototypes: GlobalPrototypes) -> list[Term]:
        """Compute the contrast with clusters and the distance to their mean."""
        settings = self.settings
        contrast = prototypes.contrast(features, targets, temperature=settings.temperature)
        distance = prototypes.squared_distance(features, targets)
        return [
            ("prototype_contrast", settings.contrast, contrast),
            ("prototype_distance", settings.regularization, distance),
        ]

    def merge_prototypes(self, prototypes: Tensor, counts: Tensor) -> Tensor:
        """Return the means of the coarsest clusters; every client counts the same."""
        if not self.settings.clustering:
            return prototypes.mean(0, keepdim=True)
        return average_clusters(prototypes, cluster_points(prototypes))


@register
class FedProto(PrototypeMethod[FedProtoSettings]):
    """One prototype per class, the mean over clients: CE + strength * MSE to the prototype of the class."""

    name = "fedproto"
    title = "FedProto"
    summary = "pulls features towards the mean over clients of their class's mean feature"
    paper = Paper(
        title="FedProto: Federated Prototype Learning across Heterogeneous Clients",
        authors="Tan, Long, Liu, Zhou, Lu, Jiang, Zhang",
        year=2022,
        venue="AAAI",
        url="https://arxiv.org/abs/2105.00243",
    )

    def terms(self, features: Tensor, targets: Tensor, prototypes: GlobalPrototypes) -> list[Term]:
        """Compute the distance to the prototype."""
        distance = prototypes.squared_distance(features, targets)
        return [("prototype_distance", self.settings.strength, distance)]

    def merge_prototypes(self, prototypes: Tensor, counts: Tensor) -> Tensor:
        """Return the mean over the clients that have the class."""
        weights = client_weights(counts.double(), self.settings.prototype_weighting)
        return (weights / weights.sum())[None] @ prototypes
