"""MOON against its algorithm written out, and what its two frozen models must never do."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from unseen.data import Samples
from unseen.engine import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.methods._shared import ExtendedNetwork, frozen_copy
from unseen.methods.moon import PREVIOUS_MODEL, contrastive_loss
from unseen.models import FlatState, Kind
from unseen.runs.checkpoint import StateStore
from unseen.runs.folder import RunFolder
from unseen.seeding import torch_generator
from unseen.training import LocalTrainingConfig, batch_positions

PLAN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.05, momentum=0.0)


def literal_term(z, z_glob, z_prev, tau=0.5):
    """Equation 3, sample by sample."""

    def sim(one, two):
        return (one @ two) / (one.norm() * two.norm())

    terms = [
        -torch.log(torch.exp(sim(a, b) / tau) / (torch.exp(sim(a, b) / tau) + torch.exp(sim(a, c) / tau)))
        for a, b, c in zip(z, z_glob, z_prev, strict=True)
    ]
    return sum(terms) / len(terms)


def literal_moon(experiment, network, rounds, mu):
    """Algorithm 1; in the first round the previous model is the initial global one."""
    network = copy.deepcopy(network)
    previous = {client.name: copy.deepcopy(network).eval() for client in experiment.federation}
    for number in range(1, rounds + 1):
        states, sizes = [], []
        for client in experiment.federation:
            local, received = copy.deepcopy(network).train(), copy.deepcopy(network).eval()
            optimiser = torch.optim.SGD(local.parameters(), lr=experiment.plan.lr)
            samples = Samples(experiment.data, client.train)
            order = torch_generator(experiment.seed, "training: order", client.name, number)
            for _ in range(experiment.plan.epochs):
                for positions in batch_positions(len(samples), experiment.plan.batch_size, generator=order):
                    batch = experiment.prepare(samples.gather(positions))
                    z = local.features(batch.inputs)
                    z_glob = received.features(batch.inputs).detach()
                    z_prev = previous[client.name].features(batch.inputs).detach()
                    loss = F.cross_entropy(local.head(z), batch.targets)
                    optimiser.zero_grad()
                    (loss + mu * literal_term(z, z_glob, z_prev)).backward()
                    optimiser.step()
            previous[client.name] = copy.deepcopy(local).eval()
            states.append(local.state_dict())
            sizes.append(len(samples))
        merged = {
            key: sum(n / sum(sizes) * state[key] for n, state in zip(sizes, states, strict=True))
            for key in states[0]
        }
        network.load_state_dict(merged)
    return FlatState(network)


@pytest.mark.parametrize("normed", [False, True], ids=["mnist-cnn", "batch norm"])
def test_equals_the_algorithm_written_out(normed, make_experiment, make_normed_network, go):
    def experiment(method, **settings):
        made = make_experiment(method, settings=settings, plan=PLAN)
        return replace(made, network=make_normed_network()) if normed else made

    literal = literal_moon(experiment("moon"), experiment("moon").network, rounds=3, mu=2.0)
    ours, _ = go(experiment("moon", mu=2.0), rounds=3)
    plain, _ = go(experiment("fedavg"), "plain", rounds=3)
    kept = slice(0, literal.layout.extent(Kind.PARAMETER).stop)
    expected = literal.read()[kept]
    torch.testing.assert_close(ours.weights[kept], expected, rtol=1e-3, atol=5e-5)
    assert (ours.weights[kept] - plain.weights[kept]).abs().max() > 1e-3


@pytest.mark.parametrize("model", ["mnist-cnn", "cnn-2"])
def test_weight_zero_is_fedavg_to_the_last_bit(model, make_experiment, go, rounds_of):
    ours, records = go(make_experiment("moon", model=model, settings={"mu": 0}), rounds=3)
    plain, _ = go(make_experiment("fedavg", model=model), "plain", rounds=3)
    assert torch.equal(ours.weights, plain.weights)
    assert not rounds_of(records)[-1]["diagnostics"]
    assert not ours.client_states


def test_the_first_round_is_fedavg_and_the_term_acts_from_the_second(make_experiment, go, rounds_of):
    first, _ = go(make_experiment("moon"), rounds=1)
    plain_first, _ = go(make_experiment("fedavg"), "plain", rounds=1)
    assert torch.equal(first.weights, plain_first.weights)
    ours, records = go(make_experiment("moon"), rounds=2)
    plain, _ = go(make_experiment("fedavg"), "plain", rounds=2)
    assert not torch.allclose(ours.weights, plain.weights, atol=1e-4)
    one, two = (record["diagnostics"] for record in rounds_of(records))
    assert "contrastive_loss" not in one
    assert set(two["contrastive_loss"]) == {"a", "b", "c"}
    for client, value in two["contrastive_loss"].items():
        assert 0 < value < math.log(1 + math.exp(2 / 0.5))
        assert value != pytest.approx(math.log(2), abs=1e-6), client


def test_a_strong_term_pulls_features_to_the_server_and_from_the_former_model(make_experiment, go, rounds_of):
    found = {}
    plan = LocalTrainingConfig(epochs=4, batch_size=4, lr=0.05, momentum=0.0)
    for mu in (1e-6, 20.0):
        _, records = go(make_experiment("moon", settings={"mu": mu}, plan=plan), f"run-{mu}", rounds=2)
        diagnostics = rounds_of(records)[-1]["diagnostics"]
        found[mu] = {
            name: sum(diagnostics[f"similarity_to_{name}"].values()) for name in ("server", "previous")
        }
    gap = {mu: similar["server"] - similar["previous"] for mu, similar in found.items()}
    assert gap[20.0] > gap[1e-6] + 0.05


def test_the_loss_is_equation_3_and_does_not_overflow():
    generator = torch.Generator().manual_seed(0)
    z, glob, prev = (torch.randn(5, 7, generator=generator) for _ in range(3))
    ours = contrastive_loss(F.cosine_similarity(z, glob), F.cosine_similarity(z, prev), temperature=0.5)
    torch.testing.assert_close(ours, literal_term(z, glob, prev))
    assert contrastive_loss(torch.tensor([-1.0]), torch.tensor([1.0]), temperature=1e-3) == pytest.approx(
        2000
    )
    assert contrastive_loss(torch.tensor([0.3]), torch.tensor([0.3]), temperature=0.5) == pytest.approx(
        math.log(2)
    )


def test_frozen_models_leave_the_trained_one_and_themselves_as_they_are(make_experiment, make_normed_network):
    """With no learning to speak of, batch norm's statistics must be those of plain training."""
    plan = LocalTrainingConfig(epochs=2, batch_size=4, lr=1e-12, momentum=0.0)
    states = {}
    for method in ("moon", "fedavg"):
        experiment = replace(make_experiment(method, plan=plan), network=make_normed_network())
        workspace = Workspace(experiment)
        start = workspace.flat.read()
        memory = {
            PREVIOUS_MODEL: start + 0.1 * torch.rand(len(start), generator=torch.Generator().manual_seed(1))
        }
        update = workspace.train_client(0, memory, RoundStart(2, start))
        states[method] = workspace.flat.layout.tensors(update.weights)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        full = f"stages.conv.1.{name}"
        assert torch.equal(states["moon"][full], states["fedavg"][full]), name


def test_a_frozen_copy_is_apart_from_the_model(make_experiment, make_normed_network):
    experiment = replace(make_experiment("moon"), network=make_normed_network())
    workspace = Workspace(experiment)
    held = []
    original = experiment.method.client

    def look(work):
        frozen = frozen_copy(work, work.start + 1)
        before = copy.deepcopy(frozen.state_dict())
        for batch in work.batches():
            assert not frozen.features(batch.inputs).requires_grad
        assert not any(module.training for module in frozen.modules())
        assert torch.equal(work.flat.read(), work.start)
        assert all(torch.equal(value, before[name]) for name, value in frozen.state_dict().items())
        assert torch.equal(before["head.bias"], work.module.head.bias + 1)
        held.append(work)
        return original(work)

    experiment.method.client = look
    workspace.train_client(0, {}, RoundStart(1, workspace.flat.read()))
    assert held


def test_the_previous_model_is_the_client_s_own_latest(make_experiment, go, tmp_path):
    """A client that sat out rounds is compared with the model of the last one it took part in."""
    memory, seen = {}, set()
    for rounds in range(1, 5):
        experiment = make_experiment("moon")
        checkpoint, records = go(experiment, rounds=rounds, fraction=0.4)
        took_part = [entry for entry in records.entries if entry["event"] == "round"][-1]
        store = StateStore(RunFolder(tmp_path / "run").client_states, checkpoint.client_states)
        acted = set(took_part["diagnostics"].get("contrastive_loss", {}))
        assert acted == seen & set(took_part["clients"])
        seen |= set(took_part["clients"])
        for client in ("a", "b", "c"):
            state = dict(store.read(client))
            assert set(state) == ({PREVIOUS_MODEL} if client in seen else set())
            if client not in took_part["clients"] and client in memory:
                assert torch.equal(state[PREVIOUS_MODEL], memory[client])
            elif client in memory:
                assert not torch.equal(state[PREVIOUS_MODEL], memory[client])
            if client in seen:
                memory[client] = state[PREVIOUS_MODEL]
    assert len(seen) > 1


def test_the_projection_stands_between_features_and_a_new_head(make_experiment, go):
    experiment = make_experiment("moon", settings={"projection": 16})
    before = copy.deepcopy(experiment.network.state_dict())
    module = experiment.method.build(experiment.network, seed=0)
    assert isinstance(module, ExtendedNetwork) and module.feature_size == 16
    inputs = torch.rand(4, 3, 8, 8)
    inner = experiment.network.features(inputs)
    first, second = module.layer[0], module.layer[2]
    z = F.linear(torch.relu(F.linear(inner, first.weight, first.bias)), second.weight, second.bias)
    torch.testing.assert_close(module.features(inputs), z)
    torch.testing.assert_close(module(inputs), F.linear(z, module.head.weight, module.head.bias))
    assert [tap.shape for tap in module.full(inputs).taps] == [
        tap.shape for tap in experiment.network.full(inputs).taps
    ]
    again = experiment.method.build(experiment.network, seed=0)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in module.state_dict().items())
    assert all(torch.equal(value, before[name]) for name, value in experiment.network.state_dict().items())
    checkpoint, _ = go(experiment)
    sizes = [sum(p.numel() for p in part.parameters()) for part in (experiment.network, module)]
    assert len(checkpoint.weights) == sizes[1] != sizes[0]
    assert isinstance(experiment.method.deployed(module).head, nn.Linear)


def test_regression_works(make_experiment, tiny_regression, go, rounds_of):
    checkpoint, records = go(make_experiment("moon", data=tiny_regression))
    assert torch.isfinite(checkpoint.weights).all()
    assert min(rounds_of(records)[-1]["diagnostics"]["contrastive_loss"].values()) > 0


@pytest.mark.parametrize("settings", [{"mu": -1}, {"temperature": 0}, {"projection": 0}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        make_method("moon", settings)
