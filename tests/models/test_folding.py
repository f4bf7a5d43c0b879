"""Folded networks compute the same with fewer layers; what cannot be folded stays as it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unseen.models import InputSpec, build_model
from unseen.models.folding import fold_batch_norm
from unseen.models.splitting import FrozenPart, split_network

SAMPLE = torch.linspace(-2, 2, 2 * 3 * 48 * 48).view(2, 3, 48, 48)


def with_statistics(network: nn.Module) -> nn.Module:
    """Give every batch norm statistics and scales that are not those of a new layer."""
    generator = torch.Generator().manual_seed(0)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for tensor in (layer.running_mean, layer.bias.data):
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
            for tensor in (layer.running_var, layer.weight.data):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return network


def count_norms(network: nn.Module) -> int:
    return sum(isinstance(layer, nn.BatchNorm2d) for layer in network.modules())


@pytest.mark.parametrize("model", ["resnet18", "tf_efficientnet_lite0"])
def test_folded_part_computes_the_same_with_fewer_layers(model: str) -> None:
    network = with_statistics(build_model(model, InputSpec((3, 48, 48), 4), seed=0).eval())
    frozen, _ = split_network(network, "last-stage", shape=(3, 48, 48))
    before = {name: tensor.clone() for name, tensor in frozen.state_dict().items()}
    folded = fold_batch_norm(frozen, SAMPLE)
    assert count_norms(folded) < count_norms(frozen)
    others = torch.rand(3, 3, 48, 48)
    assert torch.allclose(folded(others), frozen(others), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(before[name], tensor) for name, tensor in frozen.state_dict().items())


class _UsedTwice(nn.Module):
    """A network whose convolution feeds a batch norm and, around it, the result."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def features(self, inputs: Tensor) -> Tensor:
        found = self.conv(inputs)
        return (found + self.norm(found)).mean((2, 3))


def test_a_sum_around_the_batch_norm_is_not_folded() -> None:
    frozen = FrozenPart(with_statistics(_UsedTwice()))
    assert fold_batch_norm(frozen, SAMPLE) is frozen


def test_networks_without_batch_norm_stay_as_they_are() -> None:
    frozen = FrozenPart(build_model("mini-vit", InputSpec((3, 48, 48), 4), seed=0))
    assert fold_batch_norm(frozen, SAMPLE) is frozen
