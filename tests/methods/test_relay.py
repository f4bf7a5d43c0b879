"""Relay against its algorithm written out: every model's way through the clients, and the merges."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from literal_clients import assert_state, layout_of, mean_state, server_work, start_of, trained_names, visit

from unseen.config import RunConfig
from unseen.engine.experiment import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.methods.relay import MODELS, SEEN
from unseen.models import FlatState
from unseen.runner.prepare import check_names
from unseen.seeding import numpy_generator
from unseen.training import LocalTrainingConfig

PLAN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.05, momentum=0.5)


def literal_relay(experiment, rounds, *, hops, server_lr=1.0):
    """Models are named by the rank of the client at which they start their lap."""
    state, names = start_of(experiment), experiment.federation.names
    for number in range(1, rounds + 1):
        lap, hop = (number - 1) // hops, (number - 1) % hops
        if hop == 0:
            base, models, seen = state, [state for _ in names], [0 for _ in names]
            ranked = sorted(
                names,
                key=lambda name: numpy_generator(experiment.seed, "relay: ranks", name, lap).random(),
            )
        for rank, client in enumerate(ranked):
            result = visit(experiment, client, round=number, start=models[rank - hop])
            models[rank - hop] = result.state
            seen[rank - hop] += result.samples
        state = mean_state(models, seen)
        if hop == hops - 1:
            moved = {
                name: base[name] + server_lr * (state[name] - base[name])
                for name in trained_names(experiment)
            }
            state = state | moved
    return state


@pytest.mark.parametrize(("hops", "server_lr"), [(3, 1.0), (2, 1.5)])
def test_equals_the_algorithm_with_a_merge_on_the_way(make_uneven_experiment, go, hops, server_lr):
    settings = {"hops": hops, "server_lr": server_lr}
    ours, _ = go(make_uneven_experiment("relay", plan=PLAN, settings=settings), rounds=4)
    literal = make_uneven_experiment("relay", plan=PLAN)
    expected = literal_relay(literal, 4, hops=hops, server_lr=server_lr)
    assert_state(ours.weights, expected, layout_of(literal))


def test_one_hop_per_lap_is_fedavg_to_the_bit(make_uneven_experiment, go):
    ours, _ = go(make_uneven_experiment("relay", settings={"hops": 1}), "ours", rounds=2)
    fedavg, _ = go(make_uneven_experiment("fedavg"), "fedavg", rounds=2)
    longer, _ = go(make_uneven_experiment("relay", settings={"hops": 2}), "longer", rounds=2)
    assert torch.equal(ours.weights, fedavg.weights) and not ours.server
    assert not torch.allclose(longer.weights, fedavg.weights, atol=1e-3)


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_a_lap_is_a_latin_square_drawn_anew(clients):
    names, method = [f"client {number}" for number in range(clients)], make_method("relay")
    laps = [
        [method.models_at(names, round=lap * clients + hop + 1, seed=0) for hop in range(clients)]
        for lap in range(12)
    ]
    everything = list(range(clients))
    for lap in laps:
        assert lap[0] == everything
        for line in (*lap, *zip(*lap, strict=True)):
            assert sorted(line) == everything
    assert len(set(map(str, laps))) > 1 or clients <= 2


def test_a_lap_of_its_own_length_visits_other_clients_in_every_hop():
    names, method = [f"client {number}" for number in range(6)], make_method("relay", {"hops": 3})
    first, second, third, merged = (method.models_at(names, round=number, seed=0) for number in range(1, 5))
    for client in range(6):
        assert len({first[client], second[client], third[client]}) == 3
    assert merged == list(range(6))


def test_clients_start_from_models_that_others_have_trained(make_experiment, go):
    experiment = make_experiment("relay", plan=PLAN)
    checkpoint, records = go(experiment, rounds=1)
    names = experiment.federation.names
    models = checkpoint.server[MODELS]
    starts = experiment.method.start_states(names, round=2, seed=experiment.seed, state=checkpoint.server)
    for client, start in enumerate(starts):
        assert not torch.equal(start, models[client])
        assert any(torch.equal(start, other) for other in models)
    assert len(torch.unique(starts, dim=0)) == len(names)
    torch.testing.assert_close(checkpoint.weights, models.mean(0), rtol=1e-4, atol=1e-5)
    last = next(record for record in records.entries if record["event"] == "round")
    assert last["bytes_up"] == last["bytes_down"] == len(names) * checkpoint.weights.nbytes


def test_a_curious_client_reads_the_whole_update_of_one_other(make_experiment, go):
    """In the second hop it gets what one other client made of the weights that it was sent in the first."""
    experiment = make_experiment("relay", plan=PLAN)
    names = experiment.federation.names
    checkpoint, _ = go(experiment, rounds=1)
    second = experiment.method.start_states(names, round=2, seed=experiment.seed, state=checkpoint.server)
    workspace = Workspace(make_experiment("relay", plan=PLAN))
    first = workspace.flat.read()
    updates = [workspace.train_client(k, {}, RoundStart(1, first)).weights - first for k in range(len(names))]
    seen = [[torch.equal(received - first, each) for each in updates] for received in second]
    assert all(sum(row) == 1 and not row[client] for client, row in enumerate(seen))


def test_a_model_whose_client_failed_stays_as_it_was(make_experiment):
    experiment = make_experiment("relay")
    flat = FlatState(experiment.network)
    rows = flat.read() + torch.arange(1.0, 3.0)[:, None]
    work = replace(server_work(flat, rows), asked=("client 0", "client 1", "client 2"))
    mean = experiment.method.server(work)
    torch.testing.assert_close(work.state[MODELS], torch.cat([rows, work.weights[None]]))
    assert work.state[SEEN].tolist() == [1, 2, 0]
    torch.testing.assert_close(mean, (rows[0] + 2 * rows[1]) / 3, rtol=1e-5, atol=1e-5)


def test_moments_of_pooled_batch_norm_become_variances_again(
    make_experiment, make_tiny_data, make_normed_network, go
):
    """With one client nothing is averaged, so both choices are the same training."""
    found = []
    for choice in ("train", "pooled"):
        experiment = make_experiment("relay", data=make_tiny_data(("a", "held")), settings={"hops": 4})
        changed = replace(experiment, network=make_normed_network(), batch_norm=choice)
        found.append(go(changed, choice, rounds=3)[0])
    assert found[1].server
    torch.testing.assert_close(found[0].weights, found[1].weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("option", [{"clip_update": "3x"}, {"server_lr": 0.5}, {"aggregate": "median"}])
def test_what_bounds_a_round_is_refused(option):
    config = RunConfig.from_mapping({"data": "rotated-digits", "hold_out": "75", "method": "relay", **option})
    with pytest.raises(UsageError, match="relay"):
        check_names(config)


@pytest.mark.parametrize("protection", ["secure-sum", "dp-clients"])
def test_protections_that_hide_single_models_are_refused(protection):
    config = RunConfig.from_mapping(
        {"data": "rotated-digits", "hold_out": "75", "method": "relay", "protect": protection}
    )
    with pytest.raises(UsageError, match="does not support relay"):
        check_names(config)


@pytest.mark.parametrize("settings", [{"hops": -1}, {"server_lr": 0.0}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(UsageError, match="must"):
        make_method("relay", settings)
