"""The dual of CAGrad: optimality conditions, a grid over the simplex, and the released approximate solver."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from unseen.aggregation import match_updates, solve_matching
from unseen.aggregation.gradient_matching import SMOOTHING


def gram_of(clients: int, seed: int, *, common: float = 0.5, numbers: int = 40) -> torch.Tensor:
    """Inner products of random updates of different lengths that share a direction."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(clients, numbers, generator=generator, dtype=torch.float64)
    vectors += common * torch.randn(numbers, generator=generator, dtype=torch.float64)
    vectors *= 0.2 + torch.rand(clients, 1, generator=generator, dtype=torch.float64)
    return vectors @ vectors.t()


def objective(weights: np.ndarray, gram: np.ndarray, radius: float) -> float:
    """The dual in units of the mean length, as CAGrad's code has it."""
    scaled = gram / np.sqrt(gram.diagonal()).mean() ** 2
    with_mean = scaled.mean(axis=1)
    pull = radius * np.sqrt(with_mean.mean() + SMOOTHING)
    return float(weights @ with_mean + pull * np.sqrt(weights @ scaled @ weights + SMOOTHING))


def released_solver(gram: np.ndarray, radius: float) -> tuple[np.ndarray, float]:
    """FedOMG's solver: 20 steps of SGD with momentum on softmax weights, of which the best are kept."""
    clients = len(gram)
    lengths = torch.from_numpy(gram)
    lengths = lengths / (lengths.diagonal() + 1e-4).sqrt().mean() ** 2
    with_mean = lengths.mean(dim=1)
    pull = radius * (with_mean.mean() + 1e-4).sqrt()
    scores = torch.zeros(clients, dtype=torch.float64, requires_grad=True)
    descent = torch.optim.SGD([scores], lr=50 if clients == 50 else 25, momentum=0.5)
    best, lowest = scores.detach().clone(), float("inf")
    for _ in range(21):
        descent.zero_grad()
        own = torch.softmax(scores, 0)
        value = own @ with_mean + pull * (own @ lengths @ own + 1e-4).sqrt()
        if value.item() < lowest:
            best, lowest = scores.detach().clone(), value.item()
        value.backward()
        descent.step()
    own = torch.softmax(best, 0)
    return own.numpy(), float(pull / ((own @ lengths @ own + 1e-4).sqrt() + 1e-4))


@given(
    clients=st.integers(1, 12), seed=st.integers(0, 999), radius=st.floats(0.05, 0.95), common=st.floats(0, 2)
)
def test_the_solution_is_optimal(clients, seed, radius, common):
    """On the simplex, slopes of a minimum are equal where weights are positive, and not below elsewhere."""
    gram = gram_of(clients, seed, common=common).numpy()
    found = solve_matching(gram, radius=radius)
    weights = found.weights
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)
    scaled = gram / np.sqrt(gram.diagonal()).mean() ** 2
    with_mean = scaled.mean(axis=1)
    pull = radius * np.sqrt(with_mean.mean() + SMOOTHING)
    length = np.sqrt(weights @ scaled @ weights + SMOOTHING)
    slopes = with_mean + pull * scaled @ weights / length
    assert weights @ (slopes - slopes.min()) < 1e-6
    assert found.factor == pytest.approx(pull / length)


def test_no_point_of_a_grid_is_better():
    gram = gram_of(3, 4).numpy()
    lowest = objective(solve_matching(gram, radius=0.5).weights, gram, 0.5)
    steps = np.linspace(0, 1, 101)
    grid = [np.array([one, two, 1 - one - two]) for one in steps for two in steps if one + two <= 1]
    assert lowest <= min(objective(point, gram, 0.5) for point in grid) + 1e-12


@pytest.mark.parametrize(("clients", "near"), [(2, 1e-3), (3, 0.02), (10, 0.1), (100, None)])
def test_the_released_solver_comes_near_with_few_clients_and_never_below(clients, near):
    gram = gram_of(clients, clients, numbers=1000).numpy()
    exact, approximate = solve_matching(gram, radius=0.5).weights, released_solver(gram, 0.5)[0]
    assert objective(exact, gram, 0.5) <= objective(approximate, gram, 0.5) + 1e-9
    if near is None:
        assert objective(approximate, gram, 0.5) > 1.1 * objective(exact, gram, 0.5), "20 steps are too few"
    else:
        assert np.abs(exact - approximate).max() < near


@pytest.mark.parametrize("seed", range(5))
def test_the_released_step_for_three_clients(seed):
    """Its whole formula, with the solver's approximation: coefficients agree to a few per cent."""
    gram, shares = gram_of(3, seed, common=1.0, numbers=1000), torch.tensor([0.45, 0.35, 0.2]).double()
    ours = match_updates(gram, shares=shares, radius=0.5, rate=0.5, scaling="as-released").coefficients[0]
    own = (gram * torch.outer(shares, shares)).numpy()
    weights, factor = released_solver(own, 0.5)
    released = 0.5 * shares * torch.from_numpy(1 / 3 + factor * weights) / 1.25
    torch.testing.assert_close(ours, released, rtol=0, atol=0.02 * float(released.sum()))


@given(clients=st.integers(1, 9), radius=st.floats(0, 0.9), seed=st.integers(0, 99))
def test_clients_that_agree_make_the_step_of_fedavg(clients, radius, seed):
    shares = torch.rand(clients, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    shares /= shares.sum()
    same = torch.full((clients, clients), 2.5, dtype=torch.float64)
    found = match_updates(same, shares=shares, radius=radius, rate=1.0).coefficients[0]
    assert float(found.sum()) == pytest.approx(1, abs=1e-6) or len(set(shares.tolist())) > 1
    even = match_updates(same, radius=radius, rate=0.3).coefficients[0]
    assert float(even.sum()) == pytest.approx(0.3, abs=1e-6)
    released = match_updates(same, radius=radius, rate=0.3, scaling="as-released").coefficients[0]
    expected = 0.3 * (1 + radius) / (1 + radius**2) / clients
    assert float(released.sum()) == pytest.approx(expected, rel=1e-3)


@given(clients=st.integers(2, 6), seed=st.integers(0, 99), unit=st.sampled_from([1e-8, 1e-3, 1.0, 1e6]))
def test_the_unit_of_the_updates_does_not_matter(clients, seed, unit):
    gram = gram_of(clients, seed)
    one, other = (match_updates(each, radius=0.5, rate=1.0).coefficients for each in (gram, unit * gram))
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_the_worst_served_client_gains():
    """One client against two that agree: the smallest inner product with the step rises."""
    gram = torch.tensor([[1.0, 0.9, -0.3], [0.9, 1.0, -0.3], [-0.3, -0.3, 1.0]], dtype=torch.float64)
    mean = gram.mean(dim=1)
    found = match_updates(gram, radius=0.5, rate=1.0)
    assert found.conflicts == 2
    assert found.steps > 0
    assert (gram @ found.coefficients[0]).min() > mean.min() + 0.1


@pytest.mark.parametrize("gram", [torch.zeros(3, 3), torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), torch.eye(1)])
def test_updates_without_a_length_or_a_mean_are_no_division_by_zero(gram):
    found = match_updates(gram.double(), radius=0.5, rate=1.0)
    assert torch.isfinite(found.coefficients).all()
