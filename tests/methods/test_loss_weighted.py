"""AFL, GroupDRO, V-REx and q-FedAvg against their rules written out, and where they are FedAvg."""

from __future__ import annotations

import copy

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from literal_clients import (
    assert_state,
    layout_of,
    loss_of,
    mean_state,
    samples_of,
    server_work,
    start_of,
    trained_names,
    visit,
)
from torch import nn

from unseen.aggregation import ServerWork
from unseen.errors import UsageError
from unseen.federation import PartitionConfig
from unseen.methods import make_method
from unseen.methods.loss_weighted import LOSS, project_to_simplex
from unseen.models import FlatState

METHODS = ("afl", "groupdro", "vrex", "qfedavg")
PLAIN = {"afl": {"step": 0}, "groupdro": {"step": 0}, "vrex": {"penalty": 0}, "qfedavg": {"q": 0}}
ROUNDS = 3


def measured(experiment, client, state) -> float:
    """The mean loss of `state` on a client's training samples, in evaluation mode."""
    module, samples = copy.deepcopy(experiment.network), samples_of(experiment, client)
    module.load_state_dict(state)
    module.eval()
    with torch.no_grad():
        return float(loss_of(experiment, module, torch.arange(len(samples)), samples))


def projected(point: list[float]) -> list[float]:
    """The projection onto the simplex by bisection of what is subtracted from all."""
    low, high = min(point) - 1, max(point)
    for _ in range(200):
        middle = (low + high) / 2
        total = sum(max(value - middle, 0) for value in point)
        low, high = (middle, high) if total > 1 else (low, middle)
    return [max(value - low, 0) for value in point]


def literal_run(experiment, method, shares):
    """The rounds of a rule, with its own name for everything; `shares` are the first weights."""
    state, names, q, history = start_of(experiment), trained_names(experiment), list(shares), []
    for number in range(1, ROUNDS + 1):
        losses = [measured(experiment, client, state) for client in "abc"]
        visits = [visit(experiment, client, round=number, start=state) for client in "abc"]
        steps = sum(each.steps for each in visits) / 3
        if method == "groupdro":
            q = [own * np.exp(0.02 * steps * loss) for own, loss in zip(q, losses, strict=True)]
            q = [own / sum(q) for own in q]
        if method == "vrex":
            mean = sum(own * loss for own, loss in zip(shares, losses, strict=True))
            q = [
                max(own * (1 + 2 * 3.0 * (loss - mean)), 0) for own, loss in zip(shares, losses, strict=True)
            ]
            q = [own / sum(q) for own in q]
        merged = mean_state([each.state for each in visits], q)
        history.append(q)
        if method == "afl":
            q = projected([own + 0.3 * loss for own, loss in zip(q, losses, strict=True)])
        if method == "qfedavg":
            power, lr = 0.5, experiment.plan.lr
            merged = mean_state([each.state for each in visits], shares)
            length = 0.0
            direction = {name: torch.zeros_like(state[name]) for name in names}
            for share, loss, each in zip(shares, losses, visits, strict=True):
                u = {name: (state[name] - each.state[name]) / lr for name in names}
                square = sum(float(value.double().square().sum()) for value in u.values())
                length += share * (power * loss ** (power - 1) * square + loss**power / lr)
                for name in names:
                    direction[name] += share * loss**power * u[name]
            for name in names:
                merged[name] = state[name] - direction[name] / length
        state = merged
    return state, history


SETTINGS = {
    "afl": {"step": 0.3},
    "groupdro": {"step": 0.02},
    "vrex": {"penalty": 3.0},
    "qfedavg": {"q": 0.5},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_equals_the_literal_algorithm(make_uneven_experiment, go, rounds_of, method, weighting):
    settings = SETTINGS[method] | {"weighting": weighting}
    ours, records = go(make_uneven_experiment(method, settings=settings), rounds=ROUNDS)
    literal = make_uneven_experiment(method)
    sizes = [len(samples_of(literal, client)) if weighting == "samples" else 1 for client in "abc"]
    state, history = literal_run(literal, method, [size / sum(sizes) for size in sizes])
    assert_state(ours.weights, state, layout_of(literal))
    if method != "qfedavg":
        found = [list(record["diagnostics"]["client_weights"].values()) for record in rounds_of(records)]
        np.testing.assert_allclose(found, history, rtol=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_where_losses_have_no_weight_it_is_fedavg(make_uneven_experiment, go, method):
    settings = PLAIN[method] | {"weighting": "samples"}
    ours, _ = go(make_uneven_experiment(method, settings=settings), "ours", rounds=2)
    fedavg, _ = go(make_uneven_experiment("fedavg"), "fedavg", rounds=2)
    torch.testing.assert_close(ours.weights, fedavg.weights, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_losses_are_sent_and_change_the_outcome(make_uneven_experiment, go, rounds_of, method):
    ours, records = go(make_uneven_experiment(method), "ours", rounds=2)
    plain, _ = go(make_uneven_experiment(method, settings=PLAIN[method]), "plain", rounds=2)
    assert (ours.weights - plain.weights).abs().max() > 1e-5
    first = rounds_of(records)[0]
    assert min(first["diagnostics"]["received_loss"].values()) > 0
    sent = {entry["kind"]: entry for entry in first["left"]}
    assert sent[LOSS]["bytes"] == 8
    weights = rounds_of(records)[1]["diagnostics"]["client_weights"]
    assert max(weights.values()) - min(weights.values()) > 1e-4


def make_work(losses: list[float], *, round: int = 1, rounds: int | None = None, state=None) -> ServerWork:
    """A server's round of clients a, b, c, ... with these losses."""
    flat = FlatState(nn.Linear(3, 2))
    rows = flat.read() + torch.randn(
        len(losses), flat.layout.size, generator=torch.Generator().manual_seed(3)
    )
    work = server_work(flat, rows, round=round)
    extras = tuple({LOSS: torch.tensor(loss, dtype=torch.float64)} for loss in losses)
    object.__setattr__(work.updates, "extras", extras)
    work.rounds, work.lr, work.state = rounds, 0.1, {} if state is None else state
    return work


@pytest.mark.parametrize("method", METHODS)
def test_the_worst_served_client_counts_most(method):
    state: dict = {}
    settings = {"weighting": "uniform"} | ({"penalty": 0.5} if method == "vrex" else {})
    for number in (1, 2):
        work = make_work([0.2, 0.5, 1.4], round=number, state=state)
        make_method(method, settings).server(work)
    first, second, third = work.diagnostics["client_weights"].values()
    assert first < second < third


@pytest.mark.parametrize("method", ["afl", "groupdro"])
def test_absent_clients_keep_their_weights_and_the_present_share_theirs(method):
    chosen, state = make_method(method), {}
    chosen.server(make_work([0.1, 0.9, 0.4], state=state))
    before = {key: float(value) for key, value in state.items()}
    chosen.server(make_work([0.7, 0.2], round=2, state=state))
    after = {key: float(value) for key, value in state.items()}
    assert after["weight of client 2"] == before["weight of client 2"]
    both = ("weight of client 0", "weight of client 1")
    assert sum(after[key] for key in both) == pytest.approx(sum(before[key] for key in both))
    assert after[both[0]] > before[both[0]]


def test_vrex_starts_with_a_weight_of_one_and_clips_at_zero():
    gentle, full = (make_work([0.1, 0.4, 2.0], round=number, rounds=10) for number in (1, 2))
    for work in (gentle, full):
        make_method("vrex").server(work)
    early, late = (list(work.diagnostics["client_weights"].values()) for work in (gentle, full))
    assert early == pytest.approx([0, 0.0, 1.0], abs=0.35)
    assert late == pytest.approx([0, 0, 1])
    assert early[1] > 0


def test_groupdro_counts_the_local_steps_or_the_round():
    by_step, by_round = make_work([0.2, 0.5, 1.4]), make_work([0.2, 0.5, 1.4])
    by_step.updates.steps.fill_(50)
    make_method("groupdro").server(by_step)
    make_method("groupdro", {"per": "round", "step": 0.5}).server(by_round)
    assert by_step.diagnostics["client_weights"] == pytest.approx(by_round.diagnostics["client_weights"])


def test_qfedavg_steps_less_far_the_larger_q_is():
    rates = []
    for q in (0.0, 0.1, 1.0):
        work = make_work([0.2, 0.5, 1.4])
        make_method("qfedavg", {"q": q}).server(work)
        rates.append(work.diagnostics["step_rate"])
    assert rates[0] == pytest.approx(1)
    assert rates[0] > rates[1] > rates[2] > 0


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=9))
def test_the_projection_is_the_nearest_point_of_the_simplex(point):
    found = project_to_simplex(torch.tensor(point, dtype=torch.float64))
    np.testing.assert_allclose(found.numpy(), projected(point), atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_a_client_without_validation_samples_is_told_what_to_do(make_experiment, make_tiny_data, go, method):
    data, partition = make_tiny_data(per_class=2), PartitionConfig(kind="iid", clients_per_domain=3)
    experiment = make_experiment(method, data=data, partition=partition, settings={"loss_on": "validation"})
    with pytest.raises(UsageError, match="loss_on=training"):
        go(experiment)


@pytest.mark.parametrize("method", METHODS)
def test_impossible_settings_are_refused(method):
    (name,) = PLAIN[method]
    with pytest.raises(UsageError, match="at least 0"):
        make_method(method, {name: -1})
