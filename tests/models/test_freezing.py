"""Frozen tensors are neither in the flat state nor changed, whatever wraps or copies the network."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from unseen.errors import UsageError
from unseen.methods import METHODS, make_method
from unseen.methods._shared import ExtendedNetwork
from unseen.models import (
    FlatState,
    InputSpec,
    Kind,
    Layout,
    build_model,
    freeze,
    frozen_names,
    model_digest,
    select_trained,
    whole_state,
)

SPEC = InputSpec((1, 28, 28), 3)


def names(module: nn.Module) -> list[str]:
    return [entry.name for entry in Layout.of(module).entries]


def test_the_layout_leaves_frozen_tensors_out() -> None:
    network = build_model("mini-vit", SPEC, seed=0)
    whole = Layout.of(network)
    select_trained(network, ["blocks.3.*", "head.*"])
    found = Layout.of(network)
    assert [entry.name for entry in found.entries] == [
        entry.name for entry in whole.entries if entry.name.startswith(("blocks.3.", "head."))
    ]
    assert found.size == sum(p.numel() for p in network.parameters() if p.requires_grad) < whole.size
    assert {*frozen_names(network), *names(network)} == {entry.name for entry in whole.entries}


def test_a_network_without_marks_has_its_whole_state_in_the_layout() -> None:
    network = build_model("customnet", SPEC, seed=0)
    assert frozen_names(network) == ()
    assert set(names(network)) == set(network.state_dict())


def test_marks_survive_copies_pickling_and_wrapping() -> None:
    network = build_model("mini-vit", SPEC, seed=0)
    select_trained(network, ["blocks.3.*", "head.*"])
    expected = names(network)
    for twin in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert names(twin) == expected
        assert names(twin.requires_grad_(False)) == expected
    wrapped = ExtendedNetwork(network, nn.Linear(network.feature_size, network.feature_size))
    assert names(wrapped) == [
        *(f"body.{name}" for name in expected if name.startswith("blocks")),
        "layer.weight",
        "layer.bias",
        "head.weight",
        "head.bias",
    ]


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].needs_texts])
def test_every_method_builds_a_module_that_keeps_the_marks(method: str) -> None:
    network = build_model("mini-vit", SPEC, seed=0)
    whole = make_method(method).build_for(copy.deepcopy(network), sources=("a", "b"), seed=0)
    select_trained(network, ["blocks.3.*", "head.*"])
    module = make_method(method).build_for(network, sources=("a", "b"), seed=0)
    left_out = set(names(whole)) - set(names(module))
    assert left_out == set(frozen_names(module)) != set()
    assert all("blocks.3." not in name for name in left_out)


def test_a_tensor_with_two_names_is_frozen_under_both() -> None:
    module = nn.ModuleDict({"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)})
    module["two"].weight = module["one"].weight
    freeze(module, ["two.weight"])
    assert frozen_names(module) == ("one.weight", "two.weight")
    assert names(module) == ["one.bias", "two.bias"]


def test_training_changes_the_trained_tensors_only() -> None:
    network = build_model("mini-vit", SPEC, seed=0)
    select_trained(network, ["blocks.3.*", "head.*"])
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    flat = FlatState(network)
    start = flat.read()
    network(torch.rand(4, 1, 28, 28)).square().sum().backward()
    flat.parameters.sub_(flat.gradient, alpha=0.1)
    changed = {name for name, tensor in network.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == set(names(network))
    assert whole_state(network, start).keys() == before.keys()
    for name, tensor in whole_state(network, start).items():
        assert torch.equal(tensor, before[name]) and tensor.is_contiguous()
    fresh = build_model("mini-vit", SPEC, seed=1)
    fresh.load_state_dict(whole_state(network, flat.read()))
    inputs = torch.rand(2, 1, 28, 28)
    assert torch.equal(fresh.eval()(inputs), network.eval()(inputs))


def test_batch_norm_with_frozen_statistics_normalizes_with_them_in_training() -> None:
    norm = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3))
    freeze(norm, ["1.running_mean", "1.running_var", "1.num_batches_tracked"])
    inputs = torch.randn(4, 1, 5, 5) + 2
    expected = copy.deepcopy(norm).eval()(inputs)
    twin = copy.deepcopy(pickle.loads(pickle.dumps(norm)))
    for module in (norm, twin):
        flat = FlatState(module)
        assert not any(entry.kind is not Kind.PARAMETER for entry in flat.layout.entries)
        torch.testing.assert_close(module.train()(inputs), expected)
        assert int(module[1].num_batches_tracked) == 0
        assert bool((module[1].running_mean == 0).all())


def test_frozen_convolutions_are_channels_last_too() -> None:
    network = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    freeze(network, ["0.weight", "0.bias"])
    FlatState(network)
    assert all(layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in network)


@pytest.mark.parametrize(("pattern", "hint"), [("block.3.*", r"blocks\.3\.\*"), ("zzz", r"head\.\*")])
def test_a_pattern_that_matches_nothing_is_refused_with_near_names(pattern: str, hint: str) -> None:
    network = build_model("mini-vit", SPEC, seed=0)
    with pytest.raises(UsageError, match=hint) as error:
        select_trained(network, [pattern, "head.*"])
    assert "\n" not in str(error.value)
    assert frozen_names(network) == ()


def test_the_digest_compares_frozen_values_but_not_their_last_bits() -> None:
    def digest(change: float = 0.0, seed: int = 0, patterns: tuple[str, ...] = ("head.*",)) -> str:
        network = build_model("mini-vit", SPEC, seed=seed)
        select_trained(network, patterns)
        with torch.no_grad():
            network.positions.mul_(1 + change)
        return model_digest(network)

    assert digest() == digest(change=1e-7)
    assert len({digest(), digest(change=0.5), digest(seed=1), digest(patterns=("head.*", "norm.*"))}) == 4
    plain = build_model("mini-vit", SPEC, seed=0)
    assert model_digest(plain) == Layout.of(plain).digest
