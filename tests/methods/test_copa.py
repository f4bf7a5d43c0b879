"""COPA: equal to the algorithm written out; frozen classifiers act and stay, each from its own domain."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from unseen.data import Samples
from unseen.engine import SerialEngine
from unseen.engine.experiment import RoundStart
from unseen.errors import UsageError
from unseen.federation import PartitionConfig
from unseen.methods import METHODS, make_method
from unseen.methods.copa import COUNTS, FrozenHeads, HeadEnsemble, ensemble_of, head_places
from unseen.models import FlatState
from unseen.runs.checkpoint import StateStore
from unseen.seeding import torch_generator
from unseen.training import LocalTrainingConfig, batch_positions

PLAN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.02, momentum=0.5, weight_decay=0.01)
MIXED = PartitionConfig(kind="mixed", clients_per_domain=1, heterogeneity=0.5)
PARTITIONS = {
    "a domain each": PartitionConfig(),
    "two a domain": PartitionConfig("iid", clients_per_domain=2),
    "mixed": MIXED,
}


def literal_round(experiment, extractor, heads, number):
    """Every client trains F and a C_k for each domain it holds, then F and each C_k are averaged."""
    states, head_states, sizes, counts = [], [], [], []
    for client in experiment.federation:
        local, own = copy.deepcopy(extractor).train(), copy.deepcopy(heads)
        frozen = copy.deepcopy(heads)
        names = experiment.data.domains
        parameters = [*local.parameters()] + [p for name in client.domains for p in own[name].parameters()]
        plan = experiment.plan
        descent = torch.optim.SGD(
            parameters, lr=plan.lr, momentum=plan.momentum, weight_decay=plan.weight_decay
        )
        samples = Samples(experiment.data, client.train)
        order = torch_generator(experiment.seed, "training: order", client.name, number)
        for _ in range(plan.epochs):
            for positions in batch_positions(len(samples), plan.batch_size, generator=order):
                batch = experiment.prepare(samples.gather(positions))
                loss = sum(0 * p.sum() for p in parameters)
                for image, target, domain in zip(*batch, strict=True):
                    feature = local(image[None])
                    mine = names[int(domain)]
                    loss = loss + functional.cross_entropy(own[mine](feature), target[None])
                    for other in heads:
                        if other != mine:
                            loss = loss + functional.cross_entropy(frozen[other](feature), target[None])
                descent.zero_grad()
                (loss / len(positions)).backward()
                descent.step()
        states.append(local.state_dict())
        head_states.append({name: head.state_dict() for name, head in own.items()})
        sizes.append(len(samples))
        counts.append({name: int((samples.domains == names.index(name)).sum()) for name in heads})
    extractor.load_state_dict(weighted(states, sizes))
    for name, head in heads.items():
        head.load_state_dict(weighted([s[name] for s in head_states], [c[name] for c in counts]))


def weighted(states, weights):
    return {
        key: sum(w * s[key] for w, s in zip(weights, states, strict=True)) / sum(weights) for key in states[0]
    }


class Extractor(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = copy.deepcopy(network)

    def forward(self, inputs):
        return self.network.features(inputs)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_equals_the_algorithm_written_out(partition, make_experiment, go):
    options = {"plan": PLAN, "partition": PARTITIONS[partition]}
    experiment = make_experiment("copa", **options)
    extractor = Extractor(experiment.network)
    heads = {name: copy.deepcopy(experiment.network.head) for name in experiment.federation.sources}
    for number in (1, 2, 3):
        literal_round(experiment, extractor, heads, number)
    ours, _ = go(make_experiment("copa", **options), rounds=3)
    module = experiment.method.build_for(experiment.network, sources=experiment.federation.sources, seed=0)
    flat = FlatState(module)
    flat.load(ours.weights)
    for name, value in extractor.network.stages.state_dict().items():
        torch.testing.assert_close(module.stages.state_dict()[name], value, rtol=1e-3, atol=2e-5)
    for name, head in zip(ensemble_of(module).domains, ensemble_of(module).of_domain, strict=True):
        torch.testing.assert_close(head.weight, heads[name].weight, rtol=1e-3, atol=2e-5)
        torch.testing.assert_close(head.bias, heads[name].bias, rtol=1e-3, atol=2e-5)
    images = experiment.prepare(
        Samples(experiment.data, experiment.data.indices("held")).gather(torch.arange(9))
    )
    with torch.no_grad():
        features = extractor(images.inputs)
        expected = torch.stack([head(features).softmax(1) for head in heads.values()]).mean(0)
        answer = experiment.method.deployed(module.eval())(images.inputs).softmax(1)
    torch.testing.assert_close(answer, expected, rtol=1e-3, atol=1e-4)


def test_frozen_classifiers_change_the_outcome_and_their_loss_is_recorded(make_experiment, go):
    ours, records = go(make_experiment("copa", plan=PLAN), "ours")
    without, plain = go(make_experiment("copa", plan=PLAN, settings={"strength": 0}), "without")
    stages = slice(0, head_places(layout_of(make_experiment("copa")))[0][0].start)
    assert (ours.weights[stages] - without.weights[stages]).abs().max() > 1e-3
    for record in (entry for entry in records.entries if entry["event"] == "round"):
        losses = record["diagnostics"]["loss of the other classifiers"]
        assert set(losses) == {"a", "b", "c"} and all(value > 0.01 for value in losses.values())
        assert record["diagnostics"]["spread of the classifiers"] > 1e-3
    assert "loss of the other classifiers" not in plain.entries[0]["diagnostics"]


def test_other_classifiers_get_no_gradient_and_own_ones_only_that_of_their_samples():
    ensemble = HeadEnsemble(nn.Linear(5, 3), ["a", "b", "c"], average="probabilities")
    features = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    domains = torch.tensor([0, 0, 2, 0, 2, 2])
    (
        ensemble.own(features, domains).square().sum() + FrozenHeads(ensemble).others(features, domains).sum()
    ).backward()
    assert features.grad is not None and features.grad.abs().min() > 0
    assert not ensemble.of_domain[1].weight.grad.any()
    for number in (0, 2):
        chosen = features.detach()[domains == number]
        alone = copy.deepcopy(ensemble.of_domain[number]).requires_grad_()
        alone.zero_grad()
        alone(chosen).square().sum().backward()
        torch.testing.assert_close(ensemble.of_domain[number].weight.grad, alone.weight.grad)


def test_others_are_all_classifiers_but_the_own_in_order():
    ensemble = HeadEnsemble(nn.Linear(4, 2), ["a", "b", "c"], average="logits")
    with torch.no_grad():
        for number, head in enumerate(ensemble.of_domain):
            head.bias.fill_(number)
            head.weight.zero_()
    answers = FrozenHeads(ensemble).others(torch.randn(3, 4), torch.tensor([1, 0, 2]))
    assert answers.tolist() == [[0, 0], [2, 2], [1, 1], [2, 2], [0, 0], [1, 1]]


def test_frozen_classifiers_stay_as_they_arrived_while_the_originals_move():
    ensemble = HeadEnsemble(nn.Linear(4, 2), ["a", "b"], average="logits")
    frozen = FrozenHeads(ensemble)
    before = frozen.weight.clone()
    with torch.no_grad():
        ensemble.of_domain[1].weight.mul_(0.5)
    assert torch.equal(frozen.weight, before) and not frozen.weight.requires_grad


def test_a_domain_that_sat_out_keeps_its_classifier(make_experiment, tmp_path):
    experiment = make_experiment("copa", plan=PLAN)
    engine = SerialEngine(experiment, StateStore(tmp_path))
    start = engine.workspace.flat.read()
    _, replies = engine.train([0, 2], RoundStart(1, start))
    weights = merge(experiment, engine, replies, start)
    places = head_places(engine.workspace.flat.layout)
    for domain, reply in ((0, replies[0]), (2, replies[1])):
        for place in places[domain]:
            assert torch.equal(weights[place], reply.update.weights[place])
            assert not torch.equal(weights[place], start[place])
    for place in places[1]:
        assert torch.equal(weights[place], start[place])


def merge(experiment, engine, replies, start):
    from unseen.aggregation import ServerWork, Updates

    updates = Updates(
        clients=tuple(reply.client for reply in replies),
        rows=torch.stack([reply.update.weights for reply in replies]),
        samples=torch.tensor([float(reply.update.samples) for reply in replies], dtype=torch.float64),
        steps=torch.ones(len(replies), dtype=torch.float64),
        extras=tuple(reply.update.extras for reply in replies),
        layout=engine.workspace.flat.layout,
    )
    return experiment.method.server(ServerWork(round=1, seed=0, weights=start, updates=updates))


def test_uniform_weighting_counts_clients_and_not_samples(make_experiment, make_tiny_data, tmp_path):
    data = make_tiny_data(missing=("b", 1))
    experiment = make_experiment("copa", data=data, settings={"weighting": "uniform"}, plan=PLAN)
    engine = SerialEngine(experiment, StateStore(tmp_path))
    start = engine.workspace.flat.read()
    rows, replies = engine.train([0, 1, 2], RoundStart(1, start))
    stages = slice(0, head_places(engine.workspace.flat.layout)[0][0].start)
    merged = merge(experiment, engine, replies, start)
    torch.testing.assert_close(merged[stages], rows.mean(0)[stages], rtol=1e-5, atol=1e-6)
    assert len({reply.update.samples for reply in replies}) == 2


def test_clients_tell_how_many_samples_of_each_domain_they_hold(make_experiment, tmp_path):
    experiment = make_experiment("copa", partition=MIXED)
    engine = SerialEngine(experiment, StateStore(tmp_path))
    _, replies = engine.train([0, 1, 2], RoundStart(1, engine.workspace.flat.read()))
    counts = torch.stack([reply.update.extras[COUNTS] for reply in replies])
    assert counts.sum(1).tolist() == [reply.update.samples for reply in replies]
    assert (counts > 0).sum(1).min() > 1


def layout_of(experiment):
    sources = experiment.federation.sources
    return FlatState(experiment.method.build_for(experiment.network, sources=sources, seed=0)).layout


@pytest.mark.parametrize("average", ["probabilities", "logits"])
def test_the_ensemble_averages_what_it_says(average):
    ensemble = HeadEnsemble(nn.Linear(4, 3), ["a", "b"], average=average)
    with torch.no_grad():
        ensemble.of_domain[1].weight.mul_(-7)
    features = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    answers = torch.stack([head(features) for head in ensemble.of_domain])
    if average == "logits":
        torch.testing.assert_close(ensemble(features), answers.mean(0))
    else:
        torch.testing.assert_close(ensemble(features).softmax(1), answers.softmax(2).mean(0))
        assert not torch.allclose(ensemble(features).softmax(1), answers.mean(0).softmax(1), atol=1e-2)


def test_building_leaves_the_network_alone_and_starts_all_classifiers_from_its_head(make_experiment):
    experiment = make_experiment("copa")
    head = experiment.network.head
    for _ in range(2):
        module = experiment.method.build_for(experiment.network, sources=("z", "a"), seed=0)
        assert experiment.network.head is head and module.feature_size == head.in_features
        assert ensemble_of(module).domains == ("a", "z")
        assert all(torch.equal(own.weight, head.weight) for own in ensemble_of(module).of_domain)


def test_regression_averages_values(make_experiment, make_tiny_data, go):
    data = make_tiny_data()
    numbers = replace(
        data, task="regression", targets=data.targets.astype("float32"), classes=(), fingerprint=""
    )
    _, records = go(make_experiment("copa", data=numbers, plan=replace(PLAN, epochs=5)), rounds=3)
    first, last = records.entries[0], records.entries[-2]
    assert last["loss"] < 0.5 * first["loss"]
    single = HeadEnsemble(nn.Linear(4, 1), ["a", "b"], average="probabilities")
    with torch.no_grad():
        single.of_domain[1].bias.add_(3)
    features = torch.randn(5, 4)
    torch.testing.assert_close(single(features), single.of_domain[0](features) + 1.5)


def test_one_domain_is_plain_training(make_experiment, make_tiny_data, go):
    data = make_tiny_data(("a", "held"))
    ours, records = go(make_experiment("copa", data=data), "ours")
    plain, _ = go(make_experiment("fedavg", data=data), "plain")
    torch.testing.assert_close(ours.weights, plain.weights)
    assert "loss of the other classifiers" not in records.entries[0]["diagnostics"]


def test_says_what_it_sends_and_refuses_a_negative_strength():
    assert COUNTS in METHODS["copa"].sends and METHODS["copa"].needs_individual_updates
    with pytest.raises(UsageError, match="must not be negative"):
        make_method("copa", {"strength": -1})
