"""FedSR and its two halves, FedL2R and FedCMI: a short representation with little information beyond the
class."""

from __future__ import annotations

from typing import ClassVar, TypeVar, cast

from torch import Tensor, nn

from unseen.aggregation import ServerWork, client_weights
from unseen.data import Batch
from unseen.errors import UsageError
from unseen.methods._shared import RunningMeans
from unseen.methods.base import Method, Paper, register
from unseen.methods.fedsr.fedsr_settings import (
    FedCMISettings,
    FedL2RSettings,
    FedSRSettings,
    Objective,
    RepresentationSettings,
)
from unseen.methods.fedsr.representation import (
    RepresentationParts,
    join_parts,
    make_reference,
    representation_length,
)
from unseen.models import FlatState, Network
from unseen.training import ClientWork, Update

R = TypeVar("R", bound=RepresentationSettings)

FEDSR_PAPER = Paper(
    title="FedSR: A Simple and Effective Domain Generalization Method for Federated Learning",
    authors="Nguyen, Torr, Lim",
    year=2022,
    venue="NeurIPS",
    url="https://openreview.net/forum?id=mrt90D00aQX",
)
REFERENCE_SENT = "reference distributions of the classes"
_REFERENCE = "reference"
"""Key in a client's state: its own reference distribution, where that is not shared."""


class RepresentationMethod(Method[R]):
    """Clients minimize task loss + alpha_L2R * L2R + alpha_CMI * CMI; the server averages what they send.

    probabilistic  whether representations are drawn, where the settings do not define it
    """

    paper = FEDSR_PAPER
    beyond_losses = "it keeps means over batches of the terms of its loss"
    probabilistic: ClassVar[bool] = True

    @property
    def objective(self) -> Objective:
        """Terms that the method's settings define; the others are off."""
        return Objective(**{"probabilistic": self.probabilistic, **vars(self.settings)})

    def build(self, network: Network, *, seed: int) -> nn.Module:
        """Join the network with the layers and the reference that the objective needs."""
        return join_parts(network, self.objective, seed=seed)

    def deployed(self, module: nn.Module) -> Network:
        """Return the network, which predicts from the mean of the representation without sampling."""
        return cast(RepresentationParts, module).network

    def client(self, work: ClientWork) -> Update:
        """Train on one drawn representation per sample."""
        if self.objective.cmi_weight and not work.train.task_type.has_classes:
            raise UsageError(
                f"{self.name} aligns representations with a reference per class and a regression has no "
                "classes: use --method fedl2r, which needs none"
            )
        local = _LocalLoss(work, self.objective)
        work.fit(local, companions=[local.own_reference] if local.own_reference is not None else [])
        if local.own_reference is not None:
            work.state[_REFERENCE] = local.own_reference.read()
        return work.update(diagnostics=local.diagnostics())

    def server(self, work: ServerWork) -> Tensor:
        """Average networks, std layers and references."""
        return work.updates.mean(client_weights(work.updates.samples, self.objective.weighting))


class _LocalLoss:
    """Loss of a client on a batch, with the running means of its terms.

    own_reference  the client's own, bound to a flat state, where references are not shared
    """

    def __init__(self, work: ClientWork, objective: Objective) -> None:
        self.work, self.objective = work, objective
        self.parts = cast(RepresentationParts, work.module)
        self.reference, self.own_reference = self.parts.reference, None
        if objective.cmi_weight and self.reference is None:
            self.reference = make_reference(self.parts.network, objective).to(work.flat.vector.device)
            self.own_reference = FlatState(self.reference)
            if _REFERENCE in work.state:
                self.own_reference.load(work.state[_REFERENCE])
        self.noise = work.generator("fedsr: representation")
        self.means = RunningMeans()

    def __call__(self, batch: Batch) -> Tensor:
        z, mean, std = self.parts.represent(batch.inputs, noise=self.noise)
        loss = self.work.task_loss(self.parts.network.head(z), batch.targets)
        if self.objective.l2r_weight:
            length = representation_length(z, squared=self.objective.squared)
            loss = loss + self.objective.l2r_weight * length
            self.means.add("l2r_term", length, samples=len(z))
        if std is None:
            return loss
        self.means.add("mean_deviation", std.mean(), samples=len(z))
        if self.reference is not None:
            divergence = self.reference(mean, std, batch.targets)
            loss = loss + self.objective.cmi_weight * divergence
            self.means.add("cmi_term", divergence, samples=len(z))
        return loss

    def diagnostics(self) -> dict[str, float]:
        """Return the means over the round of the unweighted terms, and the current factor C."""
        found = self.means.result()
        if self.reference is not None and self.reference.scale is not None:
            found["reference_scale"] = self.reference.scale.item()
        return found


@register
class FedSR(RepresentationMethod[FedSRSettings]):
    """Task loss + alpha_L2R E||z|| + alpha_CMI E KL(p(z|x) || r(z|y)), z ~ p(z|x) = N(mu(x), sigma(x)^2).

    `squared` takes E||z||^2, as the paper writes it. The last term bounds the conditional mutual information
    I(x, z | y) from above; r is one Gaussian per class.
    """

    name = "fedsr"
    title = "FedSR"
    summary = "a probabilistic representation that is kept short and near a learned reference of its class"
    sends = ("model weights", REFERENCE_SENT, "number of samples")
    in_state = ("model weights", REFERENCE_SENT)


@register
class FedCMI(RepresentationMethod[FedCMISettings]):
    """Task loss + alpha_CMI E KL(p(z|x) || r(z|y)), with z ~ p(z|x) = N(mu(x), sigma(x)^2)."""

    name = "fedcmi"
    title = "FedCMI"
    summary = "a probabilistic representation kept near a learned reference of its class: half of FedSR"
    sends = ("model weights", REFERENCE_SENT, "number of samples")
    in_state = ("model weights", REFERENCE_SENT)


@register
class FedL2R(RepresentationMethod[FedL2RSettings]):
    """Task loss + alpha_L2R E||z|| (or its square), z = mu(x) without a draw, as in the authors' code."""

    name = "fedl2r"
    title = "FedL2R"
    summary = "FedAvg with a penalty on the length of the representation: half of FedSR"
    probabilistic = False
    mixed_targets = True
