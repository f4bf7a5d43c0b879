"""Batch norm that is frozen, and statistics merged as those of the pooled data."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unseen.methods._shared import ExtendedNetwork
from unseen.models import (
    FlatState,
    InputSpec,
    StagedNetwork,
    build_model,
    freeze_statistics,
    make_statistics_rule,
)
from unseen.models.batch_norm import NOTHING_TO_FREEZE, FrozenStatistics


def small_network() -> StagedNetwork:
    """A network with one batch norm whose statistics and scales are not those of a new layer."""
    torch.manual_seed(4)
    norm = nn.BatchNorm2d(5)
    stages = {"conv": nn.Sequential(nn.Conv2d(3, 5, 3), norm, nn.ReLU(), nn.Dropout(0.5))}
    network = StagedNetwork(stages, head=nn.Linear(5 * 36, 2))
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.weight.uniform_(0.5, 2)
    return network


def statistics(network: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in network.named_buffers()}


def norms(network: nn.Module) -> list[nn.Module]:
    return [layer for layer in network.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


def test_a_frozen_layer_computes_what_evaluation_mode_computes_and_keeps_its_statistics():
    network, inputs = small_network(), torch.randn(4, 3, 8, 8)
    plain = copy.deepcopy(network).eval()
    plain.stages["conv"][3].train()
    assert freeze_statistics(network) == 1
    before = statistics(network)
    network.train()
    torch.manual_seed(0)
    found = network(inputs)
    torch.manual_seed(0)
    expected = plain(inputs)
    assert torch.equal(found, expected)
    assert network.training and network.stages["conv"][3].training, "only batch norm stays in evaluation mode"
    found.sum().backward()
    expected.sum().backward()
    for (name, mine), (_, theirs) in zip(network.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad), name
    assert network.stages["conv"][1].weight.grad.abs().max() > 0, "scales are trained"
    assert all(torch.equal(value, before[name]) for name, value in network.named_buffers())


def test_a_layer_that_is_not_frozen_updates_them():
    network = small_network().train()
    before = statistics(network)
    network(torch.randn(4, 3, 8, 8))
    assert not torch.equal(before["stages.conv.1.running_mean"], network.stages["conv"][1].running_mean)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network))])
def test_copies_and_pickles_stay_frozen(duplicate):
    network = small_network()
    freeze_statistics(network)
    twin = duplicate(network).train()
    (layer,) = norms(twin)
    assert isinstance(layer, FrozenStatistics) and isinstance(layer, nn.BatchNorm2d) and not layer.training
    assert layer is not norms(network)[0]
    inputs = torch.randn(4, 3, 8, 8)
    assert torch.equal(twin.eval()(inputs), network.eval()(inputs))
    again = duplicate(twin)
    assert torch.equal(again.eval()(inputs), network.eval()(inputs))


def test_names_of_tensors_stay_and_freezing_twice_changes_nothing():
    network = small_network()
    names = list(network.state_dict())
    assert freeze_statistics(network) == freeze_statistics(network) == 1
    assert list(network.state_dict()) == names
    assert type(norms(network)[0]).__name__ == "FrozenBatchNorm2d"


def test_a_network_that_a_method_extends_and_a_flat_state_stay_frozen():
    network = small_network()
    freeze_statistics(network)
    extended = ExtendedNetwork(network, nn.Linear(180, 180))
    flat = FlatState(extended)
    extended.train()
    before = flat.read()
    extended(torch.randn(4, 3, 8, 8))
    assert torch.equal(flat.read(), before)


@pytest.mark.parametrize("name", ["resnet18", "efficientnet-lite0"])
def test_the_zoo_layers_that_include_an_activation_freeze_too(name):
    network = build_model(name, InputSpec((3, 32, 32), 3), seed=0)
    count = freeze_statistics(network)
    assert count == len(norms(network)) > 10
    network = pickle.loads(pickle.dumps(network)).train()
    before, inputs = statistics(network), torch.randn(2, 3, 32, 32)
    network.body.drop_rate = 0.0
    found = network(inputs)
    assert all(torch.equal(value, before[key]) for key, value in network.named_buffers())
    plain = build_model(name, InputSpec((3, 32, 32), 3), seed=0).eval()
    if name == "resnet18":
        assert torch.equal(found, plain(inputs)), "no dropout here, so training mode changes nothing else"


def test_a_network_without_batch_norm_gets_a_note():
    network = build_model("mini-vit", InputSpec((3, 32, 32), 3), seed=0)
    assert freeze_statistics(network) == 0
    freeze_statistics(network)
    assert network.notes.count(NOTHING_TO_FREEZE) == 1


def test_frozen_statistics_survive_the_average_to_the_last_bit():
    network = small_network()
    freeze_statistics(network)
    flat, rule = FlatState(network), make_statistics_rule("frozen", network)
    before = flat.read()
    merged = before + 1e-3
    kept = rule.from_sent(merged.clone(), before=before)
    places = [entry for entry in flat.layout.entries if "running" in entry.name or "tracked" in entry.name]
    assert len(places) == 3
    for entry in flat.layout.entries:
        expected = before if entry in places else merged
        assert torch.equal(entry.view(kept), entry.view(expected)), entry.name


@given(
    sizes=st.lists(st.integers(2, 30), min_size=2, max_size=5),
    shift=st.floats(-3, 3),
    seed=st.integers(0, 1000),
)
def test_pooled_statistics_are_those_of_the_pooled_data(sizes, shift, seed):
    generator = torch.Generator().manual_seed(seed)
    parts = [
        torch.randn(size, 4, generator=generator, dtype=torch.float64) * (1 + number) + shift * number
        for number, size in enumerate(sizes)
    ]
    layer = nn.BatchNorm1d(4)
    rule, flat = make_statistics_rule("pooled", layer), FlatState(layer)
    mean, variance = (
        next(entry for entry in flat.layout.entries if entry.name == name)
        for name in ("running_mean", "running_var")
    )
    states = torch.zeros(len(parts), flat.layout.size, dtype=torch.float64)
    for state, part in zip(states, parts, strict=True):
        mean.view(state).copy_(part.mean(0))
        variance.view(state).copy_(part.var(0, correction=0))
    share = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    merged = share @ torch.stack([rule.to_sent(state) for state in states])
    found, pooled = rule.from_sent(merged, before=states[0]), torch.cat(parts)
    torch.testing.assert_close(mean.view(found), pooled.mean(0))
    torch.testing.assert_close(variance.view(found), pooled.var(0, correction=0))


def test_torchs_own_layers_are_pooled_up_to_their_bessel_correction():
    """Running variances are unbiased: a client's part within is n_k / (n_k - 1) times that of its data."""
    sizes, generator = (6, 15, 40), torch.Generator().manual_seed(2)
    parts = [torch.randn(n, 4, generator=generator) * n / 10 + 3 * k for k, n in enumerate(sizes)]
    layer = nn.BatchNorm1d(4, momentum=1.0)
    rule, flat, states = make_statistics_rule("pooled", layer), FlatState(layer), []
    for part in parts:
        layer(part)
        states.append(flat.read().double())
    share = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    merged = rule.from_sent(share @ torch.stack([rule.to_sent(state) for state in states]), before=states[0])
    found = {entry.name: entry.view(merged) for entry in flat.layout.entries}
    pooled = torch.cat(parts).double()
    torch.testing.assert_close(found["running_mean"], pooled.mean(0), rtol=1e-5, atol=1e-5)
    excess = sum(
        p * part.double().var(0, correction=0) / (len(part) - 1) for p, part in zip(share, parts, strict=True)
    )
    torch.testing.assert_close(
        found["running_var"] - excess, pooled.var(0, correction=0), rtol=1e-5, atol=1e-4
    )


def test_the_mean_of_the_variances_is_too_small():
    layer = nn.BatchNorm1d(1)
    rule, flat = make_statistics_rule("pooled", layer), FlatState(layer)
    far = flat.read()
    far[flat.layout.entries[2].slice] = 4.0
    merged = (rule.to_sent(flat.read()) + rule.to_sent(far)) / 2
    found = rule.from_sent(merged, before=far)
    assert flat.layout.entries[3].view(found).item() == pytest.approx(1 + 2.0**2)


def test_converting_back_and_forth_keeps_a_state():
    network = small_network()
    rule, state = make_statistics_rule("pooled", network), FlatState(network).read()
    untouched = state.clone()
    back = rule.from_sent(rule.to_sent(state), before=state)
    torch.testing.assert_close(back, state)
    assert torch.equal(state, untouched), "the caller's vector stays as it was"
    assert not torch.equal(rule.to_sent(state), state)
