"""Small networks for small images and tables, as the papers use them."""

from __future__ import annotations

from torch import nn

from unseen.errors import UsageError
from unseen.models.build import MODELS, ModelEntry, ModelFacts
from unseen.models.network import StagedNetwork


def _mnist_cnn(facts: ModelFacts) -> StagedNetwork:
    """Two 5x5 convolutions (32, 64) with pooling and two fully connected layers.

    The ReLU stands behind the pool: the same function at a quarter of the work.
    """
    channels, height, width = facts.input_shape
    if min(height, width) < 4:
        raise UsageError(f"mnist-cnn needs images of at least 4x4 pixels, these are {height}x{width}")
    flat = 64 * (height // 4) * (width // 4)
    stages: dict[str, nn.Module] = {
        "conv1": nn.Sequential(nn.Conv2d(channels, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
        "conv2": nn.Sequential(nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
        "hidden": nn.Sequential(nn.Flatten(), nn.Linear(flat, 100), nn.ReLU()),
    }
    return StagedNetwork(stages, head=nn.Linear(100, facts.outputs), taps=("conv1", "conv2"))


MODELS.register("mnist-cnn")(
    ModelEntry(_mnist_cnn, "two 5x5 convolutions and two fully connected layers (CSAC's MNIST CNN)")
)
