"""FedSR's representation, the class-conditional reference it is aligned with, and its two regularizers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unseen.methods._shared import ExtendedNetwork
from unseen.methods.fedsr.fedsr_settings import Objective
from unseen.models import Network
from unseen.seeding import global_torch_seed

_SMALLEST_STD = 1e-6
"""Added to every std, so that its logarithm stays finite."""


class Representation(NamedTuple):
    """Representation z of a batch, which the head sees, and the distribution it was drawn from.

    std  None where z is the mean itself
    """

    z: Tensor
    mean: Tensor
    std: Tensor | None


class ClassReference(nn.Module):
    """Reference r(z|y): one Gaussian with diagonal covariance per class, learned with the model.

    Initialized as in the released code: means 0, stds softplus(1), factor C = 1.
    """

    def __init__(self, classes: int, size: int, *, scale: bool) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(classes, size))
        self.raw_deviation = nn.Parameter(torch.ones(classes, size))
        self.scale = nn.Parameter(torch.ones(())) if scale else None

    def forward(self, mean: Tensor, std: Tensor, targets: Tensor) -> Tensor:
        """Compute KL(p(z|x) || r(z|y)), the mean over the batch, with C z instead of z where C is learned.

        C z has the std |C| sigma: a negative C has a divergence like any other.
        """
        if self.scale is not None:
            mean, std = self.scale * mean, self.scale.abs() * std
        return gaussian_divergence(
            mean, std, self.mean[targets], positive(self.raw_deviation)[targets]
        ).mean()


class RepresentationParts(nn.Module):
    """Module that clients exchange: the network, the std layer, and the reference if it is shared."""

    def __init__(
        self, network: Network, *, spread: nn.Linear | None, reference: ClassReference | None
    ) -> None:
        super().__init__()
        self.network = network
        self.spread = spread
        self.reference = reference

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits on the mean representation, as the deployed network does."""
        logits: Tensor = self.network(inputs)
        return logits

    def represent(self, inputs: Tensor, *, noise: torch.Generator) -> Representation:
        """Draw z = mu(x) + sigma(x) * noise once per sample; z is mu(x) where nothing is drawn."""
        mean = self.network.features(inputs)
        if self.spread is None:
            return Representation(mean, mean, None)
        std = positive(self.spread(mean))
        drawn = torch.randn(mean.shape, generator=noise).to(mean.device)
        return Representation(mean + std * drawn, mean, std)


def join_parts(network: Network, objective: Objective, *, seed: int) -> RepresentationParts:
    """Add the layers that the objective needs to a network; they are initialized from the seed."""
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
    """Create the reference for a network's classes and features; nothing in it is random."""
    return ClassReference(network.head.out_features, network.feature_size, scale=objective.scale)


def representation_length(z: Tensor, *, squared: bool) -> Tensor:
    """Compute the L2R term: the mean of ||z||^2, or of ||z|| as in the released code."""
    lengths = z.square().sum(1) if squared else z.norm(dim=1)
    return lengths.mean()


def gaussian_divergence(mean: Tensor, std: Tensor, other_mean: Tensor, other_std: Tensor) -> Tensor:
    """Compute KL(N(mean, std^2) || N(other_mean, other_std^2)) of every row, with diagonal covariances."""
    ratio = std / other_std
    shift = (mean - other_mean) / other_std
    return ((ratio.square() + shift.square() - 1) / 2 - ratio.log()).sum(1)


def positive(raw: Tensor) -> Tensor:
    """Map unbounded numbers to stds."""
    return F.softplus(raw) + _SMALLEST_STD
