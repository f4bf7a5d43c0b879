"""LoRA starts as the network itself, trains its factors and the head, and merges into plain layers."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from unseen.errors import UsageError
from unseen.models import FlatState, InputSpec, Layout, Network, build_model, frozen_names
from unseen.models.lora import LoRALinear, add_lora, factor_pairs, merge_lora, plain_state

SPEC = InputSpec((1, 28, 28), 3)


def make(name: str = "mini-vit", spec: InputSpec = SPEC) -> Network:
    return build_model(name, spec, seed=0)


def with_lora(network: Network, **options: object) -> Network:
    defaults = {"rank": 4, "alpha": 8.0, "seed": 0}
    return add_lora(copy.deepcopy(network), **{**defaults, **options})


def disturb(network: Network) -> None:
    """Give the factors B values, as training would."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, LoRALinear):
                layer.lora_b.normal_(0, 0.3, generator=generator)


def test_a_layer_adds_the_scaled_product_of_its_factors() -> None:
    base = nn.Linear(5, 3)
    layer = LoRALinear(base, rank=2, alpha=6.0, generator=torch.Generator().manual_seed(0))
    inputs = torch.randn(4, 7, 5)
    assert torch.equal(layer(inputs), base(inputs))
    with torch.no_grad():
        layer.lora_b.normal_()
    weight = base.weight + 3.0 * layer.lora_b @ layer.lora_a
    torch.testing.assert_close(layer(inputs), nn.functional.linear(inputs, weight, base.bias))
    torch.testing.assert_close(layer.merged()(inputs), layer(inputs))
    assert float(layer.lora_a.detach().abs().max()) <= 1 / math.sqrt(5)


@pytest.mark.parametrize(
    ("name", "spec", "layers"),
    [("mini-vit", SPEC, 8), ("vit-tiny", InputSpec((3, 32, 32), 3), 24)],
)
def test_the_merged_network_is_plain_and_equal(name: str, spec: InputSpec, layers: int) -> None:
    plain = make(name, spec).eval()
    network = with_lora(plain, input_shape=spec.input_shape).eval()
    inputs = torch.rand(2, *spec.input_shape)
    with torch.no_grad():
        torch.testing.assert_close(network(inputs), plain(inputs))
        disturb(network)
        expected = network(inputs)
    assert not torch.allclose(expected, plain(inputs), atol=1e-3)
    assert sum(isinstance(part, LoRALinear) for part in network.modules()) == layers
    state = plain_state(network, FlatState(network).read())
    assert list(state) == list(plain.state_dict())
    loaded = copy.deepcopy(plain)
    loaded.load_state_dict(state)
    merged = merge_lora(copy.deepcopy(network))
    assert not any(isinstance(part, LoRALinear) for part in merged.modules())
    assert list(merged.state_dict()) == list(plain.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(loaded(inputs), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(merged(inputs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("freeze_a", [False, True])
def test_the_factors_and_the_head_are_trained_and_nothing_else(freeze_a: bool) -> None:
    network = with_lora(make(), freeze_a=freeze_a)
    layout = Layout.of(network)
    ends = {entry.name.rpartition(".")[2] for entry in layout.entries if "head" not in entry.name}
    assert ends == ({"lora_b"} if freeze_a else {"lora_a", "lora_b"})
    assert {"head.weight", "head.bias"} <= {entry.name for entry in layout.entries}
    assert {entry.name for entry in layout.entries} | set(frozen_names(network)) == set(network.state_dict())
    assert len(factor_pairs(layout)) == (0 if freeze_a else 8)
    for pair in factor_pairs(layout):
        assert pair.a.name.removesuffix("lora_a") == pair.b.name.removesuffix("lora_b")
    flat = FlatState(network)
    disturb(network)
    network(torch.rand(2, 1, 28, 28)).square().sum().backward()
    assert all(bool(entry.view(flat.gradient).any()) for entry in layout.entries)


def test_factors_are_drawn_from_the_seed_and_the_name() -> None:
    def drawn(seed: int) -> list[Tensor]:
        network = with_lora(make(), seed=seed)
        return [part.lora_a for part in network.modules() if isinstance(part, LoRALinear)]

    assert all(torch.equal(one, other) for one, other in zip(drawn(0), drawn(0), strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(drawn(0), drawn(1), strict=True))
    assert not torch.equal(drawn(0)[0], drawn(0)[2])


def test_a_plain_state_restarts_the_correction() -> None:
    network = with_lora(make()).eval()
    disturb(network)
    inputs = torch.rand(2, 1, 28, 28)
    expected = network(inputs)
    network.load_state_dict(plain_state(network, FlatState(network).read()))
    torch.testing.assert_close(network(inputs), expected, rtol=1e-5, atol=1e-5)
    layers = [part for part in network.modules() if isinstance(part, LoRALinear)]
    assert not any(bool(layer.lora_b.any()) for layer in layers)
    assert all(bool(layer.lora_a.any()) for layer in layers)


def test_a_network_without_attention_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'lenet' has none: use a vision transformer"):
        with_lora(make("lenet"))


def test_a_rank_above_the_width_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--lora-rank 65 is larger than the layer blocks\.0\.q"):
        with_lora(make(), rank=65)


class ReadsWeights(Network):
    """Its attention reads the weights of its layer, so that a correction would be ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(4, 12), nn.Linear(12, 2)

    def extract(self, inputs: Tensor, *, taps: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        return nn.functional.linear(inputs, self.qkv.weight), ()


def test_a_network_that_would_ignore_the_correction_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot correct qkv of model 'network'"):
        with_lora(ReadsWeights(), input_shape=(4,))
