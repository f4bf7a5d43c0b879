"""FedSAM, FedASAM and FedLESAM against their algorithms written out on named tensors."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from literal_clients import mean_state
from torch.nn import functional as F

from unseen.data import Samples
from unseen.engine import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.methods.fedsam import SEEN
from unseen.privacy import make_protection
from unseen.runs.checkpoint import StateStore
from unseen.runs.folder import RunFolder
from unseen.seeding import torch_generator
from unseen.training import LocalTrainingConfig, batch_positions

PLAN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.05, momentum=0.5)
METHODS = ("fedsam", "fedasam", "fedlesam")


def sam(network, gradients, old, rho):
    norm = sum(value.square().sum() for value in gradients.values()).sqrt()
    return {name: rho * value / norm for name, value in gradients.items()}


def asam(network, gradients, old, rho, eta=0.2):
    sizes = {
        name: value.detach().abs() + eta if name.endswith("weight") else torch.ones_like(value)
        for name, value in network.named_parameters()
    }
    norm = sum((sizes[name] * value).square().sum() for name, value in gradients.items()).sqrt()
    return {name: rho * sizes[name] ** 2 * value / norm for name, value in gradients.items()}


def lesam(network, gradients, old, rho):
    if old is None:
        return None
    before, received = old
    uphill = {name: before[name] - received[name] for name in gradients}
    norm = sum(value.square().sum() for value in uphill.values()).sqrt()
    return {name: rho * value / norm for name, value in uphill.items()}


def literal_client(experiment, client, round, received, before, shift, rho):
    """A client's round; a rule without a pass at the weights keeps the statistics of its only pass."""
    network = copy.deepcopy(experiment.network).train()
    network.load_state_dict(received)
    plan, samples = experiment.plan, Samples(experiment.data, client.train)
    descent = torch.optim.SGD(network.parameters(), lr=plan.lr, momentum=plan.momentum)
    order = torch_generator(experiment.seed, "training: order", client.name, round)
    old = None if before is None else (before, received)
    for _ in range(plan.epochs):
        for positions in batch_positions(len(samples), plan.batch_size, generator=order):
            batch = experiment.prepare(samples.gather(positions))
            named = dict(network.named_parameters())
            weights = {name: value.detach().clone() for name, value in named.items()}
            descent.zero_grad()
            one_pass = shift is lesam
            if not one_pass:
                F.cross_entropy(network(batch.inputs), batch.targets).backward()
            buffers = {name: value.clone() for name, value in network.named_buffers()}
            gradients = {name: None if one_pass else value.grad.clone() for name, value in named.items()}
            moves = shift(network, gradients, old, rho)
            with torch.no_grad():
                for name, value in named.items():
                    value.add_(0 if moves is None else moves[name])
            descent.zero_grad()
            F.cross_entropy(network(batch.inputs), batch.targets).backward()
            with torch.no_grad():
                for name, value in named.items():
                    value.copy_(weights[name])
                for name, value in network.named_buffers():
                    value.copy_(value if one_pass else buffers[name])
            descent.step()
    return network.state_dict()


def literal_run(experiment, shift, rho, rounds):
    state, seen = copy.deepcopy(experiment.network).state_dict(), {}
    for number in range(1, rounds + 1):
        results, sizes = [], []
        for client in experiment.federation:
            results.append(
                literal_client(experiment, client, number, state, seen.get(client.name), shift, rho)
            )
            seen[client.name] = copy.deepcopy(state)
            sizes.append(len(client.train))
        state = mean_state(results, sizes)
    return state


@pytest.mark.parametrize(
    ("method", "shift", "rho"), [("fedsam", sam, 0.1), ("fedasam", asam, 0.7), ("fedlesam", lesam, 0.1)]
)
def test_equals_the_algorithm_written_out(method, shift, rho, make_uneven_experiment, go):
    literal = literal_run(make_uneven_experiment(method, plan=PLAN), shift, rho, 3)
    experiment = make_uneven_experiment(method, plan=PLAN)
    layout = Workspace(experiment).flat.layout
    ours, _ = go(experiment, rounds=3)
    plain, _ = go(make_uneven_experiment("fedavg", plan=PLAN), "plain", rounds=3)
    found = layout.tensors(ours.weights)
    for name, value in literal.items():
        torch.testing.assert_close(found[name], value, rtol=2e-3, atol=3e-5)
    assert (ours.weights - plain.weights).abs().max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_radius_zero_is_fedavg_to_the_last_bit(method, make_experiment, go):
    ours, _ = go(make_experiment(method, settings={"rho": 0}), rounds=2)
    plain, _ = go(make_experiment("fedavg"), "plain", rounds=2)
    assert torch.equal(ours.weights, plain.weights)
    assert not ours.client_states


def test_fedsam_is_fedavg_with_the_option_that_says_the_same(make_experiment, go):
    for method, rule, settings in (("fedsam", "sam", {}), ("fedasam", "asam", {"eta": 0.01})):
        ours, _ = go(make_experiment(method, settings={"rho": 0.3, **settings}), method)
        plan = replace(make_experiment().plan, sharpness=rule, rho=0.3)
        other, _ = go(make_experiment(plan=plan), rule)
        assert torch.equal(ours.weights, other.weights)


def test_fedlesam_acts_from_the_second_round_and_needs_one_pass(make_experiment, go, rounds_of):
    one, _ = go(make_experiment("fedlesam"), "one", rounds=1)
    plain, _ = go(make_experiment(), "plain one", rounds=1)
    assert torch.equal(one.weights, plain.weights)
    experiment, passes = make_experiment("fedlesam"), []
    experiment.network.register_forward_hook(lambda module, *_: passes.append(1) if module.training else None)
    two, records = go(experiment, "two", rounds=2)
    plain, _ = go(make_experiment(), "plain two", rounds=2)
    assert not torch.allclose(two.weights, plain.weights, atol=1e-4)
    first, second = rounds_of(records)
    assert not first["diagnostics"] and min(second["diagnostics"]["server_move"].values()) > 0
    assert len(passes) == 2 * 3 * 4, "two rounds, three clients, four batches"


def test_the_perturbation_is_from_where_the_client_last_saw_the_server(make_experiment, go, tmp_path):
    """A client that sat out rounds compares with what it got in its latest one."""
    given, memory = {}, {}
    for rounds in range(1, 5):
        experiment = make_experiment("fedlesam")
        start = Workspace(experiment).flat.read() if rounds == 1 else given[rounds - 1]
        checkpoint, records = go(experiment, rounds=rounds, fraction=0.4)
        took_part = [entry for entry in records.entries if entry["event"] == "round"][-1]["clients"]
        memory |= dict.fromkeys(took_part, start)
        store = StateStore(RunFolder(tmp_path / "run").client_states, checkpoint.client_states)
        for client, received in memory.items():
            kept = dict(store.read(client))[SEEN]
            assert torch.equal(kept, received[: len(kept)])
        given[rounds] = checkpoint.weights
    assert len(memory) > 1


def test_fedlesam_survives_a_server_that_did_not_move(make_experiment):
    workspace = Workspace(make_experiment("fedlesam"))
    start, state = workspace.flat.read(), {}
    first = workspace.train_client(0, state, RoundStart(1, start))
    again = workspace.train_client(0, state, RoundStart(1, start))
    assert torch.equal(first.weights, again.weights)


def test_fedlesam_trains_with_differential_privacy_of_samples(make_experiment, go):
    protection = make_protection("dp-samples", {"noise_seed": "run", "noise": 1.0, "clip": 1.0})
    found = {}
    for rho in (0.0, 5.0):
        experiment = make_experiment("fedlesam", settings={"rho": rho}, plan=replace(PLAN, epochs=1))
        found[rho], _ = go(replace(experiment, protection=protection), f"rho {rho}")
    assert torch.isfinite(found[5.0].weights).all()
    assert not torch.equal(found[0.0].weights, found[5.0].weights)


@pytest.mark.parametrize("method", METHODS)
def test_a_second_rule_is_refused(method, make_experiment, go):
    plan = replace(PLAN, sharpness="sam")
    with pytest.raises(UsageError, match=r"rule of its own.*--sharpness none"):
        go(make_experiment(method, plan=plan), rounds=2)


@pytest.mark.parametrize("method", ["fedsam", "fedasam"])
def test_two_passes_are_refused_with_differential_privacy_of_samples(method):
    protection = make_protection("dp-samples", {"noise": 1.0})
    assert "second gradient" in protection.incompatibility(make_method(method).traits)


@pytest.mark.parametrize(
    ("method", "settings"), [("fedsam", {"rho": -1}), ("fedlesam", {"rho": -1}), ("fedasam", {"eta": -1})]
)
def test_impossible_settings_are_refused(method, settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        make_method(method, settings)


@pytest.mark.parametrize("method", METHODS)
def test_regression_works(method, make_experiment, tiny_regression, go):
    checkpoint, _ = go(make_experiment(method, data=tiny_regression))
    assert torch.isfinite(checkpoint.weights).all()
