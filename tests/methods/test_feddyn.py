"""FedDyn against algorithm 1 written out, with all clients and with some, and where it is FedAvg."""

from __future__ import annotations

import copy

import pytest
import torch
from literal_clients import assert_state, layout_of, loss_of, mean_state, samples_of, start_of, trained_names
from torch import nn

from unseen.aggregation import ServerWork, SummedUpdates
from unseen.engine.experiment import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.federation import PartitionConfig
from unseen.methods import make_method
from unseen.methods.feddyn import DRIFT, GRADIENT
from unseen.models import FlatState
from unseen.runs.checkpoint import StateStore
from unseen.runs.folder import RunFolder
from unseen.seeding import torch_generator
from unseen.training import LocalTrainingConfig, batch_positions

HALVES = PartitionConfig(kind="iid", clients_per_domain=2)
ALPHA = 0.3


def literal_client(experiment, client, *, round, start, gradient):
    """Train on the loss as printed: L_k(w) - <g, w> + a/2 ||w - start||^2, by torch's own SGD."""
    module, plan, samples = copy.deepcopy(experiment.network), experiment.plan, samples_of(experiment, client)
    module.load_state_dict(start)
    descent = torch.optim.SGD(module.parameters(), lr=plan.lr, momentum=plan.momentum)
    order = torch_generator(experiment.seed, "training: order", client, round)
    module.train()
    for _ in range(plan.epochs):
        for positions in batch_positions(len(samples), plan.batch_size, generator=order):
            descent.zero_grad()
            loss = loss_of(experiment, module, positions, samples)
            for name, value in module.named_parameters():
                loss = (
                    loss - (gradient[name] * value).sum() + ALPHA / 2 * (value - start[name]).square().sum()
                )
            loss.backward()
            descent.step()
    return copy.deepcopy(module.state_dict())


def literal_run(experiment, participants):
    """Algorithm 1 with h as printed."""
    state, names = start_of(experiment), trained_names(experiment)
    zero = {name: torch.zeros_like(state[name]) for name in names}
    h, own, population = zero, dict.fromkeys(experiment.federation.names, zero), len(experiment.federation)
    for number, clients in enumerate(participants, start=1):
        results = [
            literal_client(experiment, client, round=number, start=state, gradient=own[client])
            for client in clients
        ]
        for client, result in zip(clients, results, strict=True):
            own[client] = {name: own[client][name] - ALPHA * (result[name] - state[name]) for name in names}
        moved = {name: sum(result[name] - state[name] for result in results) for name in names}
        h = {name: h[name] - ALPHA / population * moved[name] for name in names}
        merged = mean_state(results, [1] * len(results))
        for name in names:
            merged[name] = merged[name] - h[name] / ALPHA
        state = merged
    return state, own


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_equals_algorithm_1(make_uneven_experiment, go, rounds_of, tmp_path, fraction):
    options = {"settings": {"alpha": ALPHA}, "partition": HALVES}
    ours, records = go(make_uneven_experiment("feddyn", **options), rounds=3, fraction=fraction)
    participants = [record["clients"] for record in rounds_of(records)]
    assert all(len(clients) == 6 * fraction for clients in participants)
    literal = make_uneven_experiment("feddyn", **options)
    state, own = literal_run(literal, participants)
    assert_state(ours.weights, state, layout_of(literal))
    store = StateStore(RunFolder(tmp_path / "run").client_states, ours.client_states)
    client = participants[0][0]
    held = store.read(client)[GRADIENT].norm()
    literal_norm = torch.stack([value.norm() for value in own[client].values()]).norm()
    assert float(held) == pytest.approx(float(literal_norm), rel=1e-3)
    assert held > 0.01


def test_without_regularization_it_is_fedavg_to_the_bit(make_uneven_experiment, go):
    ours, _ = go(make_uneven_experiment("feddyn", settings={"alpha": 0}), "ours", rounds=2)
    fedavg, _ = go(make_uneven_experiment("fedavg", settings={"weighting": "uniform"}), "fedavg", rounds=2)
    assert torch.equal(ours.weights, fedavg.weights)
    assert not ours.server


def test_both_halves_act_and_say_so(make_uneven_experiment, go, rounds_of):
    ours, records = go(make_uneven_experiment("feddyn"), "ours", rounds=2)
    fedavg, _ = go(make_uneven_experiment("fedavg", settings={"weighting": "uniform"}), "fedavg", rounds=2)
    assert (ours.weights - fedavg.weights).abs().max() > 1e-3
    first, second = (record["diagnostics"] for record in rounds_of(records))
    assert set(first["correction_length"].values()) == {0.0}
    assert min(second["correction_length"].values()) > 0
    assert second["drift_length"] > 0
    assert set(ours.server) == {DRIFT}


def test_a_client_that_diverged_keeps_its_former_gradient(make_uneven_experiment):
    plan = LocalTrainingConfig(momentum=0.5, epochs=3, batch_size=4, lr=1e30)
    workspace = Workspace(make_uneven_experiment("feddyn", plan=plan))
    former = torch.ones(len(workspace.flat.parameters))
    state = {GRADIENT: former}
    update = workspace.train_client(0, state, RoundStart(2, workspace.flat.read()))
    assert not torch.isfinite(update.weights).all()
    assert state[GRADIENT] is former


def test_impossible_settings_are_refused():
    with pytest.raises(UsageError, match="at least 0"):
        make_method("feddyn", {"alpha": -1})


def test_under_client_level_privacy_the_server_counts_the_expected_clients():
    """The number that took part is secret there, so the sum of changes must not depend on it."""
    flat = FlatState(nn.Linear(3, 2))
    drifts = []
    for clients in (("a", "b"), ("a", "b", "c")):
        updates = SummedUpdates(
            clients=clients,
            rows=flat.read()[None] + 1,
            samples=torch.tensor([2.5], dtype=torch.float64),
            steps=torch.ones(1),
            extras=({},),
            layout=flat.layout,
            uniform=True,
            expected=2.5,
        )
        work = ServerWork(round=1, seed=0, weights=flat.read(), updates=updates, population=5)
        make_method("feddyn").server(work)
        drifts.append(work.state[DRIFT])
    assert torch.equal(*drifts)
    torch.testing.assert_close(drifts[0], torch.full_like(drifts[0], 0.5))
