"""Small networks of the papers: convolutional ones for small images, an MLP and a linear one for tables.

ReLUs come after max pools: the same function at a quarter of the work. Where MDFL states that it adds
adaptive average pooling, the pool reduces larger images to the map that the cited network has at 28x28.
"""

from __future__ import annotations

from math import prod

from torch import nn

from unseen.models.factory import MODELS, InputSpec, ModelEntry
from unseen.models.mkldnn import BlockedStage
from unseen.models.network import StagedNetwork

_PADDED_BELOW = 20
"""Images smaller than this are padded at 5x5 convolutions, or their maps would be empty."""


_MNIST_PIXELS = ((0.1307,), (0.3081,))
"""Mean and std of MNIST's pixels."""
_COLOUR_PIXELS = ((0.5,), (0.5,))
_CONVOLUTIONS = ("conv1", "conv2")


def mnist_cnn(spec: InputSpec) -> StagedNetwork:
    """Two 5x5 convolutions (32, 64) with pooling and two linear layers: the default for small images.

    CSAC describes its MNIST CNN only as "two convolution and two fully connected layers"; widths are those of
    the network it cites for Rotated MNIST (Ghifary et al. 2015), with a hidden layer of 100. The network in
    its code is `lenet_dropout`.
    """
    channels, height, width = spec.image_shape("mnist-cnn", smallest=4)
    padding = _padding(height, width)
    rows, columns = (_halve(_halve(side, padding), padding) for side in (height, width))
    stages: dict[str, nn.Module] = {
        "conv1": BlockedStage(nn.Conv2d(channels, 32, 5, padding=padding), nn.MaxPool2d(2), nn.ReLU()),
        "conv2": BlockedStage(nn.Conv2d(32, 64, 5, padding=padding), nn.MaxPool2d(2), nn.ReLU(), last=True),
        "hidden": nn.Sequential(nn.Flatten(), nn.Linear(64 * rows * columns, 100), nn.ReLU()),
    }
    network = StagedNetwork(stages, head=nn.Linear(100, spec.outputs), taps=_CONVOLUTIONS)
    network.pixel_mean, network.pixel_std = _pixels(channels)
    return network


def lenet_dropout(spec: InputSpec) -> StagedNetwork:
    """LeNet of 20 and 50 maps with 500 hidden units and dropout: the network of CSAC's code for digits.

    Its full network makes an exception for a class LeNet, which is not released with it. The code is built
    on the Transfer-Learning-Library, whose LeNet for digits has these two convolutions and two fully
    connected layers, as the paper says. Dropout follows the tapped maps, where its effect is the same.
    Maps are not kept in blocks: blocks of 16 would be padded to 32 and 64 channels.
    """
    channels, height, width = spec.image_shape("lenet-dropout", smallest=4)
    padding = _padding(height, width)
    rows, columns = (_halve(_halve(side, padding), padding) for side in (height, width))
    hidden = nn.Sequential(
        nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(50 * rows * columns, 500), nn.ReLU(), nn.Dropout(0.5)
    )
    stages: dict[str, nn.Module] = {
        "conv1": nn.Sequential(nn.Conv2d(channels, 20, 5, padding=padding), nn.MaxPool2d(2), nn.ReLU()),
        "conv2": nn.Sequential(nn.Conv2d(20, 50, 5, padding=padding), nn.MaxPool2d(2), nn.ReLU()),
        "hidden": hidden,
    }
    network = StagedNetwork(stages, head=nn.Linear(500, spec.outputs), taps=_CONVOLUTIONS)
    network.pixel_mean, network.pixel_std = _pixels(channels)
    return network


def lenet(spec: InputSpec) -> StagedNetwork:
    """LeNet-5 (LeCun et al. 1998) with max pooling and ReLU in place of its squashing layers.

    PPDG names LeNet for Rotated MNIST without details. The first convolution is padded, so that a
    28x28 image has the maps of the 32x32 ones LeNet-5 was made for.
    """
    channels, height, width = spec.image_shape("lenet", smallest=4)
    padding = _padding(height, width)
    rows, columns = (_halve(_halve(side, 2), padding) for side in (height, width))
    stages: dict[str, nn.Module] = {
        "conv1": BlockedStage(nn.Conv2d(channels, 6, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
        "conv2": BlockedStage(nn.Conv2d(6, 16, 5, padding=padding), nn.MaxPool2d(2), nn.ReLU(), last=True),
        "hidden1": nn.Sequential(nn.Flatten(), nn.Linear(16 * rows * columns, 120), nn.ReLU()),
        "hidden2": nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
    }
    return StagedNetwork(stages, head=nn.Linear(84, spec.outputs), taps=_CONVOLUTIONS)


def lenet_1(spec: InputSpec) -> StagedNetwork:
    """LeNet-1: 5x5 convolutions of 4 and 12 maps, tanh, average pooling, one linear layer.

    MDFL names LeNet-1 (its reference 39 follows LeCun et al.) with adaptive average pooling, here to
    the 4x4 maps that LeNet-1 has at 28x28.
    """
    channels, height, width = spec.image_shape("lenet-1", smallest=4)
    padding = _padding(height, width)
    rows, columns = (min(4, _halve(_halve(side, padding), padding)) for side in (height, width))
    stages: dict[str, nn.Module] = {
        "conv1": nn.Sequential(nn.Conv2d(channels, 4, 5, padding=padding), nn.Tanh(), nn.AvgPool2d(2)),
        "conv2": nn.Sequential(nn.Conv2d(4, 12, 5, padding=padding), nn.Tanh(), nn.AvgPool2d(2)),
        "pool": nn.AdaptiveAvgPool2d((rows, columns)),
    }
    return StagedNetwork(stages, head=nn.Linear(12 * rows * columns, spec.outputs), taps=_CONVOLUTIONS)


def cnn_2(spec: InputSpec) -> StagedNetwork:
    """Two 3x3 convolutions (32, 64), one pool, dropout and a hidden layer of 128.

    MDFL's CNN-2 is the EMNIST network of its reference 38 (Reddi et al. 2020, table of architectures), with
    adaptive average pooling, here to the 12x12 maps which that network has at 28x28.
    """
    channels, height, width = spec.image_shape("cnn-2", smallest=6)
    rows, columns = (min(12, (side - 4) // 2) for side in (height, width))
    stages: dict[str, nn.Module] = {
        "conv1": nn.Sequential(nn.Conv2d(channels, 32, 3), nn.ReLU()),
        "conv2": nn.Sequential(nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU()),
        "pool": nn.Sequential(nn.AdaptiveAvgPool2d((rows, columns)), nn.Dropout(0.25)),
        "hidden": _drop_hidden(64 * rows * columns),
    }
    return StagedNetwork(stages, head=nn.Linear(128, spec.outputs), taps=_CONVOLUTIONS)


def custom_net(spec: InputSpec) -> StagedNetwork:
    """MDFL's CustomNet: CNN-2 with a max pool in front of the activation of each convolution.

    The paper specifies "an additional maxpool layer before each activation layer" and gives no sizes:
    all others are those of CNN-2. The adaptive pool reduces maps to the 5x5 they have at 28x28.
    """
    channels, height, width = spec.image_shape("customnet", smallest=10)
    rows, columns = (min(5, ((side - 2) // 2 - 2) // 2) for side in (height, width))
    stages: dict[str, nn.Module] = {
        "conv1": nn.Sequential(nn.Conv2d(channels, 32, 3), nn.MaxPool2d(2), nn.ReLU()),
        "conv2": nn.Sequential(nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU()),
        "pool": nn.Sequential(nn.AdaptiveAvgPool2d((rows, columns)), nn.Dropout(0.25)),
        "hidden": _drop_hidden(64 * rows * columns),
    }
    return StagedNetwork(stages, head=nn.Linear(128, spec.outputs), taps=_CONVOLUTIONS)


def _pixels(channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return _MNIST_PIXELS if channels == 1 else _COLOUR_PIXELS


def _padding(height: int, width: int) -> int:
    return 2 if min(height, width) < _PADDED_BELOW else 0


def _halve(side: int, padding: int) -> int:
    """Compute the side of a map after a 5x5 convolution with that padding and a 2x2 pool."""
    return (side + 2 * padding - 4) // 2


def _drop_hidden(inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 128), nn.ReLU(), nn.Dropout(0.5))


_GREY = (1, 28, 28)
_ENTRIES = {
    "mnist-cnn": ModelEntry(
        mnist_cnn, "two 5x5 convolutions, two linear layers (the default)", _GREY, 155_606
    ),
    "lenet": ModelEntry(lenet, "LeNet-5 with max pooling and ReLU (PPDG)", _GREY, 61_706),
    "lenet-dropout": ModelEntry(
        lenet_dropout, "LeNet of 20 and 50 maps, 500 hidden units, dropout (CSAC's code)", _GREY, 431_080
    ),
    "lenet-1": ModelEntry(lenet_1, "LeNet-1: 4 and 12 maps, one linear layer (MDFL)", _GREY, 3_246),
    "cnn-2": ModelEntry(cnn_2, "two 3x3 convolutions, dropout, 128 hidden units (MDFL)", _GREY, 1_199_882),
    "customnet": ModelEntry(custom_net, "CNN-2 with a max pool at each convolution (MDFL)", _GREY, 225_034),
}
for _name, _entry in _ENTRIES.items():
    MODELS.register(_name)(_entry)


def mlp(spec: InputSpec) -> StagedNetwork:
    """Hidden layers of 64 and 128 units with ReLU; no taps, as there are no maps."""
    stages: dict[str, nn.Module] = {
        "hidden1": nn.Sequential(nn.Flatten(), nn.Linear(prod(spec.input_shape), 64), nn.ReLU()),
        "hidden2": nn.Sequential(nn.Linear(64, 128), nn.ReLU()),
    }
    return StagedNetwork(stages, head=nn.Linear(128, spec.outputs))


MODELS.register("mlp")(
    ModelEntry(mlp, "two hidden layers, 64 and 128, for tables (and flat images)", (16,), 10_698)
)


def linear(spec: InputSpec) -> StagedNetwork:
    """One linear layer on the inputs themselves: linear or softmax regression, and what `ridge` solves."""
    return StagedNetwork({"inputs": nn.Flatten()}, head=nn.Linear(prod(spec.input_shape), spec.outputs))


MODELS.register("linear")(ModelEntry(linear, "one linear layer on the inputs, for tables", (16,), 170))
