"""FedCLIP: a frozen CLIP and an adapter on its image features, which is all that clients train and send."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights
from unseen.data import Batch
from unseen.errors import UsageError
from unseen.hparams import Settings, setting
from unseen.methods._shared import ExtendedNetwork, freeze_all_but
from unseen.methods.base import Method, Paper, register
from unseen.methods.closed_form import class_text_head
from unseen.models import Network
from unseen.models.class_texts import TEMPLATE, check_template
from unseen.seeding import global_torch_seed
from unseen.training import ClientWork, Update

ADAPTER = "layer."
"""Start of the names of the adapter's tensors in the module that is trained."""


@dataclass(frozen=True)
class FedCLIPSettings(Settings):
    """Settings of FedCLIP."""

    loss: Literal["classes", "pairs"] = setting(
        "classes",
        "cross-entropy over the classes, or over the batch's pairs of image and sentence as in the paper",
    )
    template: str = setting("a picture of a {}", TEMPLATE)
    weighting: Weighting = setting("uniform", WEIGHTING)

    def __post_init__(self) -> None:
        check_template(self.template, owner="fedclip")


class FeatureMask(nn.Module):
    """The adapter a(f) = softmax(W2 tanh(W1 f)); its output has the direction of a(f) * f.

    Equation 3 of the paper, where a(f) is called an attention over the features.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(size, size), nn.Linear(size, size)

    def mask(self, features: Tensor) -> Tensor:
        """Return the weight of every feature of every sample; those of a sample add up to 1."""
        raw: Tensor = self.second(self.first(features).tanh())
        return raw.softmax(dim=1)

    def forward(self, features: Tensor) -> Tensor:
        """Weight the features, and restore their length sqrt(d)."""
        return F.normalize(self.mask(features) * features, dim=1) * math.sqrt(features.shape[1])


@register
class FedCLIP(Method[FedCLIPSettings]):
    """Minimizes the cross-entropy of s cos(a(f) * f, t_c), with the towers that give f and t_c frozen.

    t_c is the vector of class c's sentence and s the scale of the CLIP. The paper sets every image of a batch
    against the sentences of all images of the batch, in both directions (`loss=pairs`): there, images of one
    class share a sentence and are each other's negatives.
    """

    name = "fedclip"
    title = "FedCLIP"
    family = "prompt or adapter"
    summary = "an adapter on the image features of a frozen CLIP; only the adapter is trained and sent"
    paper = Paper(
        title="FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning",
        authors="Lu, Hu, Wang, Xie",
        year=2023,
        venue="IEEE Data Eng. Bull.",
        url="https://arxiv.org/abs/2302.13485",
    )
    fixed_weights = ""
    default_train = "head"
    needs_texts = True
    own_head = "its head are the sentences of the classes"
    effort_options = {"optimiser": "adam", "lr": 5e-5, "weight_decay": 0.2}  # noqa: RUF012 (as in Method)

    def __init__(self, settings: FedCLIPSettings) -> None:
        super().__init__(settings)
        pairs = settings.loss == "pairs"
        self.beyond_losses = "its loss compares the samples of a batch" if pairs else ""
        self.mixed_targets = not pairs

    def build(self, network: Network, *, seed: int) -> nn.Module:
        """Put the adapter between the features and the classes' sentences; freeze all but the adapter."""
        with global_torch_seed(seed, "fedclip: adapter"):
            adapter = FeatureMask(network.feature_size)
        head = class_text_head(network, self.settings.template)
        module = ExtendedNetwork(network, adapter.to(head.weight.device), head=head)
        return freeze_all_but(module, [f"{ADAPTER}{name}" for name, _ in adapter.named_parameters()])

    def client(self, work: ClientWork) -> Update:
        """Train the adapter."""
        network = cast(Network, work.module)
        if not work.train.task_type.has_classes:
            raise UsageError("fedclip needs classes, but this task is regression; use another --method")
        if self.settings.loss == "classes":
            return super().client(work)

        def loss(batch: Batch) -> Tensor:
            return contrast_pairs(network.features(batch.inputs), network.head.weight[batch.targets])

        work.fit(loss)
        return work.update()

    def server(self, work: ServerWork) -> Tensor:
        """Average the adapters."""
        return work.updates.mean(client_weights(work.updates.samples, self.settings.weighting))


def contrast_pairs(images: Tensor, sentences: Tensor) -> Tensor:
    """Compute the contrastive loss of n pairs: cross-entropy of every image over the sentences, and back.

    Only the pair itself counts as right, although the sentences of a class are equal.
    """
    logits, own = images @ sentences.T, torch.arange(len(images), device=images.device)
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
