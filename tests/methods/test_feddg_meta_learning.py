"""The episodic step, against deep copies that really take the trial step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from unseen.methods.feddg.meta_learning import episodic_losses

INNER_LR = 0.3


@pytest.fixture
def parts():
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    batches = [torch.randn(5, 6, generator=generator, dtype=torch.float64) for _ in range(2)]
    return module, batches, torch.tensor([0, 1, 2, 1, 0])


def run_episode(module, batches, targets, *, first_order, inner_lr=INNER_LR):
    def loss(outputs):
        return functional.cross_entropy(outputs, targets)

    module.zero_grad()
    episode = episodic_losses(
        module,
        loss(module(batches[0])),
        batches[1],
        test_loss=loss,
        inner_lr=inner_lr,
        first_order=first_order,
    )
    sum(episode).backward()
    return episode, [p.grad.clone() for p in module.parameters()]


def test_first_order_is_the_gradient_here_plus_the_gradient_at_the_trial_weights(parts):
    module, (first, second), targets = parts
    here, there = copy.deepcopy(module), copy.deepcopy(module)
    train = functional.cross_entropy(here(first), targets)
    train.backward()
    with torch.no_grad():
        for trial, start in zip(there.parameters(), here.parameters(), strict=True):
            trial.sub_(INNER_LR * start.grad)
    test = functional.cross_entropy(there(second), targets)
    test.backward()
    episode, gradients = run_episode(module, (first, second), targets, first_order=True)
    torch.testing.assert_close(torch.stack(episode), torch.stack([train, test]))
    for found, a, b in zip(gradients, here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(found, a.grad + b.grad)


def test_second_order_is_the_slope_of_the_sum(parts):
    module, (first, second), targets = parts

    def value():
        here, there = copy.deepcopy(module), copy.deepcopy(module)
        train = functional.cross_entropy(here(first), targets)
        train.backward()
        with torch.no_grad():
            for trial, start in zip(there.parameters(), here.parameters(), strict=True):
                trial.sub_(INNER_LR * start.grad)
            return float(train.detach() + functional.cross_entropy(there(second), targets))

    _, gradients = run_episode(module, (first, second), targets, first_order=False)
    _, of_first_order = run_episode(module, (first, second), targets, first_order=True)
    step = 1e-5
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        for place in range(0, parameter.numel(), 5):
            with torch.no_grad():
                parameter.view(-1)[place] += step
            above = value()
            with torch.no_grad():
                parameter.view(-1)[place] -= 2 * step
            below = value()
            with torch.no_grad():
                parameter.view(-1)[place] += step
            assert float(gradient.view(-1)[place]) == pytest.approx((above - below) / (2 * step), abs=1e-7)
    assert max((a - b).abs().max() for a, b in zip(gradients, of_first_order, strict=True)) > 1e-3


@pytest.mark.parametrize("first_order", [True, False])
def test_the_trial_step_matters_and_leaves_the_weights_alone(parts, first_order):
    module, batches, targets = parts
    before = copy.deepcopy(module.state_dict())
    tried, _ = run_episode(module, batches, targets, first_order=first_order)
    still, _ = run_episode(module, batches, targets, first_order=first_order, inner_lr=1e-12)
    assert (tried.test - still.test).abs() > 1e-3
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("first_order", [True, False])
def test_frozen_and_unused_parameters_are_no_hindrance(parts, first_order):
    module, (first, second), targets = parts
    module[0].bias.requires_grad_(False)
    module.register_parameter("idle", nn.Parameter(torch.ones(2, dtype=torch.float64)))

    def loss(outputs):
        return functional.cross_entropy(outputs, targets)

    train = loss(module(first))
    sum(
        episodic_losses(module, train, second, test_loss=loss, inner_lr=1.0, first_order=first_order)
    ).backward()
    assert module[0].bias.grad is None
    assert module.idle.grad is None or not module.idle.grad.any()
    assert module[2].weight.grad.abs().max() > 0
