"""FedIIR and Fishr against their algorithms written out with autograd on every parameter and sample."""

from __future__ import annotations

import copy

import pytest
import torch
from literal_clients import mean_state
from torch.nn import functional as F

from unseen.data import Samples
from unseen.engine import Workspace
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.methods.head_gradients.head_matching import head_gradient_variance, mean_head_gradient
from unseen.seeding import torch_generator
from unseen.training import LocalTrainingConfig, Update, batch_positions

PLAN = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.05, momentum=0.5)
STRONG = {"fediir": {"penalty": 0.5, "ema": 0.5}, "fishr": {"penalty": 500.0, "ema": 0.5, "start": 0.0}}


def head_gradients(network, batch):
    """The gradient of each sample's loss by the head, through autograd, sample by sample."""
    features = network.features(batch.inputs)
    return [
        torch.cat(
            [
                part.flatten()
                for part in torch.autograd.grad(
                    F.cross_entropy(network.head(feature[None]), target[None]),
                    [network.head.weight, network.head.bias],
                    create_graph=True,
                )
            ]
        )
        for feature, target in zip(features, batch.targets, strict=True)
    ]


def batches(experiment, client, round, purpose):
    samples, plan = Samples(experiment.data, client.train), experiment.plan
    order = torch_generator(experiment.seed, purpose, client.name, round)
    for positions in batch_positions(len(samples), plan.batch_size, generator=order):
        yield experiment.prepare(samples.gather(positions))


def literal_run(experiment, method, rounds, *, penalty, ema, start=0.0):
    network, reference, running = copy.deepcopy(experiment.network), None, {}
    total = None
    for number in range(1, rounds + 1):
        states, sent = [], []
        for client in experiment.federation:
            local = copy.deepcopy(network).train()
            if method == "fediir":
                own = [
                    torch.stack(head_gradients(local, batch)).mean(0).detach()
                    for batch in batches(experiment, client, number, "head gradient: order")
                ]
                sent.append(torch.stack(own).mean(0))
                local = copy.deepcopy(network).train()
            descent = torch.optim.SGD(local.parameters(), lr=experiment.plan.lr, momentum=0.5)
            for batch in batches(experiment, client, number, "training: order"):
                each = torch.stack(head_gradients(local, batch))
                loss = F.cross_entropy(local(batch.inputs), batch.targets)
                if method == "fediir":
                    distance = each.mean(0) - (0 if total is None else total)
                    loss = loss + penalty * distance.square().sum()
                else:
                    variance = (each - each.mean(0)).square().mean(0)
                    before = running.get(client.name, variance.detach())
                    mixed = ema * before + (1 - ema) * variance
                    running[client.name] = mixed.detach()
                    if reference is not None:
                        loss = loss + penalty * ((mixed - reference) / (1 - ema)).square().mean()
                descent.zero_grad()
                loss.backward()
                descent.step()
            states.append(local.state_dict())
        if method == "fediir":
            mean = torch.stack(sent).mean(0)
            total = (1 - ema) * mean if total is None else ema * total + (1 - ema) * mean
        else:
            reference = torch.stack([running[client.name] for client in experiment.federation]).mean(0)
        network.load_state_dict(mean_state(states, [1.0] * len(states)))
    return network.state_dict()


@pytest.mark.parametrize("method", STRONG)
def test_equals_the_algorithm_written_out(method, make_experiment, go):
    literal = literal_run(make_experiment(method, plan=PLAN), method, 3, **STRONG[method])
    experiment = make_experiment(method, settings=STRONG[method], plan=PLAN)
    layout = Workspace(experiment).flat.layout
    ours, _ = go(experiment, rounds=3)
    plain, _ = go(make_experiment(method, settings={"penalty": 0}, plan=PLAN), "plain", rounds=3)
    found = layout.tensors(ours.weights)
    for name, value in literal.items():
        torch.testing.assert_close(found[name], value, rtol=2e-3, atol=3e-5)
    assert (ours.weights - plain.weights).abs().max() > 1e-3
    extractor = layout.entries[0].slice
    assert not torch.equal(ours.weights[extractor], plain.weights[extractor])


@pytest.mark.parametrize("method", STRONG)
def test_penalty_zero_is_fedavg_to_the_last_bit_and_sends_no_more(method, make_experiment, go):
    ours, records = go(make_experiment(method, settings={"penalty": 0}))
    plain, _ = go(make_experiment("fedavg", settings={"weighting": "uniform"}), "plain")
    assert torch.equal(ours.weights, plain.weights)
    kinds = {line["kind"] for entry in records.entries for line in entry.get("left", ())}
    assert not any("head" in kind for kind in kinds)


def test_what_leaves_is_declared_and_has_the_size_of_the_head(make_experiment, go, rounds_of):
    for method, kind in (("fediir", "mean head gradient"), ("fishr", "variance of head gradients")):
        experiment = make_experiment(method, settings=STRONG[method])
        size = sum(parameter.numel() for parameter in experiment.network.head.parameters())
        _, records = go(experiment, method)
        first, second = rounds_of(records)
        assert {line["kind"]: line["values"] for line in second["left"]}[kind] == size
        assert min(second["diagnostics"]["head_gradient_penalty"].values()) > 0
        assert second["diagnostics"]["mean_statistic_length"] > 0
        assert ("head_gradient_penalty" in first["diagnostics"]) == (method == "fediir")


def test_measuring_leaves_the_statistics_of_batch_norm_alone(make_uneven_experiment, go):
    """A penalty without any weight to speak of, with its extra pass, trains as FedAvg does."""
    ours, _ = go(make_uneven_experiment("fediir", settings={"penalty": 1e-30}))
    plain, _ = go(make_uneven_experiment("fedavg", settings={"weighting": "uniform"}), "plain")
    torch.testing.assert_close(ours.weights, plain.weights, rtol=1e-5, atol=1e-6)


def test_the_gradient_over_training_is_another_and_costs_no_pass(make_experiment, go, monkeypatch):
    passes, weights = {}, {}
    extract = type(make_experiment().network).extract
    for where in ("received", "training"):
        count = passes[where] = []

        def counted(network, inputs, *, taps=False, count=count):
            if network.training:
                count.append(len(inputs))
            return extract(network, inputs, taps=taps)

        monkeypatch.setattr(type(make_experiment().network), "extract", counted)
        settings = {**STRONG["fediir"], "gradient": where}
        weights[where] = go(make_experiment("fediir", settings=settings), where)[0].weights
    assert sum(passes["received"]) == 2 * sum(passes["training"])
    assert not torch.equal(weights["received"], weights["training"])


def test_fishr_waits_for_its_part_of_the_run(make_experiment, go, rounds_of):
    plan = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.05, momentum=0.5, rounds=4)
    experiment = make_experiment("fishr", settings={"penalty": 20.0, "start": 0.5}, plan=plan)
    _, records = go(experiment, rounds=4)
    acted = ["head_gradient_penalty" in record["diagnostics"] for record in rounds_of(records)]
    assert acted == [False, False, True, True]


def test_mean_and_variance_are_those_of_the_samples_gradients():
    generator = torch.Generator().manual_seed(0)
    features, gradients = torch.randn(6, 4, generator=generator), torch.randn(6, 3, generator=generator)
    each = torch.stack(
        [torch.cat([torch.outer(d, f).flatten(), d]) for f, d in zip(features, gradients, strict=True)]
    )
    torch.testing.assert_close(mean_head_gradient(features, gradients), each.mean(0))
    torch.testing.assert_close(head_gradient_variance(features, gradients), each.var(0, correction=0))
    without = head_gradient_variance(features, gradients, bias=False)
    torch.testing.assert_close(without, each.var(0, correction=0)[:12])


def test_a_negative_variance_is_refused():
    extras = {"variance of head gradients": torch.tensor([0.1, -1.0])}
    update = Update(weights=torch.zeros(2), samples=4, steps=1, seen=4, loss=0.0, extras=extras)
    reason = make_method("fishr").explain_unusable_extras(update, plan=PLAN, outputs=2, own=[0])
    assert "negative variance" in reason


@pytest.mark.parametrize("method", STRONG)
def test_regression_works(method, make_experiment, tiny_regression, go):
    settings = {"penalty": 1e-3} | ({"start": 0.0} if method == "fishr" else {})
    checkpoint, _ = go(make_experiment(method, data=tiny_regression, settings=settings))
    assert torch.isfinite(checkpoint.weights).all()


@pytest.mark.parametrize(
    ("method", "settings"),
    [("fediir", {"penalty": -1}), ("fediir", {"ema": 1}), ("fishr", {"start": 1}), ("fishr", {"ema": -1})],
)
def test_impossible_settings_are_refused(method, settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        make_method(method, settings)
