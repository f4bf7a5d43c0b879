"""Optimizers on the flat vector are torch's own, plugins add more, and methods ask for what they need."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from unseen.errors import UsageError
from unseen.models import FlatState
from unseen.training import LocalTrainingConfig
from unseen.training.optimizers import OPTIMIZERS, Optimizer, make_optimizer, require_sums_of_gradients

PLAN = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.01, momentum=0.9)
TORCH = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


def _trained(plan, *, in_gradient=False, steps=10):
    """Train a small network with our optimizer on the flat vector; return it and its twin before training."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 5))
    twin = copy.deepcopy(network)
    flat = FlatState(network)
    optimizer = make_optimizer(plan, flat.parameters, flat.gradient, in_gradient=in_gradient)
    for inputs in _inputs(steps):
        optimizer.clear()
        network(inputs).square().mean().backward()
        optimizer.step()
    return network, twin


def _inputs(steps):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(6, 3, 8, 8, generator=generator) for _ in range(steps)]


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize("in_gradient", [False, True])
def test_flat_optimizers_equal_torchs(name, weight_decay, in_gradient):
    plan = replace(PLAN, optimizer=name, weight_decay=weight_decay)
    ours, theirs = _trained(plan, in_gradient=in_gradient)
    momentum = {"momentum": 0.9} if name == "sgd" else {}
    expected = TORCH[name](theirs.parameters(), lr=0.01, weight_decay=weight_decay, **momentum)
    for inputs in _inputs(10):
        expected.zero_grad()
        theirs(inputs).square().mean().backward()
        expected.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_is_to_the_bit_the_formula_that_recorded_runs_used(weight_decay):
    generator = torch.Generator().manual_seed(0)
    parameters = torch.randn(10_001, generator=generator)
    expected, gradient = parameters.clone(), torch.zeros_like(parameters)
    mean, square = torch.zeros_like(parameters), torch.zeros_like(parameters)
    plan = replace(PLAN, optimizer="adam", weight_decay=weight_decay)
    optimizer = make_optimizer(plan, parameters, gradient)
    for step in range(1, 31):
        optimizer.clear()
        drawn = torch.randn(parameters.shape, generator=generator)
        gradient.add_(drawn)
        optimizer.step()
        if weight_decay:
            drawn = drawn.add_(expected, alpha=weight_decay)
        mean.lerp_(drawn, 1 - 0.9)
        square.mul_(0.999).addcmul_(drawn, drawn, value=1 - 0.999)
        denominator = square.sqrt().div_(math.sqrt(1 - 0.999**step)).add_(1e-8)
        expected.addcdiv_(mean, denominator, value=-0.01 / (1 - 0.9**step))
        assert torch.equal(parameters, expected)


def test_a_registered_optimizer_is_used_by_its_name(monkeypatch):
    OPTIMIZERS["sgd"]
    monkeypatch.setitem(
        OPTIMIZERS._entries, "nadam", Optimizer(torch.optim.NAdam, "Adam with Nesterov momentum")
    )
    plan = replace(PLAN, optimizer="nadam")
    ours, theirs = _trained(plan, steps=3)
    expected = torch.optim.NAdam(theirs.parameters(), lr=0.01)
    for inputs in _inputs(3):
        expected.zero_grad()
        theirs(inputs).square().mean().backward()
        expected.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", TORCH)
def test_only_sgd_serves_methods_that_need_sums_of_gradients(name):
    plan = replace(PLAN, optimizer=name)
    if name == "sgd":
        require_sums_of_gradients(plan, method="fednova")
    else:
        with pytest.raises(UsageError, match=rf"fednova.*not for {name}; use --optimizer sgd"):
            require_sums_of_gradients(plan, method="fednova")


def test_an_unknown_optimizer_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="adam"):
        replace(PLAN, optimizer="adan")


@pytest.mark.parametrize("name", TORCH)
def test_every_optimizer_says_what_it_is_and_can_be_searched(name):
    entry = OPTIMIZERS[name]
    assert entry.summary and "\n" not in entry.summary
    assert set(entry.search) == {"lr", "weight_decay"}
