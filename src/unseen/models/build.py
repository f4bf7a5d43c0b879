"""Making a network by name: ours by registry, every other through timm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unseen.models.network import Network
from unseen.randomness import global_torch_seed
from unseen.registry import Registry


@dataclass(frozen=True)
class ModelFacts:
    """What a network must fit: the shape of one input and how many numbers it predicts."""

    input_shape: tuple[int, ...]
    outputs: int

    @property
    def is_image(self) -> bool:
        """Whether inputs are pictures (channels, height, width) or rows of a table."""
        return len(self.input_shape) == 3


@dataclass(frozen=True)
class ModelEntry:
    """A network that users can name."""

    make: Callable[[ModelFacts], Network]
    description: str


MODELS: Registry[ModelEntry] = Registry("model")


def build_model(name: str, facts: ModelFacts, *, seed: int, weights: Path | None = None) -> Network:
    """Make the named network with seeded initial weights, then load a weights file if one is given."""
    from unseen.models import small, zoo  # noqa: F401  (fill MODELS)
    from unseen.models.weights import load_weights

    with global_torch_seed(seed, "initial weights", name):
        network = MODELS[name].make(facts) if name in MODELS else zoo.make_timm(name, facts)
    if weights is not None:
        load_weights(network, weights)
    return network
