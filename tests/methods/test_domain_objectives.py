"""IRM, V-REx, GroupDRO, CORAL, MMD and Fish on the domains of one client, against their formulas."""

from __future__ import annotations

import copy
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from literal_clients import mean_state
from torch.nn import functional as F

from tiny_data import fitting_partition
from unseen.config import RunConfig
from unseen.data import Samples
from unseen.engine import Workspace
from unseen.errors import UsageError
from unseen.federation import PartitionConfig
from unseen.methods import METHODS, make_method
from unseen.methods.domain_objectives.domain_batches import draw_balanced, draw_in_turn
from unseen.runner.prepare import prepare_run
from unseen.seeding import torch_generator
from unseen.training import LocalTrainingConfig

PLAN = LocalTrainingConfig(epochs=1, batch_size=6, lr=0.05, momentum=0.5)
STRONG = {
    "irm": {"penalty": 3.0, "warmup": 0.0},
    "vrex-domains": {"penalty": 10.0, "warmup": 0.0},
    "groupdro-domains": {"step": 3.0},
    "coral": {"penalty": 100.0},
    "mmd": {"penalty": 0.1},
}
OFF = {name: {"step": 0} if name == "groupdro-domains" else {"penalty": 0} for name in STRONG}


def irm(parts, q):
    total = 0
    for _, outputs, targets in parts:
        scale = torch.ones((), requires_grad=True)
        slopes = [
            torch.autograd.grad(
                F.cross_entropy(outputs[start::2] * scale, targets[start::2]), scale, create_graph=True
            )[0]
            for start in (0, 1)
        ]
        total = total + slopes[0] * slopes[1]
    risks = torch.stack([F.cross_entropy(outputs, targets) for _, outputs, targets in parts])
    return risks.mean() + 3.0 * total / len(parts)


def vrex(parts, q):
    risks = torch.stack([F.cross_entropy(outputs, targets) for _, outputs, targets in parts])
    return risks.mean() + 10.0 * ((risks - risks.mean()) ** 2).mean()


def groupdro(parts, q):
    risks = torch.stack([F.cross_entropy(outputs, targets) for _, outputs, targets in parts])
    q *= (3.0 * risks.detach()).exp()
    q /= q.sum()
    return (q.clone() * risks).sum()


def coral_distance(one, other):
    covariances = [torch.cov(part.T) for part in (one, other)]
    return ((one.mean(0) - other.mean(0)) ** 2).mean() + ((covariances[0] - covariances[1]) ** 2).mean()


def mmd_distance(one, other):
    def kernel(a, b):
        return sum(torch.exp(-(10.0**power) * (a - b).square().sum()) for power in range(-3, 4))

    def mean(first, second):
        return torch.stack([kernel(a, b) for a in first for b in second]).mean()

    return mean(one, one) + mean(other, other) - 2 * mean(one, other)


def matching(distance, strength):
    def objective(parts, q):
        risks = torch.stack([F.cross_entropy(outputs, targets) for _, outputs, targets in parts])
        pairs = [distance(one[0], other[0]) for one, other in combinations(parts, 2)]
        return risks.mean() + strength * torch.stack(pairs).mean()

    return objective


LITERAL = {
    "irm": irm,
    "vrex-domains": vrex,
    "groupdro-domains": groupdro,
    "coral": matching(coral_distance, 100.0),
    "mmd": matching(mmd_distance, 0.1),
}


def literal_run(experiment, objective, rounds):
    network, memory = copy.deepcopy(experiment.network), {}
    for number in range(1, rounds + 1):
        states = []
        for client in experiment.federation:
            local, samples = copy.deepcopy(network).train(), Samples(experiment.data, client.train)
            held = sorted(set(samples.domains.tolist()))
            groups = [(samples.domains == domain).nonzero().squeeze(1) for domain in held]
            q = memory.setdefault(client.name, torch.ones(len(held)))
            descent = torch.optim.SGD(local.parameters(), lr=experiment.plan.lr, momentum=0.5)
            order = torch_generator(experiment.seed, "training: order", client.name, number)
            for positions in draw_balanced(groups)(len(samples), experiment.plan.batch_size, generator=order):
                batch = experiment.prepare(samples.gather(positions))
                parts = []
                for domain in held:
                    rows = batch.domains == domain
                    features = local.features(batch.inputs)[rows]
                    parts.append((features, local.head(features), batch.targets[rows]))
                descent.zero_grad()
                objective(parts, q).backward()
                descent.step()
            states.append((local.state_dict(), len(samples)))
        network.load_state_dict(mean_state(*map(list, zip(*states, strict=True))))
    return network.state_dict()


@pytest.mark.parametrize("method", STRONG)
def test_equals_the_objective_written_out(method, make_experiment, go, rounds_of):
    literal = literal_run(make_experiment(method, plan=PLAN), LITERAL[method], 2)
    experiment = make_experiment(method, settings=STRONG[method], plan=PLAN)
    layout = Workspace(experiment).flat.layout
    ours, records = go(experiment)
    without, _ = go(make_experiment(method, settings=OFF[method], plan=PLAN), "without")
    found = layout.tensors(ours.weights)
    for name, value in literal.items():
        torch.testing.assert_close(found[name], value, rtol=2e-3, atol=5e-5)
    plain = layout.tensors(without.weights)
    error = max((found[name] - value).abs().max() for name, value in literal.items())
    assert max((found[name] - value).abs().max() for name, value in plain.items()) > 20 * error + 2e-4
    assert any(rounds_of(records)[-1]["diagnostics"]["domain_penalty"].values())


@pytest.mark.parametrize("method", STRONG)
def test_without_its_term_and_with_plain_batches_it_is_fedavg_to_the_last_bit(method, make_experiment, go):
    ours, _ = go(make_experiment(method, settings={**OFF[method], "balanced": False}))
    plain, _ = go(make_experiment("fedavg", partition=fitting_partition(method)), "plain")
    assert torch.equal(ours.weights, plain.weights)


@pytest.mark.parametrize("method", STRONG)
def test_plain_batches_may_lack_a_domain(method, make_experiment, go):
    plan = LocalTrainingConfig(epochs=1, batch_size=3, lr=0.02, momentum=0.5)
    settings = {**STRONG[method], "balanced": False}
    checkpoint, _ = go(make_experiment(method, settings=settings, plan=plan))
    assert torch.isfinite(checkpoint.weights).all()


def test_fish_goes_part_of_the_way_of_every_lap(make_experiment, go):
    experiment = make_experiment("fish", settings={"step": 0.3}, plan=PLAN)
    network, states = copy.deepcopy(experiment.network), []
    for client in experiment.federation:
        local, samples = copy.deepcopy(network).train(), Samples(experiment.data, client.train)
        held = sorted(set(samples.domains.tolist()))
        groups = [(samples.domains == domain).nonzero().squeeze(1) for domain in held]
        order = torch_generator(experiment.seed, "training: order", client.name, 1)
        drawn = list(draw_in_turn(groups)(len(samples), PLAN.batch_size, generator=order))
        descent = torch.optim.SGD(local.parameters(), lr=PLAN.lr, momentum=0.5)
        for first in range(0, len(drawn), len(held)):
            before = [value.detach().clone() for value in local.parameters()]
            for positions in drawn[first : first + len(held)]:
                batch = experiment.prepare(samples.gather(positions))
                descent.zero_grad()
                F.cross_entropy(local(batch.inputs), batch.targets).backward()
                descent.step()
            with torch.no_grad():
                for value, old in zip(local.parameters(), before, strict=True):
                    value.copy_(old + 0.3 * (value - old))
        states.append((local.state_dict(), len(samples)))
    literal = mean_state(*map(list, zip(*states, strict=True)))
    layout = Workspace(experiment).flat.layout
    ours, _ = go(experiment, rounds=1)
    whole, _ = go(make_experiment("fish", settings={"step": 1}, plan=PLAN), "whole", rounds=1)
    found = layout.tensors(ours.weights)
    for name, value in literal.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=3e-5)
    assert (ours.weights - whole.weights).abs().max() > 5e-4


def test_fish_with_the_whole_way_is_fedavg_on_batches_of_one_domain(make_experiment, go):
    ours, _ = go(make_experiment("fish", settings={"step": 1}))
    plain = make_experiment("fedavg", partition=fitting_partition("fish"))
    train = plain.method.client

    def client(work):
        domains = work.train.domains
        work.draw = draw_in_turn([(domains == number).nonzero().squeeze(1) for number in domains.unique()])
        return train(work)

    plain.method.client = client
    assert torch.equal(ours.weights, go(plain, "plain")[0].weights)


def test_groupdro_keeps_its_weights_over_rounds(make_experiment, go, rounds_of):
    _, records = go(make_experiment("groupdro-domains", settings={"step": 0.5}), rounds=3)
    largest = [record["diagnostics"]["largest_domain_weight"] for record in rounds_of(records)]
    assert all(1 / 3 < value < 1 for value in largest[0].values())
    assert all(largest[2][name] != largest[1][name] != largest[0][name] for name in largest[0])


@pytest.mark.parametrize("method", ["irm", "vrex-domains"])
def test_the_weight_is_one_during_the_warmup(method, make_experiment, go):
    plan = LocalTrainingConfig(epochs=1, batch_size=9, lr=0.02, momentum=0.5, rounds=4)
    found = {}
    for name, settings in {
        "late": {"penalty": 5.0, "warmup": 0.5},
        "one": {"penalty": 1.0},
        "now": {"penalty": 5.0, "warmup": 0.0},
    }.items():
        for rounds in (2, 3):
            checkpoint, _ = go(
                make_experiment(method, settings=settings, plan=plan), f"{name} {rounds}", rounds=rounds
            )
            found[name, rounds] = checkpoint.weights
    assert torch.equal(found["late", 2], found["one", 2])
    assert not torch.equal(found["late", 3], found["one", 3])
    assert not torch.equal(found["late", 2], found["now", 2])


@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    batch_size=st.integers(1, 12),
    batches=st.none() | st.integers(1, 5),
)
def test_draws_have_the_batches_of_an_epoch_and_the_domains_they_promise(sizes, batch_size, batches):
    ends = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    groups = [torch.arange(*pair) for pair in pairwise(ends)]
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    options = {"batches": batches, "generator": torch.Generator().manual_seed(0)}
    balanced = list(draw_balanced(groups)(sum(sizes), batch_size, **options))
    in_turn = list(draw_in_turn(groups)(sum(sizes), batch_size, **options))
    assert len(balanced) == len(in_turn)
    assert batches in (None, len(balanced))
    each = max(batch_size // len(sizes), 2)
    for positions in balanced:
        assert owner[positions].bincount(minlength=len(sizes)).tolist() == [each] * len(sizes)
    visited = [set(owner[positions].tolist()) for positions in in_turn]
    assert all(len(domains) == 1 for domains in visited)
    for first in range(0, len(visited), len(sizes)):
        lap = visited[first : first + len(sizes)]
        assert len(set.union(*lap)) == len(lap), "a lap visits no domain twice"


COMPARING = sorted(name for name in METHODS if METHODS[name].domains_per_client > 1)


@pytest.mark.parametrize("method", COMPARING)
def test_a_client_with_one_domain_is_refused_in_training(method, make_experiment, go):
    with pytest.raises(UsageError, match=f"{method} compares.*client 'a' holds only 'a'.*--partition mixed"):
        go(make_experiment(method, partition=PartitionConfig()))


def test_a_client_with_one_domain_is_refused_before_the_run(make_tiny_data):
    options = {"data": "tiny", "hold_out": "held", "method": "irm", "model": "mnist-cnn", "workers": 1}
    with pytest.raises(UsageError, match="client 'a' holds only 'a'"):
        prepare_run(RunConfig.from_mapping(options), data=make_tiny_data())
    for heterogeneity, fits in ((1.0, False), (0.3, True)):
        mixed = {**options, "partition": "mixed", "heterogeneity": heterogeneity}
        if fits:
            prepare_run(RunConfig.from_mapping(mixed), data=make_tiny_data())
        else:
            with pytest.raises(UsageError, match="client 'client-1' holds only 'a'"):
                prepare_run(RunConfig.from_mapping(mixed), data=make_tiny_data())


@pytest.mark.parametrize("method", COMPARING)
def test_regression_works(method, make_experiment, tiny_regression, go):
    settings = {"penalty": 1e-3} if "penalty" in vars(make_method(method).settings) else {}
    plan = LocalTrainingConfig(epochs=1, batch_size=8, lr=0.002, momentum=0.5)
    checkpoint, _ = go(make_experiment(method, data=tiny_regression, settings=settings, plan=plan))
    assert torch.isfinite(checkpoint.weights).all()


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("irm", {"penalty": -1}),
        ("vrex-domains", {"warmup": -1}),
        ("groupdro-domains", {"step": -1}),
        ("coral", {"penalty": -1}),
        ("fish", {"step": 0}),
    ],
)
def test_impossible_settings_are_refused(method, settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        make_method(method, settings)
