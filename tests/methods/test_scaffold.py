"""SCAFFOLD against algorithm 1 written out, with all clients and with some, and what control variates are."""

from __future__ import annotations

import copy

import pytest
import torch
from literal_clients import (
    assert_state,
    layout_of,
    loss_of,
    mean_state,
    samples_of,
    start_of,
    trained_names,
    visit,
)

from unseen.engine.experiment import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.federation import PartitionConfig
from unseen.methods import make_method
from unseen.methods.scaffold import CHANGE, CONTROL
from unseen.models import Kind
from unseen.runs.checkpoint import StateStore
from unseen.runs.folder import RunFolder
from unseen.training import LocalTrainingConfig

PLAIN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.05, momentum=0.0)
HALVES = PartitionConfig(kind="iid", clients_per_domain=2)


def literal_gradient(experiment, client, state):
    """The gradient of the mean loss of all of a client's samples at `state`."""
    module, samples = copy.deepcopy(experiment.network), samples_of(experiment, client)
    module.load_state_dict(state)
    loss_of(experiment, module, torch.arange(len(samples)), samples).backward()
    return {name: value.grad.clone() for name, value in module.named_parameters()}


def literal_scaffold(experiment, participants, *, option="II", server_lr=1.0):
    """Algorithm 1: x, c and all c_i as named tensors; K and eta_l as printed, or their sums with momentum."""
    state, names, plan = start_of(experiment), trained_names(experiment), experiment.plan
    zero = {name: torch.zeros_like(state[name]) for name in names}
    common, own = zero, dict.fromkeys(experiment.federation.names, zero)
    for number, clients in enumerate(participants, start=1):
        states, changes = [], []
        for client in clients:
            correction = {name: common[name] - own[client][name] for name in names}
            result = visit(experiment, client, round=number, start=state, correction=correction)
            if option == "I":
                renewed = literal_gradient(experiment, client, state)
            else:
                length = sum(
                    sum(plan.momentum**power for power in range(result.steps - j))
                    for j in range(result.steps)
                )
                renewed = {
                    name: own[client][name]
                    - common[name]
                    + (state[name] - result.state[name]) / (length * plan.lr)
                    for name in names
                }
            changes.append({name: renewed[name] - own[client][name] for name in names})
            states.append(result.state)
            own[client] = renewed
        merged = mean_state(states, [1] * len(states))
        for name in names:
            merged[name] = state[name] + server_lr * (merged[name] - state[name])
        common = {
            name: common[name] + sum(change[name] for change in changes) / len(experiment.federation)
            for name in names
        }
        state = merged
    return state, common, own


def flat_parameters(named, layout):
    """Named parameters as one vector in the layout's own order of numbers."""
    vector = torch.zeros(layout.size)
    for entry in layout.entries:
        if entry.kind is Kind.PARAMETER:
            entry.view(vector).copy_(named[entry.name])
    return vector[layout.extent(Kind.PARAMETER)]


@pytest.mark.parametrize(("momentum", "server_lr"), [(0.0, 1.0), (0.5, 1.0), (0.0, 0.6)])
def test_equals_algorithm_1(make_uneven_experiment, go, momentum, server_lr):
    plan = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.05, momentum=momentum)
    ours, _ = go(make_uneven_experiment("scaffold", plan=plan, settings={"server_lr": server_lr}), rounds=3)
    literal = make_uneven_experiment("scaffold", plan=plan)
    layout = layout_of(literal)
    state, common, _ = literal_scaffold(literal, ["abc"] * 3, server_lr=server_lr)
    assert_state(ours.weights, state, layout)
    found = ours.server[CONTROL]
    torch.testing.assert_close(found, flat_parameters(common, layout), rtol=1e-3, atol=1e-4)
    assert found.norm() > 0.01


def test_equals_algorithm_1_with_half_of_the_clients(make_uneven_experiment, go, rounds_of):
    """c moves by |S| / N of the mean change; clients keep c_i over the rounds they sit out."""
    ours, records = go(
        make_uneven_experiment("scaffold", plan=PLAIN, partition=HALVES), rounds=4, fraction=0.5
    )
    participants = [record["clients"] for record in rounds_of(records)]
    assert all(len(clients) == 3 for clients in participants) and len(set(map(tuple, participants))) > 1
    literal = make_uneven_experiment("scaffold", plan=PLAIN, partition=HALVES)
    layout = layout_of(literal)
    state, common, _ = literal_scaffold(literal, participants)
    assert_state(ours.weights, state, layout)
    torch.testing.assert_close(ours.server[CONTROL], flat_parameters(common, layout), rtol=1e-3, atol=1e-4)


def test_option_one_takes_the_gradient_at_the_received_weights(make_experiment, make_tiny_data, go):
    """On a network without batch norm, where the mean of batches is the gradient of all samples."""

    def make():
        data = make_tiny_data(missing=("b", 1))
        return make_experiment("scaffold", data=data, plan=PLAIN, model="mlp", settings={"option": "I"})

    ours, records = go(make(), rounds=3)
    literal = make()
    state, common, _ = literal_scaffold(literal, ["abc"] * 3, option="I")
    assert_state(ours.weights, state, layout_of(literal))
    torch.testing.assert_close(
        ours.server[CONTROL], flat_parameters(common, layout_of(literal)), rtol=1e-3, atol=1e-5
    )
    assert [record["samples"] for record in records.entries if record["event"] == "round"] == [80] * 3


def test_the_pass_of_option_one_leaves_statistics_and_steps_alone(make_uneven_experiment):
    updates = []
    for option in ("I", "II"):
        workspace = Workspace(make_uneven_experiment("scaffold", plan=PLAIN, settings={"option": option}))
        updates.append(workspace.train_client(0, {}, RoundStart(1, workspace.flat.read())))
    assert torch.equal(updates[0].weights, updates[1].weights) and updates[0].steps == updates[1].steps
    assert not torch.allclose(updates[0].extras[CHANGE], updates[1].extras[CHANGE], atol=1e-3)


def test_without_control_variates_it_is_fedavg_to_the_bit(make_uneven_experiment, go, rounds_of):
    settings = {"control": False, "weighting": "samples"}
    experiment = make_uneven_experiment("scaffold", settings=settings)
    assert experiment.method.sends == make_method("fedavg").sends
    ours, records = go(experiment, "ours", rounds=3)
    fedavg, plain = go(make_uneven_experiment("fedavg"), "fedavg", rounds=3)
    assert torch.equal(ours.weights, fedavg.weights) and not ours.server
    assert [one["bytes_up"] for one in rounds_of(records)] == [one["bytes_up"] for one in rounds_of(plain)]


def test_corrections_act_from_the_second_round_on_and_say_so(make_uneven_experiment, go, rounds_of):
    ours, records = go(make_uneven_experiment("scaffold"), "ours", rounds=2)
    settings = {"weighting": "uniform"}
    fedavg, plain = go(make_uneven_experiment("fedavg", settings=settings), "fedavg", rounds=2)
    assert (ours.weights - fedavg.weights).abs().max() > 1e-3
    first, second = rounds_of(records)
    assert first["loss"] == rounds_of(plain)[0]["loss"] and second["loss"] != rounds_of(plain)[1]["loss"]
    assert set(first["diagnostics"]["correction_length"].values()) == {0.0}
    assert min(second["diagnostics"]["correction_length"].values()) > 0.01
    assert second["diagnostics"]["control_length"] > 0.01


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_the_server_holds_the_mean_of_what_clients_hold(make_uneven_experiment, go, tmp_path, weighting):
    """And it covers parameters alone: statistics are no gradients."""
    experiment = make_uneven_experiment("scaffold", settings={"weighting": weighting})
    ours, _ = go(experiment, rounds=3)
    store = StateStore(RunFolder(tmp_path / "run").client_states, ours.client_states)
    held = torch.stack([store.read(client)[CONTROL] for client in "abc"])
    counts = torch.tensor([float(len(samples_of(experiment, client))) for client in "abc"])
    shares = counts / counts.sum() if weighting == "samples" else torch.full((3,), 1 / 3)
    torch.testing.assert_close(ours.server[CONTROL], shares @ held, rtol=1e-4, atol=1e-5)
    assert held.shape[1] == layout_of(experiment).extent(Kind.PARAMETER).stop < layout_of(experiment).size


def test_a_client_that_diverged_keeps_its_former_control_variate(make_uneven_experiment):
    workspace = Workspace(
        make_uneven_experiment(
            "scaffold", plan=LocalTrainingConfig(momentum=0.5, epochs=3, batch_size=4, lr=1e30)
        )
    )
    former = torch.ones(len(workspace.flat.parameters))
    state = {CONTROL: former}
    update = workspace.train_client(0, state, RoundStart(2, workspace.flat.read()))
    assert not torch.isfinite(update.weights).all() and state[CONTROL] is former


def test_adam_needs_option_one(make_experiment, go):
    plan = LocalTrainingConfig(epochs=1, batch_size=64, momentum=0.5, optimizer="adam", lr=0.001)
    with pytest.raises(UsageError, match=r"scaffold with option II.*adam.*--optimizer sgd"):
        go(make_experiment("scaffold", plan=plan), "refused")
    ours, _ = go(make_experiment("scaffold", plan=plan, settings={"option": "I"}), "taken")
    assert torch.isfinite(ours.weights).all() and ours.server[CONTROL].norm() > 0


def test_impossible_settings_are_refused():
    with pytest.raises(UsageError, match="above 0"):
        make_method("scaffold", {"server_lr": 0})


def test_regression(make_experiment, tiny_regression, go, rounds_of):
    plan = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.01, momentum=0.5)
    ours, records = go(make_experiment("scaffold", data=tiny_regression, plan=plan), rounds=4)
    losses = [record["loss"] for record in rounds_of(records)]
    assert torch.isfinite(ours.weights).all() and losses[-1] < losses[0]
