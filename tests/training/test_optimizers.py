"""Optimizers on the flat vector are torch's own, plugins add more, and methods ask for what they need."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unseen.errors import UsageError
from unseen.models import FlatState
from unseen.training import LocalTrainingConfig
from unseen.training.optimizers import (
    OPTIMIZERS,
    Optimizer,
    make_optimizer,
    require_sums_of_gradients,
    scale_rates,
    split_places,
)

PLAN = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.01, momentum=0.9)
TORCH = {
    "sgd": torch.optim.SGD,
    "sgd-nesterov": partial(torch.optim.SGD, nesterov=True),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


def _trained(plan, *, in_gradient=False, steps=10, head=(), factors=None):
    """Train a small network with our optimizer on the flat vector; return it and its twin before training.

    head     names of the head's tensors
    factors  of the learning rate, one per step
    """
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 5))
    twin = copy.deepcopy(network)
    flat = FlatState(network)
    places = [entry.slice for entry in flat.layout.entries if entry.name in head]
    optimizer = make_optimizer(plan, flat.parameters, flat.gradient, in_gradient=in_gradient, head=places)
    for step, inputs in enumerate(_inputs(steps)):
        if factors is not None:
            scale_rates([optimizer], factors[step])
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
    momentum = {"momentum": 0.9} if name.startswith("sgd") else {}
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
@pytest.mark.parametrize("in_gradient", [False, True])
def test_a_head_rate_equals_torchs_parameter_groups(name, in_gradient):
    plan = replace(PLAN, optimizer=name, weight_decay=0.05, head_lr=4.0)
    ours, theirs = _trained(plan, in_gradient=in_gradient, head=("2.weight", "2.bias"))
    momentum = {"momentum": 0.9} if name.startswith("sgd") else {}
    groups = [{"params": theirs[0].parameters()}, {"params": theirs[2].parameters(), "lr": 0.04}]
    expected = TORCH[name](groups, lr=0.01, weight_decay=0.05, **momentum)
    for inputs in _inputs(10):
        expected.zero_grad()
        theirs(inputs).square().mean().backward()
        expected.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
    plain, _ = _trained(replace(plan, head_lr=1.0), in_gradient=in_gradient)
    assert not torch.allclose(plain[2].weight, ours[2].weight)


@given(
    size=st.integers(1, 30), bounds=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=4)
)
def test_a_vector_is_split_into_head_and_body_without_gaps(size, bounds):
    head = [slice(min(low, size), min(low + length, size)) for low, length in bounds]
    marked = torch.zeros(size, dtype=torch.bool)
    for place in head:
        marked[place] = True
    parts = split_places(head, size)
    assert torch.equal(torch.cat([torch.arange(size)[place] for place, _ in parts]), torch.arange(size))
    assert all(bool((marked[place] == is_head).all()) for place, is_head in parts)
    assert all(first[1] != second[1] for first, second in pairwise(parts))


@pytest.mark.parametrize("name", TORCH)
def test_a_rate_that_changes_between_steps_equals_torchs(name):
    plan = replace(PLAN, optimizer=name, head_lr=2.0)
    ours, theirs = _trained(plan, head=("2.weight", "2.bias"), factors=[0.5, 1.0, 0.1] * 2, steps=6)
    momentum = {"momentum": 0.9} if name.startswith("sgd") else {}
    groups = [{"params": theirs[0].parameters()}, {"params": theirs[2].parameters(), "lr": 0.02}]
    expected = TORCH[name](groups, lr=0.01, weight_decay=0.0, **momentum)
    for inputs, factor in zip(_inputs(6), [0.5, 1.0, 0.1] * 2, strict=True):
        for group, lr in zip(expected.param_groups, (0.01, 0.02), strict=True):
            group["lr"] = lr * factor
        expected.zero_grad()
        theirs(inputs).square().mean().backward()
        expected.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_an_optimizer_of_a_plugin_without_a_changeable_rate_is_refused_where_it_would_have_to_change():
    class Fixed:
        def clear(self):
            pass

        def step(self):
            pass

    with pytest.raises(UsageError, match=r"Fixed has no scale_lr.*--schedule-per round"):
        scale_rates([Fixed()], 0.5)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("name", ["sgd", "sgd-nesterov"])
def test_effective_steps_are_how_far_constant_gradients_lead(name, steps, rho):
    value = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    descent = torch.optim.SGD([value], lr=0.1, momentum=rho, nesterov=name != "sgd" and rho > 0)
    for _ in range(steps):
        value.grad = torch.ones_like(value)
        descent.step()
    found = replace(PLAN, optimizer=name, momentum=rho).effective_steps(steps)
    assert -value.item() == pytest.approx(0.1 * found, rel=1e-9)


@pytest.mark.parametrize("method", ["fednova", "scaffold"])
@pytest.mark.parametrize("options", [{"schedule": "cosine"}, {"warmup": 1}])
def test_methods_that_need_one_rate_per_round_refuse_schedules_within_it(
    make_experiment, go, method, options
):
    plan = replace(PLAN, rounds=3, schedule_per="step", **options)
    with pytest.raises(UsageError, match=rf"{method}.*--schedule-per step.*use --schedule-per round"):
        go(make_experiment(method, plan=plan))


def test_a_constant_rate_may_be_counted_in_any_unit(make_experiment, go):
    go(make_experiment("fednova", plan=replace(PLAN, schedule_per="step")), rounds=1)


@pytest.mark.parametrize("name", TORCH)
def test_only_sgd_serves_methods_that_need_sums_of_gradients(name):
    plan = replace(PLAN, optimizer=name)
    if name.startswith("sgd"):
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
