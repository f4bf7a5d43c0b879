"""Zero-shot: a CLIP's own classifier, made from the names of the classes. Clients send nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unseen.aggregation import ServerWork
from unseen.errors import UsageError
from unseen.hparams import Settings, setting
from unseen.methods._shared import freeze_all_but, with_head
from unseen.methods.base import Method, Paper, register
from unseen.models import Network
from unseen.models.class_texts import TEMPLATE, check_template
from unseen.training import ClientWork, Update

PHOTO = "a photo of a {}."


@dataclass(frozen=True)
class ZeroShotSettings(Settings):
    """Settings of zero-shot."""

    template: str = setting(PHOTO, TEMPLATE)

    def __post_init__(self) -> None:
        check_template(self.template, owner="zero-shot")


@register
class ZeroShot(Method[ZeroShotSettings]):
    """Logits s cos(f, t_c) of an image's vector f and the vector t_c of class c's sentence; s is the CLIP's.

    Everything is frozen, so there is no update, and clients do not look at their training samples. The row
    shows what methods that start from the same CLIP add to it.
    """

    name = "zero-shot"
    title = "Zero-Shot"
    family = "closed form"
    summary = "the classifier that a CLIP makes from class names; clients send nothing"
    paper = Paper(
        title="Learning Transferable Visual Models From Natural Language Supervision",
        authors="Radford, Kim, Hallacy, Ramesh, Goh, Agarwal, Sastry, Askell, Mishkin, Clark, "
        "Krueger, Sutskever",
        year=2021,
        venue="ICML",
        url="https://arxiv.org/abs/2103.00020",
    )
    sends = ("number of samples",)
    in_state = ()
    no_average = "clients send no models"
    fixed_weights = no_average
    own_optimizers = "it trains nothing"
    own_head = "it computes the head itself"
    default_train = "head"
    default_rounds = 1
    needs_texts = True
    beyond_losses = "it takes no step, so there is no gradient to protect"

    def build(self, network: Network, *, seed: int) -> nn.Module:
        """Set the head, and freeze everything."""
        return freeze_all_but(with_head(network, class_text_head(network, self.settings.template)), ())

    def client(self, work: ClientWork) -> Update:
        """Send an empty state; the samples are not looked at."""
        return work.update()

    def server(self, work: ServerWork) -> Tensor:
        """Return the empty state."""
        return work.weights


def class_text_head(network: Network, template: str) -> nn.Linear:
    """Make the head with the logits s cos(f, t_c); without a text tower, one of this shape to be loaded.

    A CLIP's features are f sqrt(d) with |f| = 1, so the weights are s t_c / sqrt(d).
    """
    head = nn.Linear(network.head.in_features, network.head.out_features)
    with torch.no_grad():
        head.bias.zero_()
        if (texts := network.texts) is None:
            head.weight.zero_()
        else:
            vectors = texts.embed_classes(template)
            head.weight.copy_(vectors * texts.scale / vectors.shape[1] ** 0.5)
    return head.to(network.head.weight.device)


def start_zero_shot(network: Network) -> None:
    """Give a network the zero-shot head to train on from: `--head zero-shot`."""
    require_texts(network, "--head zero-shot")
    network.head = class_text_head(network, PHOTO)


def require_texts(network: Network, purpose: str) -> None:
    """Refuse a network without a text tower that reads into the space of its features."""
    if network.texts is None:
        raise UsageError(
            f"{purpose} reads class names with a text tower, and model {network.model_name!r} has none: use "
            "--model clip-vit-b-32 with an open_clip file as --weights, and classes with names"
        )
    if "bottleneck" in network._modules:
        raise UsageError(
            f"{purpose} compares images with class names, and model {network.model_name!r} has a bottleneck "
            "between them: leave out +bottleneck"
        )
