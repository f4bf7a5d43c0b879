"""Networks of FedADG: the generator is shared, the discriminator never leaves its client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unseen.errors import UsageError
from unseen.methods._shared import ExtendedNetwork
from unseen.models import Network

if TYPE_CHECKING:
    from unseen.methods.fedadg.fedadg import FedADGSettings


class Generator(nn.Module):
    """Generator G: maps noise and label to a feature by two fully connected layers of its width."""

    def __init__(self, *, feature: int, noise: int, labels: int, output: Literal["relu", "linear"]) -> None:
        super().__init__()
        self.noise_size = noise
        self.hidden = nn.Linear(noise + labels, feature)
        self.output = nn.Linear(feature, feature)
        self.rectify = output == "relu"

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Generate one feature per row."""
        features: Tensor = self.output(F.relu(self.hidden(torch.cat([noise, labels], dim=1))))
        return F.relu(features) if self.rectify else features


class Discriminator(nn.Module):
    """Discriminator D: gives the probability that a feature was generated, given its label.

    A random projection precedes its two layers (feature-wide, then 1). It is a buffer: drawn once, kept with
    the discriminator, never trained. Its entries keep squared lengths in expectation.

    trained_projection  whether the projection is trained like the layers, as in the released programs
    projected_label     whether the label is projected along with the feature, as in the one for VLCS
    """

    projection: Tensor | None

    def __init__(
        self,
        *,
        feature: int,
        labels: int,
        projected: int | None,
        trained_projection: bool = False,
        projected_label: bool = False,
    ) -> None:
        super().__init__()
        inside = labels if projected is not None and projected_label else 0
        drawn = None if projected is None else torch.randn(feature + inside, projected) / projected**0.5
        if trained_projection and drawn is not None:
            self.projection = nn.Parameter(drawn)
        else:
            self.register_buffer("projection", drawn)
        self.label_inside = inside > 0
        self.hidden = nn.Linear((projected or feature) + labels - inside, feature)
        self.output = nn.Linear(feature, 1)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Score one feature per row, in (0, 1)."""
        if self.label_inside:
            features = torch.cat([features, labels], dim=1)
        seen = features if self.projection is None else features @ self.projection
        if not self.label_inside:
            seen = torch.cat([seen, labels], dim=1)
        score: Tensor = self.output(F.relu(self.hidden(seen)))
        return score.sigmoid().squeeze(1)


class TwoLayerNetwork(ExtendedNetwork):
    """Network whose classifier has two linear layers: the additional one is part of C, not of F."""


class SharedParts(nn.Module):
    """Module that clients exchange: network (F and C) and generator, unless the reference is fixed."""

    def __init__(self, network: Network, generator: Generator | None) -> None:
        super().__init__()
        self.network = network
        self.generator = generator

    def features(self, inputs: Tensor) -> Tensor:
        """Run F: the features that are aligned, in front of a classifier of one or two layers."""
        network = self.network
        return (network.body if isinstance(network, TwoLayerNetwork) else network).features(inputs)

    def classify(self, features: Tensor) -> Tensor:
        """Run C: the head, behind the additional layer if there is one."""
        if isinstance(self.network, TwoLayerNetwork):
            features = self.network.layer(features)
        logits: Tensor = self.network.head(features)
        return logits

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of the network that will be deployed."""
        logits: Tensor = self.network(inputs)
        return logits


def make_generator(network: Network, settings: FedADGSettings) -> Generator:
    """Create the generator for a network's features."""
    return Generator(
        feature=network.feature_size,
        noise=settings.noise_size or max(1, network.feature_size // 2),
        labels=network.head.out_features if settings.one_hot else 0,
        output=settings.generator_output,
    )


def make_discriminator(network: Network, settings: FedADGSettings) -> Discriminator:
    """Create a discriminator for a network's features."""
    return Discriminator(
        feature=network.feature_size,
        labels=network.head.out_features if settings.one_hot else 0,
        projected=projected_size(network, settings),
        trained_projection=settings.chosen.trained_projection,
        projected_label=settings.chosen.projected_label,
    )


def projected_size(network: Network, settings: FedADGSettings) -> int | None:
    """Choose d2, which the paper wants below the feature's d1; None without projection."""
    if not settings.projection:
        return None
    width = network.feature_size
    projected = settings.projection_size or max(1, width // 4)
    if projected >= width:
        raise UsageError(
            f"projection_size must be below the {width} numbers of a feature, not {projected}: "
            "lower it or set projection=false"
        )
    return projected


def draw_fixed_reference(
    kind: str, count: int, width: int, *, generator: torch.Generator, device: torch.device
) -> Tensor:
    """Draw features of a fixed reference: N(0, I), U[-1, 1] or Laplace(1/sqrt 2) (table VIII)."""
    if kind == "normal":
        drawn = torch.randn(count, width, generator=generator)
    elif kind == "uniform":
        drawn = 2 * torch.rand(count, width, generator=generator) - 1
    elif kind == "laplace":
        waiting = torch.empty(2, count, width).exponential_(generator=generator)
        drawn = (waiting[0] - waiting[1]) / 2**0.5
    else:
        raise ValueError(f"{kind!r} is not a fixed reference distribution")
    return drawn.to(device)
