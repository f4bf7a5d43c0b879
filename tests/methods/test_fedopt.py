"""FedAdam, FedYogi and FedAdagrad against algorithm 2 written out, and the case in which they are FedAvg."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from literal_clients import assert_state, layout_of, mean_state, server_work, start_of, trained_names, visit
from torch import nn

from unseen.aggregation import weighted_mean
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.models import FlatState, Kind

METHODS = ("fedadam", "fedyogi", "fedadagrad")
MODULE = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3))
STILL = {"fedadam": {"beta_1": 0, "beta_2": 1}, "fedyogi": {"beta_1": 0, "beta_2": 1}, "fedadagrad": {}}


def literal_run(experiment, method, *, eta, beta_1, beta_2, tau, rounds):
    """Algorithm 2, tensor by tensor, with v_0 = tau^2 and without bias correction."""
    state, names = start_of(experiment), trained_names(experiment)
    m = {name: torch.zeros_like(state[name]) for name in names}
    v = {name: torch.full_like(state[name], tau**2) for name in names}
    for number in range(1, rounds + 1):
        visits = [visit(experiment, client, round=number, start=state) for client in "abc"]
        mean = mean_state([each.state for each in visits], [each.samples for each in visits])
        for name in names:
            delta = mean[name] - state[name]
            m[name] = beta_1 * m[name] + (1 - beta_1) * delta
            if method == "fedadagrad":
                v[name] = v[name] + delta**2
            elif method == "fedadam":
                v[name] = beta_2 * v[name] + (1 - beta_2) * delta**2
            else:
                v[name] = v[name] - (1 - beta_2) * delta**2 * torch.sign(v[name] - delta**2)
            mean[name] = state[name] + eta * m[name] / (v[name].sqrt() + tau)
        state = mean
    return state


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("beta_1", [0.0, 0.9])
def test_equals_the_literal_algorithm(make_uneven_experiment, go, method, beta_1):
    settings = {"server_lr": 0.02, "beta_1": beta_1, "tau": 0.01}
    beta_2 = {} if method == "fedadagrad" else {"beta_2": 0.8}
    ours, _ = go(make_uneven_experiment(method, settings=settings | beta_2), rounds=3)
    literal = make_uneven_experiment(method)
    state = literal_run(literal, method, eta=0.02, beta_1=beta_1, beta_2=0.8, tau=0.01, rounds=3)
    assert_state(ours.weights, state, layout_of(literal))


@pytest.mark.parametrize("method", METHODS)
def test_with_a_second_moment_that_stays_it_is_fedavg(make_uneven_experiment, go, method):
    """v = tau^2, so that a rate of 2 tau takes the whole step; Adagrad's needs a tau beyond all changes."""
    tau = 1000.0
    settings = STILL[method] | {"tau": tau, "server_lr": 2 * tau}
    ours, _ = go(make_uneven_experiment(method, settings=settings), "ours", rounds=3)
    fedavg, _ = go(make_uneven_experiment("fedavg"), "fedavg", rounds=3)
    torch.testing.assert_close(ours.weights, fedavg.weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_the_second_moment_acts_and_says_so(make_uneven_experiment, go, rounds_of, method):
    """Parameters that move a lot and those that hardly move come out nearly alike."""
    ours, records = go(make_uneven_experiment(method, settings={"beta_1": 0}), "ours", rounds=2)
    fedavg, _ = go(make_uneven_experiment("fedavg"), "fedavg", rounds=2)
    assert (ours.weights - fedavg.weights).abs().max() > 1e-3
    first = rounds_of(records)[0]["diagnostics"]
    assert 0 < first["step_length"] != first["change_length"] > 0
    assert set(ours.server) == {"first moment", "second moment"}


def test_no_parameter_moves_by_more_than_the_rate():
    flat = FlatState(MODULE)
    rows = flat.read() + 10 * torch.randn(3, flat.layout.size, generator=torch.Generator().manual_seed(0))
    work = server_work(flat, rows)
    merged = make_method("fedadagrad", {"server_lr": 0.05}).server(work)
    trained = work.updates.layout.extent(Kind.PARAMETER)
    step = (merged - work.weights)[trained].abs()
    assert 0.04 < float(step.median()) <= float(step.max()) <= 0.05 + 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_statistics_are_averaged(method):
    flat = FlatState(MODULE)
    rows = flat.read() + torch.rand(3, flat.layout.size, generator=torch.Generator().manual_seed(1))
    work = server_work(flat, rows)
    merged, layout = make_method(method).server(work), flat.layout
    mean = weighted_mean(rows, work.updates.samples, layout=layout)
    for kind in (Kind.FLOAT_BUFFER, Kind.INTEGER_BUFFER):
        assert torch.equal(merged[layout.extent(kind)], mean[layout.extent(kind)])


@given(former=st.floats(1e-6, 10), change=st.floats(0, 3), beta=st.floats(0, 1))
def test_second_moments_stay_positive_and_yogi_moves_no_faster_than_adagrad(former, change, beta):
    v, square = torch.tensor([former]), torch.tensor([change**2])
    adam, yogi = (make_method(name, {"beta_2": beta}).second_moment(v, square) for name in METHODS[:2])
    adagrad = make_method("fedadagrad").second_moment(v, square)
    assert adam >= 0
    assert yogi >= 0
    assert (yogi - v).abs() <= adagrad - v + 1e-5


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("settings", "said"),
    [({"server_lr": 0}, "above 0"), ({"tau": 0}, "above 0"), ({"beta_1": 1}, r"in \[0, 1\)")],
)
def test_impossible_settings_are_refused(method, settings, said):
    with pytest.raises(UsageError, match=said):
        make_method(method, settings)


def test_an_impossible_second_fraction_is_refused():
    with pytest.raises(UsageError, match="beta_2"):
        make_method("fedyogi", {"beta_2": 1.1})
