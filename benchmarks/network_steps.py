"""Benchmark of training steps: frozen batch norm computed in three ways, and bfloat16 against float32.

    python benchmarks/network_steps.py --out results/performance/network_steps.json

Frozen batch norm is a fixed scale and shift per channel. `evaluation` is PyTorch's own in evaluation mode,
`folded` multiplies the scale into the kernel of the convolution before it (in every step, so that kernel and
scale keep their gradients), `multiply-add` is one operation on the maps. All three are the same function.
One thread, weights channels last, seconds of the processor; variants alternate step by step.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from measure import options, report
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.models import FlatState, InputSpec, Network, build_model, freeze_statistics, set_precision

CLASSES = 7
NETWORKS = (
    ("resnet18", 128, 32),
    ("resnet18", 64, 32),
    ("resnet50", 128, 8),
    ("densenet121", 128, 8),
    ("efficientnet-lite0", 128, 16),
    ("vit-tiny", 128, 16),
    ("mini-vit", 32, 32),
)
"""Model, side of the images, images per batch."""


def scale_and_shift(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Return what a frozen batch norm multiplies by and adds; both keep their gradients."""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    return scale, norm.bias - norm.running_mean * scale


class FoldedConvolution(nn.Module):
    """A convolution and the frozen batch norm behind it as one convolution."""

    def __init__(self, convolution: nn.Conv2d, norm: _BatchNorm) -> None:
        super().__init__()
        self.convolution, self.norm = convolution, norm

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve with W' = W * scale."""
        scale, shift = scale_and_shift(self.norm)
        layer = self.convolution
        kernel = layer.weight * scale.view(-1, 1, 1, 1)
        return functional.conv2d(
            maps, kernel, shift, layer.stride, layer.padding, layer.dilation, layer.groups
        )


class MultiplyAdd(nn.Module):
    """A frozen batch norm as one multiply-add."""

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, maps: Tensor) -> Tensor:
        """Multiply and add per channel."""
        scale, shift = scale_and_shift(self.norm)
        return torch.addcmul(shift.view(-1, 1, 1).to(maps), maps, scale.view(-1, 1, 1).to(maps))


def fold(network: Network) -> None:
    """Fold every batch norm that follows a convolution in the order of the modules."""
    layers = [(name, part) for name, part in network.named_modules() if not list(part.children())]
    for (name, convolution), (after, norm) in pairwise(layers):
        if isinstance(convolution, nn.Conv2d) and isinstance(norm, _BatchNorm):
            put(network, name, FoldedConvolution(convolution, norm))
            put(network, after, nn.Identity())


def multiply_add(network: Network) -> None:
    """Replace every batch norm with a multiply-add."""
    for name, norm in list(network.named_modules()):
        if isinstance(norm, _BatchNorm):
            put(network, name, MultiplyAdd(norm))


def put(network: nn.Module, name: str, part: nn.Module) -> None:
    """Put a module in the place of another."""
    owner, _, attribute = name.rpartition(".")
    setattr(network.get_submodule(owner), attribute, part)


def training_step(network: Network, size: int, batch: int) -> Callable[[], Tensor]:
    """Return one forward and backward pass, on weights that are stored as in training."""
    flat = FlatState(network.train())
    inputs = torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))
    inputs = inputs.to(memory_format=torch.channels_last)
    targets = torch.arange(batch) % CLASSES

    def step() -> Tensor:
        flat.gradient.zero_()
        loss = functional.cross_entropy(network(inputs), targets)
        loss.backward()
        return loss.detach()

    return step


def evaluation_pass(network: Network, size: int, batch: int) -> Callable[[], Tensor]:
    """Return one forward pass without gradients."""
    network.eval()
    inputs = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)

    def step() -> Tensor:
        with torch.inference_mode():
            return network(inputs)

    return step


def alternate(steps: dict[str, Callable[[], Tensor]], repetitions: int) -> dict[str, list[float]]:
    """Take all steps in turn, several times, and return the seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repetition in range(repetitions + 1):
        for name, step in steps.items():
            started = time.process_time()
            step()
            if repetition:
                seconds[name].append(time.process_time() - started)
    return seconds


def ratio(seconds: dict[str, list[float]], base: str, other: str) -> float:
    """Return how many times as fast `other` is: the median over pairs of steps."""
    return statistics.median(a / b for a, b in zip(seconds[base], seconds[other], strict=True))


def frozen_network(model: str, size: int) -> Network:
    """Build a network with frozen batch norm whose statistics are not those of a new layer."""
    network = build_model(model, InputSpec((3, size, size), CLASSES), seed=0)
    freeze_statistics(network)
    for part in network.modules():
        if isinstance(part, _BatchNorm) and part.running_mean is not None and part.running_var is not None:
            part.running_mean.normal_(std=0.1)
            part.running_var.uniform_(0.5, 2)
    return network


def compare_norms(repetitions: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Compare the three ways in a ResNet-18 on 128 pixels, in both precisions."""
    torch.manual_seed(0)
    base = frozen_network("resnet18", 128)
    ways = {"evaluation": base, "folded": copy.deepcopy(base), "multiply-add": copy.deepcopy(base)}
    fold(ways["folded"])
    multiply_add(ways["multiply-add"])
    values, taken = {}, {}
    for precision in ("float32", "bfloat16"):
        steps = {}
        for name, network in ways.items():
            set_precision(network, precision)
            steps[f"{name}, {precision}"] = training_step(network, 128, 32)
        losses = [float(step()) for step in steps.values()]
        assert max(losses) - min(losses) < (1e-4 if precision == "float32" else 0.05), losses
        seconds = alternate(steps, repetitions)
        first = f"evaluation, {precision}"
        for name in list(steps)[1:]:
            values[f"frozen batch norm: {name} / evaluation mode"] = ratio(seconds, first, name)
        taken |= seconds
    return values, taken


def compare_precisions(repetitions: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Compare bfloat16 with float32 in training and evaluation."""
    values, taken = {}, {}
    for model, size, batch in NETWORKS:
        for what, make in (("training", training_step), ("evaluation", evaluation_pass)):
            exact = frozen_network(model, size)
            rounded = copy.deepcopy(exact)
            set_precision(rounded, "bfloat16")
            steps = {"float32": make(exact, size, batch), "bfloat16": make(rounded, size, batch)}
            seconds = alternate(steps, repetitions)
            key = f"{model}, {size} px, {what}"
            values[f"{key}: bfloat16 / float32"] = ratio(seconds, "float32", "bfloat16")
            taken |= {f"{key}, {name}": found for name, found in seconds.items()}
    return values, taken


def main() -> None:
    """Measure both comparisons."""
    asked = options(__doc__, repetitions=9).parse_args()
    torch.set_num_threads(1)
    values: dict[str, Any] = {}
    taken: dict[str, Any] = {}
    for compare in (compare_norms, compare_precisions):
        found, seconds = compare(asked.repetitions)
        values |= found
        taken |= {name: [round(second, 4) for second in own] for name, own in seconds.items()}
    report("Training steps: speed as a multiple of the reference", values, taken, asked.out)


if __name__ == "__main__":
    main()
