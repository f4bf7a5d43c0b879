"""FedADG in all its readings against their algorithms written out, and who may move whom."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from unseen.data import Samples
from unseen.engine import RoundStart, Workspace
from unseen.methods.fedadg.adversarial_training import (
    LocalTraining,
    discriminator_loss,
    extractor_loss,
    generator_loss,
)
from unseen.methods.fedadg.fedadg_networks import make_discriminator
from unseen.methods.fedadg.readings import READINGS, RateWarmUp
from unseen.models import FlatState
from unseen.models.network import StagedNetwork
from unseen.seeding import global_torch_seed, torch_generator
from unseen.training import LocalTrainingConfig, batch_positions

PLAN = LocalTrainingConfig(epochs=3, batch_size=4, lr=0.05, momentum=0.5, weight_decay=1e-3)
SETTINGS = {"warm_up_epochs": 3, "adversarial_epochs": 2, "adversarial_weight": 0.85, "rate_warm_up": 4}
LABELS = {"coherent": 1.0, "printed": 1.0, "released-pacs": 0.7, "released-vlcs": 0.6}
SMOOTHING = {"coherent": 0.1, "printed": 0.1, "released-pacs": 0.1, "released-vlcs": 0.2}


def _normed_network():
    """A small network with batch norm, whose statistics the extra pass for D must leave alone."""
    with global_torch_seed(3, "test network"):
        stages = {
            "conv": nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
            "hidden": nn.Sequential(nn.Flatten(), nn.Linear(6 * 9, 12), nn.ReLU()),
        }
        return StagedNetwork(stages, head=nn.Linear(12, 3))


def _train(workspace, start, state, *, position=0, round=1):
    return workspace.train_client(position, state, RoundStart(round, start))


def _fresh_discriminator(experiment, client):
    with global_torch_seed(experiment.seed, "fedadg: discriminator", client):
        return make_discriminator(experiment.network, experiment.method.settings)


def _literal_score(critic, features, one_hot, *, reading):
    """sigmoid(W2 relu(W1 [h R ; y] + b1) + b2); in the program for VLCS the projection sees [h ; y]."""
    if reading == "released-vlcs":
        joined = torch.cat([features, one_hot], dim=1) @ critic["projection"]
    else:
        joined = torch.cat([features @ critic["projection"], one_hot], dim=1)
    inner = torch.relu(joined @ critic["hidden.weight"].T + critic["hidden.bias"])
    return torch.sigmoid(inner @ critic["output.weight"].T + critic["output.bias"])


def _literal_feature(generator, noise, one_hot):
    inner = torch.relu(
        F.linear(torch.cat([noise, one_hot], dim=1), generator.hidden.weight, generator.hidden.bias)
    )
    return torch.relu(F.linear(inner, generator.output.weight, generator.output.bias))


def _literal_losses(reading, on_extracted, on_generated):
    """The losses of D and of G: least squares and D^2, or equations 2 and 4."""
    if reading in ("coherent", "released-pacs"):
        return (on_extracted**2).mean() + ((1 - on_generated) ** 2).mean(), (on_generated**2).mean()
    return -((1 - on_extracted) ** 2).mean() - (on_generated**2).mean(), ((1 - on_generated) ** 2).mean()


def _literal_client(experiment, module, critic, *, reading):
    """ClientUpdate: three optimisers of torch, every gradient cleared before every use.

    Algorithm 1 updates F and C, then D, then G. The programs update D first, on features computed in
    evaluation mode; their schedulers count 1, 1, 1 in three first epochs, then 2 and 4 for F and C, 1 and 1
    for D and G.
    """
    client = experiment.federation[0]
    samples = Samples(experiment.data, client.train)
    network, generator, released = module.network, module.generator, reading.startswith("released")
    options = {"momentum": PLAN.momentum, "weight_decay": PLAN.weight_decay}
    sgd_fc = torch.optim.SGD(network.parameters(), lr=PLAN.lr, **options)
    sgd_g = torch.optim.SGD(generator.parameters(), lr=0.7 * PLAN.lr, **options)
    sgd_d = torch.optim.SGD([t for t in critic.values() if t.requires_grad], lr=0.7 * PLAN.lr, **options)

    def step(optimiser, loss):
        for every in (sgd_fc, sgd_g, sgd_d):
            every.zero_grad()
        loss.backward()
        optimiser.step()

    def draw(purpose):
        return torch_generator(experiment.seed, purpose, client.name, 1)

    def batches(order, rates):
        for of_network, of_others in rates:
            sgd_fc.param_groups[0]["lr"] = PLAN.lr * of_network / 4
            for other in (sgd_g, sgd_d):
                other.param_groups[0]["lr"] = 0.7 * PLAN.lr * of_others / 4
            for positions in batch_positions(len(samples), PLAN.batch_size, generator=order):
                batch = experiment.prepare(samples.gather(positions))
                yield batch.inputs, batch.targets

    def features(x):
        return (network.body if released else network).extract(x)[0]

    def error(h, y):
        logits = network.head(network.layer(h)) if released else network.head(h)
        return F.cross_entropy(logits, y, label_smoothing=SMOOTHING[reading])

    def update_f(x, y, one_hot):
        h = features(x)
        adversarial = ((1 - _literal_score(critic, h, one_hot, reading=reading)) ** 2).mean()
        step(sgd_fc, 0.85 * adversarial + 0.15 * error(h, y))

    network.train()
    for x, y in batches(draw("fedadg: warm-up: order"), [(1, 1), (1, 1), (1, 1)]):
        step(sgd_fc, error(features(x), y))
    noise = draw("fedadg: noise")
    for x, y in batches(draw("fedadg: adversarial: order"), [(2, 1), (4, 1)]):
        one_hot = torch.tensor([[LABELS[reading] * (label == k) for k in range(3)] for label in y.tolist()])
        if not released:
            update_f(x, y, one_hot)
        z = torch.rand(len(y), network.feature_size // 2, generator=noise)
        buffers = copy.deepcopy(network.state_dict())
        network.train(not released)
        h = features(x).detach()
        network.load_state_dict(buffers)
        network.train()
        made = _literal_feature(generator, z, one_hot).detach()
        scores = [_literal_score(critic, each, one_hot, reading=reading) for each in (h, made)]
        step(sgd_d, _literal_losses(reading, *scores)[0])
        if released:
            update_f(x, y, one_hot)
        if reading != "released-vlcs":
            made = _literal_feature(generator, z, one_hot)
            score = _literal_score(critic, made, one_hot, reading=reading)
            step(sgd_g, _literal_losses(reading, score, score)[1])


@pytest.mark.parametrize("reading", list(READINGS))
@pytest.mark.parametrize("normed", [False, True], ids=["mnist-cnn", "batch norm"])
def test_a_client_does_what_the_reading_says(make_experiment, normed, reading):
    experiment = make_experiment("fedadg", settings={**SETTINGS, "reading": reading}, plan=PLAN)
    if normed:
        experiment = replace(experiment, network=_normed_network())
    workspace = Workspace(experiment)
    start, literal = workspace.flat.read(), copy.deepcopy(workspace.module)
    client = experiment.federation[0].name
    released = reading.startswith("released")
    critic = {
        name: tensor.clone().requires_grad_(released or name != "projection")
        for name, tensor in _fresh_discriminator(experiment, client).state_dict().items()
    }
    drawn = critic["projection"].detach().clone()
    state: dict[str, torch.Tensor] = {}
    update = _train(workspace, start, state)
    _literal_client(experiment, literal, critic, reading=reading)
    expected = FlatState(literal).read()
    torch.testing.assert_close(update.weights, expected, rtol=1e-4, atol=1e-6)
    assert (update.weights - start).abs().max() > 0.01
    discriminator = FlatState(_fresh_discriminator(experiment, client))
    discriminator.load(state["discriminator"])
    for name, tensor in discriminator.module.state_dict().items():
        torch.testing.assert_close(tensor, critic[name].detach(), rtol=1e-4, atol=1e-6)
    assert torch.equal(discriminator.module.projection, drawn) is not released
    if normed:
        prefix = "body." if released else ""
        counter = literal.network.get_buffer(f"{prefix}stages.conv.1.num_batches_tracked")
        assert int(counter) == update.steps
    generator = [e for e in workspace.flat.layout.entries if e.name.startswith("generator.")]
    still = all(torch.equal(entry.view(update.weights), entry.view(start)) for entry in generator)
    assert still is (reading == "released-vlcs"), "a detached generator never learns"


def test_rates_of_the_released_programs_are_those_of_their_schedulers():
    """PACS: 0.0001 to 0.0009 of a nominal 0.01; VLCS: 0.000002 to 0.000028 of 0.001."""
    pacs, vlcs = RateWarmUp(100, before=3), RateWarmUp(500, before=5)
    assert [round(100 * pacs.of_classification(epoch)) for epoch in range(3)] == [1, 1, 1]
    assert [round(100 * pacs.of_network(epoch)) for epoch in range(7)] == [2, 4, 5, 6, 7, 8, 9]
    assert [round(100 * pacs.of_opponents(epoch)) for epoch in range(7)] == [1, 1, 2, 3, 4, 5, 6]
    assert [round(500 * vlcs.of_classification(epoch)) for epoch in range(5)] == [1, 1, 1, 2, 3]
    assert [round(500 * vlcs.of_network(epoch)) for epoch in (0, 1, 9)] == [4, 6, 14]


@given(st.floats(0.01, 0.99))
def test_only_least_squares_is_content_where_features_cannot_be_told_apart(score):
    """Equation 2 is concave: of all equal scores, 1/2 is its worst; for least squares it is the best."""
    same, half = torch.tensor([score], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)
    squares, printed = (
        [discriminator_loss(each, each, form=form) for each in (same, half)]
        for form in ("least-squares", "equation-2")
    )
    assert squares[0] >= squares[1] and printed[0] <= printed[1]


def test_the_losses_are_the_papers():
    extracted, generated = torch.tensor([0.2, 0.6]), torch.tensor([0.9, 0.5])
    assert discriminator_loss(extracted, generated, form="equation-2") == pytest.approx(-(0.4 + 0.53))
    assert discriminator_loss(extracted, generated, form="least-squares") == pytest.approx(0.2 + 0.13)
    assert extractor_loss(extracted) == pytest.approx((0.64 + 0.16) / 2)
    assert generator_loss(generated, goal="recognised") == pytest.approx((0.01 + 0.25) / 2)
    assert generator_loss(generated, goal="mistaken") == pytest.approx((0.81 + 0.25) / 2)


@pytest.fixture
def bench(make_experiment):
    """A client's three parts and a batch, with the adversarial term alone for the extractor."""
    plan = replace(PLAN, weight_decay=0)
    experiment = make_experiment("fedadg", settings={"adversarial_weight": 1.0}, plan=plan)
    workspace = Workspace(experiment)
    held = []
    experiment.method.client = lambda work: held.append(work) or work.update()
    _train(workspace, workspace.flat.read(), {})
    discriminator = FlatState(_fresh_discriminator(experiment, held[0].client))
    training = LocalTraining(
        held[0], experiment.method.settings, shared=workspace.module, discriminator=discriminator
    )
    return training, next(held[0].batches()), discriminator


def _act(training, batch, discriminator, who):
    labels, critic = training.labels(batch), discriminator.module
    generated = training.reference(labels)
    if who == "network":
        training.extractor_step(batch, labels, critic)
    elif who == "discriminator":
        training.discriminator_step(batch, labels, generated.detach(), critic)
    else:
        training.generator_step(labels, generated, critic)


@pytest.mark.parametrize("who", ["network", "discriminator", "generator"])
def test_each_loss_moves_its_own_part_and_no_other(bench, who):
    training, batch, discriminator = bench
    shared = training.shared

    def parts():
        return {
            "network": torch.cat([p.detach().flatten() for p in shared.network.parameters()]),
            "generator": torch.cat([p.detach().flatten() for p in shared.generator.parameters()]),
            "discriminator": discriminator.read(),
        }

    gradients = {
        "network": training.network.gradient,
        "generator": training.generator.gradient,
        "discriminator": discriminator.gradient,
    }
    before = parts()
    _act(training, batch, discriminator, who)
    after = parts()
    for part in before:
        assert torch.equal(before[part], after[part]) is (part != who), part
        assert bool(gradients[part].any()) is (part == who), part


def test_the_adversarial_term_reaches_every_layer_of_the_extractor_and_not_the_classifier(bench):
    training, batch, discriminator = bench
    _act(training, batch, discriminator, "network")
    for name, parameter in training.shared.network.named_parameters():
        assert bool(parameter.grad.any()) is (not name.startswith("head.")), name
    _act(training, batch, discriminator, "generator")
    assert all(bool(parameter.grad.any()) for parameter in training.shared.generator.parameters())
    _act(training, batch, discriminator, "discriminator")
    assert all(bool(parameter.grad.any()) for parameter in discriminator.module.parameters())


def test_each_step_lowers_its_own_loss(bench):
    training, batch, discriminator = bench
    labels, critic = training.labels(batch), discriminator.module
    generated = training.reference(labels).detach()
    extracted = training.shared.network.features(batch.inputs).detach()

    def loss_of_d():
        return discriminator_loss(critic(extracted, labels), critic(generated, labels), form="least-squares")

    def loss_of_f():
        return extractor_loss(critic(training.shared.network.features(batch.inputs), labels))

    before = loss_of_d()
    training.discriminator_step(batch, labels, generated, critic)
    assert loss_of_d() < before
    before = loss_of_f()
    training.extractor_step(batch, labels, critic)
    assert loss_of_f() < before
    training._noise.manual_seed(0)
    made = training.reference(labels)
    before = generator_loss(critic(made, labels), goal="mistaken")
    training.generator_step(labels, made, critic)
    training._noise.manual_seed(0)
    assert generator_loss(critic(training.reference(labels), labels), goal="mistaken") < before
