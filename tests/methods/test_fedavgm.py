"""FedAvgM against its two lines written out, its agreement with FedAvg, and what becomes of statistics."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from literal_clients import assert_state, layout_of, mean_state, start_of, trained_names, visit
from torch import nn

from unseen.aggregation import ServerWork, Updates, weighted_mean
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.models import FlatState, Kind
from unseen.training import LocalTrainingConfig

MODULE = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3))


def make_work(state=None, *, seed=0):
    """A server's round with batch norm and random client states."""
    flat = FlatState(MODULE)
    generator = torch.Generator().manual_seed(seed)
    rows = flat.read() + 0.3 * torch.randn(3, flat.layout.size, generator=generator)
    updates = Updates(
        clients=("a", "b", "c"),
        rows=rows,
        samples=torch.tensor([10.0, 20.0, 30.0], dtype=torch.float64),
        steps=torch.ones(3, dtype=torch.float64),
        extras=({},) * 3,
        layout=flat.layout,
    )
    return ServerWork(round=1, seed=0, weights=flat.read(), updates=updates, state=state or {})


@pytest.mark.parametrize(("momentum", "server_lr"), [(0.9, 1.0), (0.5, 0.4), (0.0, 0.7)])
def test_equals_the_literal_algorithm(make_uneven_experiment, go, momentum, server_lr):
    ours, _ = go(
        make_uneven_experiment("fedavgm", settings={"momentum": momentum, "server_lr": server_lr}), rounds=3
    )
    literal = make_uneven_experiment("fedavgm")
    state, names = start_of(literal), trained_names(literal)
    velocity = {name: torch.zeros_like(state[name]) for name in names}
    for number in (1, 2, 3):
        visits = [visit(literal, client, round=number, start=state) for client in "abc"]
        mean = mean_state([each.state for each in visits], [each.samples for each in visits])
        for name in names:
            velocity[name] = momentum * velocity[name] + (state[name] - mean[name])
            mean[name] = state[name] - server_lr * velocity[name]
        state = mean
    assert_state(ours.weights, state, layout_of(literal))


def test_without_momentum_it_is_fedavg_to_the_bit(make_uneven_experiment, go):
    ours, _ = go(
        make_uneven_experiment("fedavgm", settings={"momentum": 0, "server_lr": 1}), "ours", rounds=3
    )
    fedavg, _ = go(make_uneven_experiment("fedavg"), "fedavg", rounds=3)
    assert torch.equal(ours.weights, fedavg.weights)


def test_momentum_acts_from_the_second_round_on_and_says_so(make_uneven_experiment, go, rounds_of):
    one, _ = go(make_uneven_experiment("fedavgm"), "one", rounds=1)
    plain, _ = go(make_uneven_experiment("fedavg"), "plain", rounds=1)
    assert torch.equal(one.weights, plain.weights)
    two, records = go(make_uneven_experiment("fedavgm"), "two", rounds=2)
    plain, _ = go(make_uneven_experiment("fedavg"), "plain", rounds=2)
    assert (two.weights - plain.weights).abs().max() > 1e-3
    first, second = [record["diagnostics"] for record in rounds_of(records)]
    assert first["velocity_length"] == first["change_length"] > 0
    assert abs(second["velocity_length"] - second["change_length"]) > 1e-3


@given(beta=st.floats(0, 0.99), rounds=st.integers(1, 8))
def test_equal_changes_add_up_to_a_geometric_series(beta, rounds):
    method, state = make_method("fedavgm", {"momentum": beta}), {}
    for _ in range(rounds):
        work = make_work(state)
        method.server(work)
        state = work.state
    trained = work.updates.layout.extent(Kind.PARAMETER)
    change = work.weights - work.updates.mean(work.updates.samples)
    torch.testing.assert_close(
        state["velocity"], change[trained] * sum(beta**power for power in range(rounds)), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_statistics_are_the_plain_mean_whatever_momentum_does(weighting):
    work = make_work()
    layout = work.updates.layout
    work.state["velocity"] = torch.full((layout.extent(Kind.PARAMETER).stop,), 100.0)
    merged = make_method("fedavgm", {"server_lr": 3, "weighting": weighting}).server(work)
    counts = work.updates.samples if weighting == "samples" else torch.ones(3)
    mean = weighted_mean(work.updates.rows, counts, layout=layout)
    for kind in (Kind.FLOAT_BUFFER, Kind.INTEGER_BUFFER):
        assert torch.equal(merged[layout.extent(kind)], mean[layout.extent(kind)])
    trained = layout.extent(Kind.PARAMETER)
    expected = work.weights[trained] - 3 * (90 + work.weights[trained] - mean[trained])
    torch.testing.assert_close(merged[trained], expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"momentum": 1}, r"\[0, 1\)"), ({"momentum": -0.1}, r"\[0, 1\)"), ({"server_lr": 0}, "above 0")],
)
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(UsageError, match=said):
        make_method("fedavgm", settings)


def test_regression(make_experiment, tiny_regression, go, rounds_of):
    plan = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.01, momentum=0.0)
    ours, records = go(make_experiment("fedavgm", data=tiny_regression, plan=plan), rounds=4)
    losses = [record["loss"] for record in rounds_of(records)]
    assert torch.isfinite(ours.weights).all() and losses[-1] < losses[0]
