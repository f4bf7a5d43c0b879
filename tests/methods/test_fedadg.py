"""FedADG against its algorithm written out, and who may move whom."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
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
from unseen.models import FlatState
from unseen.models.network import StagedNetwork
from unseen.seeding import global_torch_seed, torch_generator
from unseen.training import LocalTrainingConfig, batch_positions

PLAN = LocalTrainingConfig(epochs=3, batch_size=4, lr=0.05, momentum=0.5, weight_decay=1e-3)
SETTINGS = {"warm_up_epochs": 1, "adversarial_epochs": 2, "adversarial_weight": 0.85}


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


def _literal_score(critic, features, one_hot):
    """sigmoid(W2 relu(W1 [h R ; y] + b1) + b2)."""
    joined = torch.cat([features @ critic["projection"], one_hot], dim=1)
    inner = torch.relu(joined @ critic["hidden.weight"].T + critic["hidden.bias"])
    return torch.sigmoid(inner @ critic["output.weight"].T + critic["output.bias"])


def _literal_feature(generator, noise, one_hot):
    inner = torch.relu(
        F.linear(torch.cat([noise, one_hot], dim=1), generator.hidden.weight, generator.hidden.bias)
    )
    return torch.relu(F.linear(inner, generator.output.weight, generator.output.bias))


def _literal_client(experiment, module, critic):
    """Algorithm 1, ClientUpdate: three optimisers of torch, every gradient cleared before every use."""
    client = experiment.federation[0]
    samples = Samples(experiment.data, client.train)
    network, generator = module.network, module.generator
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

    def batches(epochs, order):
        for _ in range(epochs):
            for positions in batch_positions(len(samples), PLAN.batch_size, generator=order):
                batch = experiment.prepare(samples.gather(positions))
                yield batch.inputs, batch.targets

    network.train()
    for x, y in batches(1, draw("fedadg: warm-up: order")):
        step(sgd_fc, F.cross_entropy(network.head(network.features(x)), y, label_smoothing=0.1))
    noise = draw("fedadg: noise")
    for x, y in batches(2, draw("fedadg: adversarial: order")):
        one_hot = torch.tensor([[float(label == k) for k in range(3)] for label in y])
        h = network.features(x)
        adversarial = ((1 - _literal_score(critic, h, one_hot)) ** 2).mean()
        step(sgd_fc, 0.85 * adversarial + 0.15 * F.cross_entropy(network.head(h), y, label_smoothing=0.1))
        z = torch.rand(len(y), network.feature_size // 2, generator=noise)
        h = copy.deepcopy(network).features(x).detach()
        made = _literal_feature(generator, z, one_hot).detach()
        step(
            sgd_d,
            -((1 - _literal_score(critic, h, one_hot)) ** 2).mean()
            - (_literal_score(critic, made, one_hot) ** 2).mean(),
        )
        made = _literal_feature(generator, z, one_hot)
        step(sgd_g, ((1 - _literal_score(critic, made, one_hot)) ** 2).mean())


@pytest.mark.parametrize("normed", [False, True], ids=["mnist-cnn", "batch norm"])
def test_a_client_does_what_algorithm_1_says(make_experiment, normed):
    experiment = make_experiment("fedadg", settings=SETTINGS, plan=PLAN)
    if normed:
        experiment = replace(experiment, network=_normed_network())
    workspace = Workspace(experiment)
    start, literal = workspace.flat.read(), copy.deepcopy(workspace.module)
    client = experiment.federation[0].name
    critic = {
        name: tensor.clone().requires_grad_(name != "projection")
        for name, tensor in _fresh_discriminator(experiment, client).state_dict().items()
    }
    fixed = critic["projection"].clone()
    state: dict[str, torch.Tensor] = {}
    update = _train(workspace, start, state)
    _literal_client(experiment, literal, critic)
    expected = FlatState(literal).read()
    torch.testing.assert_close(update.weights, expected, rtol=1e-4, atol=1e-6)
    assert (update.weights - start).abs().max() > 0.01
    discriminator = FlatState(_fresh_discriminator(experiment, client))
    discriminator.load(state["discriminator"])
    for name, tensor in discriminator.module.state_dict().items():
        torch.testing.assert_close(tensor, critic[name].detach(), rtol=1e-4, atol=1e-6)
    assert torch.equal(discriminator.module.projection, fixed)
    if normed:
        counter = literal.network.get_buffer("stages.conv.1.num_batches_tracked")
        assert int(counter) == update.steps


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
        return discriminator_loss(critic(extracted, labels), critic(generated, labels), form="equation-2")

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
    before = generator_loss(critic(made, labels), goal="recognised")
    training.generator_step(labels, made, critic)
    training._noise.manual_seed(0)
    assert generator_loss(critic(training.reference(labels), labels), goal="recognised") < before
