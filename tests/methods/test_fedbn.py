"""FedBN against its algorithm on named tensors: whose batch norm is whose, what is sent, what is deployed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from literal_clients import assert_state, layout_of, mean_state, start_of, visit
from torch import nn
from torch.nn import functional

from unseen.aggregation import ServerWork, Updates
from unseen.engine.experiment import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.methods.fedbn import KEPT, NOTHING_TO_KEEP, batch_norm_positions
from unseen.models import FlatState, Layout
from unseen.runs.checkpoint import StateStore
from unseen.runs.folder import RunFolder
from unseen.training import LocalTrainingConfig

BATCH_NORM = "stages.conv.1."
"""Where the test network has its batch norm; its name does not say `bn`."""
PRIVATE = {"share_statistics": False}


def guided_loss(head, strength):
    """CE(h_k(f)) + strength * CE(h(f)) with the received head, whose numbers are constants."""
    weight, bias = (head[f"head.{name}"].clone() for name in ("weight", "bias"))

    def loss(module, batch):
        features = module.features(batch.inputs)
        own = functional.cross_entropy(module.head(features), batch.targets)
        guide = functional.cross_entropy(features @ weight.T + bias, batch.targets)
        return own + strength * guide

    return loss


def literal_fedbn(experiment, rounds, weights, *, shared=True, guide=0.0):
    """Algorithm 1 on named tensors: the global state, and every client's own batch norm."""
    state, own = start_of(experiment), {client: {} for client in "abc"}
    first = {name: value for name, value in state.items() if name.startswith(BATCH_NORM)}
    for number in range(1, rounds + 1):
        results = {
            client: visit(
                experiment,
                client,
                round=number,
                start=state | own[client],
                loss=guided_loss(state, guide) if guide else None,
            ).state
            for client in "abc"
        }
        for client, result in results.items():
            own[client] = {name: value for name, value in result.items() if name.startswith(BATCH_NORM)}
        state = mean_state(list(results.values()), weights) | ({} if shared else first)
    return state, own


def kept_by(checkpoint, folder, client):
    return StateStore(RunFolder(folder).client_states, checkpoint.client_states).read(client)[KEPT]


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("shared", [True, False])
def test_equals_the_literal_algorithm(make_uneven_experiment, go, tmp_path, shared, weighting):
    settings = {"share_statistics": shared, "weighting": weighting}
    ours, _ = go(make_uneven_experiment("fedbn", settings=settings), rounds=3)
    literal = make_uneven_experiment("fedbn")
    sizes = [len(literal.federation[position].train) for position in range(3)]
    weights = sizes if weighting == "samples" else [1, 1, 1]
    state, own = literal_fedbn(literal, 3, weights, shared=shared)
    layout = layout_of(literal)
    assert_state(ours.weights, state, layout)
    for client in "abc":
        vector = torch.zeros(layout.size)
        vector[batch_norm_positions(literal.network)] = kept_by(ours, tmp_path / "run", client)
        found = layout.tensors(vector)
        for name, value in own[client].items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


def test_the_frozen_head_s_term_equals_the_literal_one(make_uneven_experiment, go, rounds_of):
    settings = {"head_guide": 0.5}
    ours, records = go(make_uneven_experiment("fedbn", settings=settings), rounds=2)
    literal = make_uneven_experiment("fedbn")
    state, _ = literal_fedbn(literal, 2, [1, 1, 1], guide=0.5)
    assert_state(ours.weights, state, layout_of(literal))
    plain, _ = go(make_uneven_experiment("fedbn"), "plain", rounds=2)
    assert (ours.weights - plain.weights).abs().max() > 1e-3
    assert min(rounds_of(records)[-1]["diagnostics"]["loss_of_received_head"].values()) > 0.1


def test_a_negative_guide_is_refused_and_none_is_the_default():
    assert make_method("fedbn").settings.head_guide == 0
    with pytest.raises(UsageError, match="head_guide"):
        make_method("fedbn", {"head_guide": -0.5})


def test_local_batch_norm_acts_from_the_second_round_on(make_uneven_experiment, go, rounds_of):
    settings = {"weighting": "uniform"}
    fedavg = {
        rounds: go(make_uneven_experiment("fedavg", settings=settings), "fedavg", rounds=rounds)[0].weights
        for rounds in (1, 2)
    }
    one, _ = go(make_uneven_experiment("fedbn"), "fedbn", rounds=1)
    assert torch.equal(one.weights, fedavg[1])
    two, records = go(make_uneven_experiment("fedbn"), "fedbn", rounds=2)
    assert (two.weights - fedavg[2]).abs().max() > 1e-3
    found = rounds_of(records)[-1]["diagnostics"]
    assert found["batch_norm_values"] == 4 * 6 + 1
    assert all(0.01 < distance < 10 for distance in found["batch_norm_distance"].values())


def test_clients_go_on_from_their_own_values_whatever_the_server_sends(make_uneven_experiment):
    """Two global states that differ in batch norm alone are the same to a client that has its own."""
    workspace = Workspace(make_uneven_experiment("fedbn"))
    kept, start, state = batch_norm_positions(workspace.module), workspace.flat.read(), {}
    workspace.train_client(0, state, RoundStart(1, start))
    other = start.clone()
    other[kept] += 1
    results = [
        workspace.train_client(0, dict(state), RoundStart(2, given)).weights for given in (start, other)
    ]
    assert torch.equal(*results)
    fresh = workspace.train_client(0, {}, RoundStart(2, start)).weights
    assert not torch.equal(results[0], fresh)


def test_private_batch_norm_never_leaves_and_the_record_says_so(make_uneven_experiment):
    experiment = make_uneven_experiment("fedbn", settings=PRIVATE)
    assert "model weights" not in experiment.method.sends
    assert any("without batch norm" in kind for kind in experiment.method.sends)
    assert "model weights" in make_method("fedbn").sends
    workspace = Workspace(experiment)
    kept, start, state = batch_norm_positions(workspace.module), workspace.flat.read(), {}
    update = workspace.train_client(0, state, RoundStart(1, start))
    assert torch.equal(update.weights[kept], start[kept]) and not update.extras
    assert not torch.equal(state[KEPT], start[kept])
    others = torch.ones(len(start), dtype=torch.bool).scatter(0, kept, False)
    assert not torch.equal(update.weights[others], start[others])


def test_private_batch_norm_of_the_server_stays_to_the_last_bit(make_normed_network):
    """A mean of equal numbers is off by a bit now and then, which would add up over the rounds."""
    network = make_normed_network()
    method = make_method("fedbn", PRIVATE | {"weighting": "samples"})
    flat, kept = FlatState(method.build(network, seed=0)), batch_norm_positions(network)
    weights = torch.rand(flat.layout.size, generator=torch.Generator().manual_seed(1))
    updates = Updates(
        clients=tuple("abcdefg"),
        rows=weights.repeat(7, 1),
        samples=torch.arange(3, 10, dtype=torch.float64),
        steps=torch.ones(7, dtype=torch.float64),
        extras=({},) * 7,
        layout=flat.layout,
    )
    assert not torch.equal(updates.mean(updates.samples)[kept], weights[kept])
    merged = method.server(ServerWork(round=1, seed=0, weights=weights, updates=updates))
    assert torch.equal(merged[kept], weights[kept])


@pytest.mark.parametrize("settings", [{}, PRIVATE])
def test_resumed_with_batch_norm_equals_uninterrupted(make_uneven_experiment, go, settings):
    whole, _ = go(make_uneven_experiment("fedbn", settings=settings), "whole", rounds=3)
    go(make_uneven_experiment("fedbn", settings=settings), "parts", rounds=1)
    resumed, _ = go(make_uneven_experiment("fedbn", settings=settings), "parts", rounds=3)
    assert torch.equal(whole.weights, resumed.weights)


def test_without_batch_norm_it_is_fedavg_and_says_so(make_experiment, go, rounds_of):
    experiment = make_experiment("fedbn", settings={"weighting": "samples"})
    ours, records = go(experiment, "ours", rounds=2)
    fedavg, _ = go(make_experiment("fedavg"), "fedavg", rounds=2)
    assert torch.equal(ours.weights, fedavg.weights) and not ours.client_states
    assert rounds_of(records)[0]["diagnostics"]["batch_norm_values"] == 0
    experiment.method.build(experiment.network, seed=0)
    assert experiment.network.notes == (NOTHING_TO_KEEP,)


def test_with_batch_norm_there_is_nothing_to_note(make_uneven_experiment):
    assert Workspace(make_uneven_experiment("fedbn")).deployed.notes == ()


def test_batch_norm_is_known_by_its_type():
    """Whatever it is called, and shared modules once; other norms and their neighbours are not it."""
    shared = nn.BatchNorm1d(3)
    module = nn.ModuleDict(
        {
            "bn_like_name": nn.Linear(3, 3),
            "downsample": nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)),
            "plain": nn.BatchNorm2d(3, affine=False),
            "bare": nn.BatchNorm2d(3, track_running_stats=False),
            "first": shared,
            "again": shared,
            "instance": nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
            "group": nn.GroupNorm(1, 3),
            "layer": nn.LayerNorm(3),
        }
    )
    layout, found = Layout.of(module), set(batch_norm_positions(module).tolist())
    names = {entry.name for entry in layout.entries if set(range(entry.start, entry.stop)) <= found}
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    assert names == {
        *(f"downsample.1.{name}" for name in ("weight", "bias", *statistics)),
        *(f"plain.{name}" for name in statistics),
        *(f"bare.{name}" for name in ("weight", "bias")),
        *(f"first.{name}" for name in ("weight", "bias", *statistics)),
    }
    assert len(found) == 3 * (4 + 2 + 2 + 4) + 3


def test_a_client_that_diverged_keeps_its_former_batch_norm(make_uneven_experiment):
    plan = LocalTrainingConfig(momentum=0.5, epochs=3, batch_size=4, lr=1e30)
    workspace = Workspace(make_uneven_experiment("fedbn", plan=plan))
    former = workspace.flat.read()[batch_norm_positions(workspace.module)]
    state = {KEPT: former}
    update = workspace.train_client(0, state, RoundStart(2, workspace.flat.read()))
    assert not torch.isfinite(update.weights).all() and state[KEPT] is former


def test_regression(make_experiment, tiny_regression, make_normed_network, go, rounds_of):
    network = make_normed_network()
    network.replace_head(1)
    plan = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.01, momentum=0.5)
    experiment = replace(make_experiment("fedbn", data=tiny_regression, plan=plan), network=network)
    ours, records = go(experiment, rounds=4)
    losses = [record["loss"] for record in rounds_of(records)]
    assert torch.isfinite(ours.weights).all() and losses[-1] < losses[0]
    assert rounds_of(records)[0]["diagnostics"]["batch_norm_values"] > 0


def test_the_average_over_clients_makes_a_usable_model(make_uneven_experiment, go):
    plan = LocalTrainingConfig(epochs=8, batch_size=4, lr=0.05, momentum=0.5)
    _, records = go(make_uneven_experiment("fedbn", plan=plan), rounds=4)
    scores = [score for score in records.entries[-1]["scores"] if score["split"] == "validation"]
    assert len(scores) == 3 and all(score["metrics"]["accuracy"] > 0.8 for score in scores)
