"""FedProx against autograd on the penalised loss; without its term it is FedAvg."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from unseen.data import Samples
from unseen.engine import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.models import FlatState
from unseen.seeding import torch_generator
from unseen.training import LocalTrainingConfig, batch_positions

PLAN = LocalTrainingConfig(epochs=3, batch_size=4, lr=0.05, momentum=0.5, weight_decay=1e-2)


def literal_client(experiment, mu):
    """Autograd on F_k(w_k) + mu/2 ||w_k - w||^2, every tensor by itself, with torch's own optimiser."""
    network = copy.deepcopy(experiment.network).train()
    received = [parameter.detach().clone() for parameter in network.parameters()]
    plan, client = experiment.plan, experiment.federation[0]
    if plan.optimizer == "adam":
        optimiser = torch.optim.Adam(network.parameters(), lr=plan.lr, weight_decay=plan.weight_decay)
    else:
        optimiser = torch.optim.SGD(
            network.parameters(), lr=plan.lr, momentum=plan.momentum, weight_decay=plan.weight_decay
        )
    samples = Samples(experiment.data, client.train)
    order = torch_generator(experiment.seed, "training: order", client.name, 1)
    terms = []
    for _ in range(plan.epochs):
        for positions in batch_positions(len(samples), plan.batch_size, generator=order):
            batch = experiment.prepare(samples.gather(positions))
            pairs = zip(network.parameters(), received, strict=True)
            term = mu / 2 * sum(((weight - old) ** 2).sum() for weight, old in pairs)
            optimiser.zero_grad()
            (F.cross_entropy(network(batch.inputs), batch.targets) + term).backward()
            optimiser.step()
            terms.append(float(term.detach()))
    return FlatState(network).read(), sum(terms) / len(terms)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("normed", [False, True], ids=["mnist-cnn", "batch norm"])
def test_a_client_equals_autograd_on_the_penalised_loss(
    normed, optimiser, make_experiment, make_normed_network
):
    plan = replace(PLAN, optimizer=optimiser, lr=0.05 if optimiser == "sgd" else 0.002)
    experiment = make_experiment("fedprox", settings={"mu": 2.0}, plan=plan)
    if normed:
        experiment = replace(experiment, network=make_normed_network())
    expected, term = literal_client(experiment, 2.0)
    free, _ = literal_client(experiment, 0.0)
    workspace = Workspace(experiment)
    update = workspace.train_client(0, {}, RoundStart(1, workspace.flat.read()))
    torch.testing.assert_close(update.weights, expected, rtol=1e-3, atol=2e-5)
    assert (free - expected).abs().max() > 50 * (update.weights - expected).abs().max()
    assert update.diagnostics["proximal_term"] == pytest.approx(term, rel=1e-3)


@pytest.mark.parametrize("model", ["mnist-cnn", "cnn-2"])
def test_mu_zero_is_fedavg_to_the_last_bit(model, make_experiment, go, rounds_of):
    ours, records = go(make_experiment("fedprox", model=model, settings={"mu": 0}), rounds=2)
    plain, _ = go(make_experiment("fedavg", model=model), "plain", rounds=2)
    assert torch.equal(ours.weights, plain.weights)
    assert "proximal_term" not in rounds_of(records)[-1]["diagnostics"]


def test_the_term_keeps_clients_near_and_is_recorded(make_experiment, go, rounds_of):
    distances, weights = {}, {}
    for mu in (0.0, 0.1, 5.0):
        weights[mu], records = go(make_experiment("fedprox", settings={"mu": mu}), f"run-{mu}", rounds=1)
        diagnostics = rounds_of(records)[0]["diagnostics"]
        distances[mu] = diagnostics["distance_from_start"]
        if mu:
            assert set(diagnostics["proximal_term"]) == {"a", "b", "c"}
            assert min(diagnostics["proximal_term"].values()) > 0
    assert all(0 < distances[5.0][name] < distances[0.1][name] < distances[0.0][name] for name in "abc")
    assert not torch.equal(weights[0.0].weights, weights[0.1].weights)


def test_a_huge_mu_lets_the_statistics_of_batch_norm_move_and_nothing_else(
    make_experiment, make_normed_network
):
    """The pull is on parameters: w stays where it is (lr * mu = 1 undoes each step), the buffers follow."""
    plan = LocalTrainingConfig(epochs=2, batch_size=4, lr=1e-6, momentum=0.0)
    experiment = make_experiment("fedprox", settings={"mu": 1e6}, plan=plan)
    workspace = Workspace(replace(experiment, network=make_normed_network()))
    start = workspace.flat.read()
    update = workspace.train_client(0, {}, RoundStart(1, start))
    before, after = (workspace.flat.layout.tensors(vector) for vector in (start, update.weights))
    assert (after["head.weight"] - before["head.weight"]).abs().max() < 1e-5
    name = "stages.conv.1.running_mean"
    assert (after[name] - before[name]).abs().max() > 0.01


def test_regression_works(make_experiment, tiny_regression, go):
    checkpoint, _ = go(make_experiment("fedprox", data=tiny_regression))
    assert torch.isfinite(checkpoint.weights).all()


@pytest.mark.parametrize("mu", [-0.1, float("nan")])
def test_a_negative_mu_is_refused(mu):
    with pytest.raises(UsageError, match="must not be negative"):
        make_method("fedprox", {"mu": mu})
