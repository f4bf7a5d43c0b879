"""FedSR's representation, the class-conditional reference it is held to, and its two regularisers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unseen.methods._shared import ExtendedNetwork
from unseen.methods.fedsr.fedsr_settings import Objective
from unseen.models import Network
from unseen.seeding import global_torch_seed

_SMALLEST_DEVIATION = 1e-6
"""Added to every deviation, so that its logarithm stays finite."""


class Representation(NamedTuple):
    """z of a batch: what the head sees, and the distribution it was drawn from.

    deviation  None where z is the mean itself
    """

    z: Tensor
    mean: Tensor
    deviation: Tensor | None


class ClassReference(nn.Module):
    """r(z|y): a Gaussian with diagonal covariance for every class, learnt along with the model.

    The released code's starting point: means 0, deviations softplus(1), factor C = 1.
    """

    def __init__(self, classes: int, size: int, *, scale: bool) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(classes, size))
        self.raw_deviation = nn.Parameter(torch.ones(classes, size))
        self.scale = nn.Parameter(torch.ones(())) if scale else None

    def forward(self, mean: Tensor, deviation: Tensor, targets: Tensor) -> Tensor:
        """KL(p(z|x) || r(z|y)), the mean over the batch, with C z in the place of z where C is learnt.

        C z has the deviation |C| sigma: a C that turns negative has a divergence like any other.
        """
        if self.scale is not None:
            mean, deviation = self.scale * mean, self.scale.abs() * deviation
        return gaussian_divergence(
            mean, deviation, self.mean[targets], positive(self.raw_deviation)[targets]
        ).mean()


class RepresentationParts(nn.Module):
    """What travels: the network, the layer that gives deviations, and the reference if it is shared."""

    def __init__(
        self, network: Network, *, spread: nn.Linear | None, reference: ClassReference | None
    ) -> None:
        super().__init__()
        self.network = network
        self.spread = spread
        self.reference = reference

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of the network on the mean representation, which is what will be deployed."""
        logits: Tensor = self.network(inputs)
        return logits

    def represent(self, inputs: Tensor, *, noise: torch.Generator) -> Representation:
        """One draw of z = mu(x) + sigma(x) * noise a sample; mu(x) itself where nothing is drawn."""
        mean = self.network.features(inputs)
        if self.spread is None:
            return Representation(mean, mean, None)
        deviation = positive(self.spread(mean))
        drawn = torch.randn(mean.shape, generator=noise).to(mean.device)
        return Representation(mean + deviation * drawn, mean, deviation)


def join_parts(network: Network, objective: Objective, *, seed: int) -> RepresentationParts:
    """Give a network what its objective needs; new layers are drawn from the seed."""
    size = network.feature_size
    with global_torch_seed(seed, "fedsr: representation"):
        if objective.bottleneck:
            network = ExtendedNetwork(network, nn.Linear(size, size))
        spread = nn.Linear(size, size) if objective.probabilistic else None
    shared = objective.cmi_weight > 0 and objective.reference == "shared"
    return RepresentationParts(
        network, spread=spread, reference=make_reference(network, objective) if shared else None
    )


def make_reference(network: Network, objective: Objective) -> ClassReference:
    """Make the reference for a network's classes and features; nothing in it is random."""
    return ClassReference(network.head.out_features, network.feature_size, scale=objective.scale)


def representation_length(z: Tensor, *, squared: bool) -> Tensor:
    """The L2R term: the mean of ||z||^2, or of ||z|| as in the released code."""
    lengths = z.square().sum(1) if squared else z.norm(dim=1)
    return lengths.mean()


def gaussian_divergence(
    mean: Tensor, deviation: Tensor, other_mean: Tensor, other_deviation: Tensor
) -> Tensor:
    """KL(N(mean, deviation^2) || N(other_mean, other_deviation^2)) of every row, diagonal covariances."""
    ratio = deviation / other_deviation
    shift = (mean - other_mean) / other_deviation
    return ((ratio.square() + shift.square() - 1) / 2 - ratio.log()).sum(1)


def positive(raw: Tensor) -> Tensor:
    """Deviations from unbounded numbers."""
    return F.softplus(raw) + _SMALLEST_DEVIATION
