"""FedNova against the normalised gradients of its paper, taken step by step, and the bias that it removes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from literal_clients import assert_state, layout_of, mean_state, start_of, trained_names, visit
from torch import nn

from unseen.aggregation import ServerWork, Updates
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.methods.fednova import NORMALISER
from unseen.models import FlatState
from unseen.training import LocalTrainingConfig, effective_steps


def literal_normaliser(steps, rho):
    """a_i of SGD with momentum: the j-th gradient's weight is 1 + rho + ... + rho^(steps - j)."""
    return [sum(rho**power for power in range(steps - j)) for j in range(steps)]


def plan_of(momentum, **options):
    return LocalTrainingConfig(epochs=2, batch_size=4, lr=0.05, momentum=momentum, **options)


@given(steps=st.integers(1, 60), rho=st.floats(0, 0.97))
def test_effective_steps_are_the_sum_of_the_weights(steps, rho):
    assert effective_steps(steps, momentum=rho) == pytest.approx(
        sum(literal_normaliser(steps, rho)), rel=1e-9
    )


@given(steps=st.integers(1, 30), rho=st.floats(0, 0.97))
def test_constant_gradients_move_sgd_by_the_effective_steps(steps, rho):
    value = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    descent = torch.optim.SGD([value], lr=0.1, momentum=rho)
    for _ in range(steps):
        value.grad = torch.ones_like(value)
        descent.step()
    assert -value.item() == pytest.approx(0.1 * effective_steps(steps, momentum=rho), rel=1e-9)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_equals_the_literal_algorithm(make_uneven_experiment, go, momentum, weighting):
    plan = plan_of(momentum)
    ours, _ = go(make_uneven_experiment("fednova", plan=plan, settings={"weighting": weighting}), rounds=2)
    literal = make_uneven_experiment("fednova", plan=plan)
    state, names = start_of(literal), trained_names(literal)
    for number in (1, 2):
        visits = [visit(literal, client, round=number, start=state) for client in "abc"]
        assert len({each.steps for each in visits}) > 1
        counts = [each.samples if weighting == "samples" else 1 for each in visits]
        shares = [count / sum(counts) for count in counts]
        weights = [literal_normaliser(each.steps, momentum) for each in visits]
        effective = sum(share * sum(own) for share, own in zip(shares, weights, strict=True))
        merged = mean_state([each.state for each in visits], counts)
        for name in names:
            normalised = [
                sum(a * gradient[name] for a, gradient in zip(own, each.gradients, strict=True)) / sum(own)
                for own, each in zip(weights, visits, strict=True)
            ]
            mean = sum(share * own for share, own in zip(shares, normalised, strict=True))
            merged[name] = state[name] - effective * plan.lr * mean
        state = merged
    assert_state(ours.weights, state, layout_of(literal))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_equal_steps_give_fedavg(make_uneven_experiment, go, momentum):
    """Clients of unequal size that take the same number of steps."""
    plan = plan_of(momentum, batches_per_epoch=3)
    ours, _ = go(make_uneven_experiment("fednova", plan=plan), "ours", rounds=3)
    fedavg, _ = go(make_uneven_experiment("fedavg", plan=plan), "fedavg", rounds=3)
    torch.testing.assert_close(ours.weights, fedavg.weights, rtol=1e-6, atol=1e-6)


def test_unequal_steps_give_another_model_and_say_why(make_uneven_experiment, go, rounds_of):
    plan = plan_of(0.5)
    ours, records = go(make_uneven_experiment("fednova", plan=plan), "ours", rounds=1)
    fedavg, _ = go(make_uneven_experiment("fedavg", plan=plan), "fedavg", rounds=1)
    assert (ours.weights - fedavg.weights).abs().max() > 1e-4
    found = rounds_of(records)[0]["diagnostics"]
    steps = found["effective_steps"]
    assert steps["b"] < steps["a"] == steps["c"]
    assert steps["b"] < found["tau_eff"] < steps["a"] and found["step_rate"] > 1


def run_quadratics(method, *, rounds=4000):
    """Two clients that pull one parameter to 0 and 1 with 1 and 9 small steps a round; where does it end?"""
    flat = FlatState(nn.Linear(1, 1, bias=False))
    chosen, weights, targets = make_method(method), torch.zeros(1), torch.tensor([0.0, 1.0])
    steps = torch.tensor([1.0, 9.0], dtype=torch.float64)
    for number in range(1, rounds + 1):
        ends = targets + (weights - targets) * (1 - 0.001) ** steps.float()
        updates = Updates(
            clients=("a", "b"),
            rows=ends[:, None],
            samples=torch.ones(2, dtype=torch.float64),
            steps=steps,
            extras=tuple({NORMALISER: count} for count in steps),
            layout=flat.layout,
        )
        weights = chosen.server(ServerWork(round=number, seed=0, weights=weights, updates=updates))
    return float(weights)


def test_the_objective_is_met_that_fedavg_misses():
    """Objective inconsistency: with unequal steps FedAvg ends at 0.9 although both clients count alike."""
    assert run_quadratics("fedavg") == pytest.approx(0.9, abs=0.01)
    assert run_quadratics("fednova") == pytest.approx(0.5, abs=0.01)


def test_adam_is_refused_with_the_reason(make_experiment, go):
    with pytest.raises(UsageError, match=r"fednova.*gradients.*adam.*--optimizer sgd"):
        go(
            make_experiment(
                "fednova",
                plan=LocalTrainingConfig(epochs=1, batch_size=64, momentum=0.5, optimizer="adam", lr=0.001),
            )
        )


def test_regression(make_experiment, tiny_regression, go, rounds_of):
    plan = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.01, momentum=0.5)
    ours, records = go(make_experiment("fednova", data=tiny_regression, plan=plan), rounds=4)
    losses = [record["loss"] for record in rounds_of(records)]
    assert torch.isfinite(ours.weights).all() and losses[-1] < losses[0]
