"""The network for tables: two hidden layers. Takes any input, images too, as one flat row of numbers."""

from __future__ import annotations

from math import prod

from torch import nn

from unseen.models.build import MODELS, ModelEntry, ModelFacts
from unseen.models.network import StagedNetwork


def mlp(facts: ModelFacts) -> StagedNetwork:
    """Hidden layers of 64 and 128 units with ReLU; no taps, as there are no maps."""
    stages: dict[str, nn.Module] = {
        "hidden1": nn.Sequential(nn.Flatten(), nn.Linear(prod(facts.input_shape), 64), nn.ReLU()),
        "hidden2": nn.Sequential(nn.Linear(64, 128), nn.ReLU()),
    }
    return StagedNetwork(stages, head=nn.Linear(128, facts.outputs))


MODELS.register("mlp")(
    ModelEntry(mlp, "two hidden layers, 64 and 128, for tables (and flat images)", (16,), 10_698)
)
