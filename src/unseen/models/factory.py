"""Build a network by name: from the registry, or else through timm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from unseen.errors import UsageError
from unseen.models.network import Network
from unseen.registry import Registry
from unseen.seeding import global_torch_seed


@dataclass(frozen=True)
class InputSpec:
    """Requirements on a network: the shape of one input and the number of outputs.

    classes  names of the classes, for networks with a text tower; without them none is built
    """

    input_shape: tuple[int, ...]
    outputs: int
    classes: tuple[str, ...] = ()

    @property
    def is_image(self) -> bool:
        """Whether inputs are images (channels, height, width) or rows of a table."""
        return len(self.input_shape) == 3

    def image_shape(self, model: str, *, smallest: int = 1) -> tuple[int, int, int]:
        """Return (channels, height, width), or refuse inputs that `model` cannot take."""
        if not self.is_image:
            raise UsageError(
                f"model {model!r} works on images, this data has rows of {self.input_shape[0]} columns: "
                "use --model mlp"
            )
        channels, height, width = self.input_shape
        if min(height, width) < smallest:
            raise UsageError(
                f"model {model!r} needs images of at least {smallest}x{smallest} pixels, these are "
                f"{height}x{width}: use a larger --image-size or another --model"
            )
        return channels, height, width


@dataclass(frozen=True)
class ModelEntry:
    """A network that users can name.

    parameters  number of parameters for 10 classes and inputs of the shape `reference`; a test counts them
    zoo         timm's name of the same network, whose pretrained weights fit; empty if there are none
    image_size  side of the images that its published weights are for; 0 = any
    pretrained  whether it is of no use without its published weights, so that random ones must be asked for
    """

    make: Callable[[InputSpec], Network]
    summary: str
    reference: tuple[int, ...] = ()
    parameters: int = 0
    zoo: str = ""
    image_size: int = 0
    pretrained: bool = False


class ModelSummary(NamedTuple):
    """One line of the list of models; see `ModelEntry`."""

    name: str
    summary: str
    parameters: int
    reference: tuple[int, ...]


MODELS: Registry[ModelEntry] = Registry(
    "model",
    group="unseen.models",
    builtin=(
        "unseen.models.small_nets",
        "unseen.models.mini_vit",
        "unseen.models.timm_backbones",
        "unseen.models.clip",
    ),
)


def build_model(name: str, spec: InputSpec, *, seed: int, weights: Path | None = None) -> Network:
    """Build the named network with seeded initial weights, then load a weights file if one is given.

    What a user should know about the loading (such as a head left out) is in the network's `notes`. A name
    that ends in `+bottleneck` is the network with a narrow layer in front of its head, one that ends in
    `+groupnorm` that with group norm instead of batch norm.
    """
    from unseen.models.bottleneck import BOTTLENECK, add_bottleneck
    from unseen.models.group_norm import GROUP_NORM, replace_batch_norm
    from unseen.models.model_names import plain_name
    from unseen.models.pretrained import load_weights
    from unseen.models.timm_backbones import make_timm

    plain = plain_name(name)
    with global_torch_seed(seed, "initial weights", plain):
        network = MODELS[plain].make(spec) if plain in MODELS else make_timm(plain, spec)
        if name.removesuffix(GROUP_NORM).endswith(BOTTLENECK):
            add_bottleneck(network)
    network.model_name = name
    if weights is not None:
        network.notes += load_weights(network, weights).notes()
    if name.endswith(GROUP_NORM):
        replace_batch_norm(network, name=plain)
    return network


def list_models() -> list[ModelSummary]:
    """List the networks known by name, small ones first; loads no zoo library."""
    entries = [(name, MODELS[name]) for name in MODELS]
    summaries = [ModelSummary(name, e.summary, e.parameters, e.reference) for name, e in entries]
    return sorted(summaries, key=lambda summary: summary.parameters)
