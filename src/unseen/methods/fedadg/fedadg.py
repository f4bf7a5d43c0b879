"""FedADG: features of every client are aligned, class by class, to one reference that is learnt together.

A generator makes the reference features; at each client a discriminator tells them from extracted ones
and the extractor learns to be mistaken for them. The discriminator never leaves its client.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from unseen.aggregation import ServerWork, Weighting
from unseen.errors import UsageError
from unseen.methods.base import Method, Paper, register
from unseen.methods.fedadg.adversarial_training import LocalTraining
from unseen.methods.fedadg.fedadg_networks import (
    SharedParts,
    make_discriminator,
    make_generator,
    projected_size,
)
from unseen.methods.fedadg.fedadg_settings import FedADGSettings
from unseen.models import FlatState, Network
from unseen.seeding import global_torch_seed
from unseen.training import ClientWork, Update

_DISCRIMINATOR = "discriminator"
"""Key in a client's state: the weights of its discriminator, projection included."""


@register
class FedADG(Method[FedADGSettings]):
    """Federated adversarial domain generalization (algorithm 1 of the paper).

    F is the network up to its features, C its head; both and the generator G are averaged with equal
    weights, the discriminator D is part of the client's state. Deployed are F and C.
    """

    name = "fedadg"
    title = "FedADG"
    summary = "features aligned class by class to a learnt reference distribution, adversarially"
    paper = Paper(
        title="Federated Learning for IoT Devices with Domain Generalization",
        authors="Zhang, Lei, Shi, Huang, Chen",
        year=2023,
        venue="IEEE Internet of Things Journal",
        url="https://doi.org/10.1109/JIOT.2023.3234977",
    )
    sends = ("model weights", "weights of the feature generator", "number of samples")
    in_state = ("model weights", "weights of the feature generator")
    beyond_losses = "it trains a discriminator on its samples beside the model"

    @property
    def weighting(self) -> Weighting:
        """Equal weights for all clients (step s3)."""
        return "uniform"

    def build(self, network: Network, *, seed: int) -> nn.Module:
        """Join the network with the generator, if there is one (step s1)."""
        projected_size(network, self.settings)
        if self.settings.reference != "generator":
            return SharedParts(network, None)
        with global_torch_seed(seed, "fedadg: generator"):
            return SharedParts(network, make_generator(network, self.settings))

    def deployed(self, module: nn.Module) -> Network:
        """Return F and C."""
        return cast(SharedParts, module).network

    def client(self, work: ClientWork) -> Update:
        """Train F, C and G against the client's own discriminator, which continues from its last round."""
        shared = cast(SharedParts, work.module)
        discriminator = self._discriminator(work, shared.network)
        training = LocalTraining(work, self.settings, shared=shared, discriminator=discriminator)
        training.run()
        if discriminator is not None:
            work.state[_DISCRIMINATOR] = discriminator.read()
        return work.update(diagnostics=training.means())

    def server(self, work: ServerWork) -> Tensor:
        """Average F, C and G over the clients with equal weights (step s3)."""
        return work.updates.mean(torch.ones_like(work.updates.samples))

    def _discriminator(self, work: ClientWork, network: Network) -> FlatState | None:
        """Load the client's discriminator from its state, or make a new one in its first round."""
        if self.settings.reference == "none":
            return None
        if self.settings.one_hot and not work.train.task_type.has_classes:
            raise UsageError(
                "fedadg aligns features class by class and a regression has no classes: "
                "use --set one_hot=false to align them as a whole, or another --method"
            )
        with global_torch_seed(work.seed, "fedadg: discriminator", work.client):
            flat = FlatState(make_discriminator(network, self.settings).to(work.start.device))
        if _DISCRIMINATOR in work.state:
            flat.load(work.state[_DISCRIMINATOR])
        return flat
