"""FedOMG on the clients' updates: CAGrad on whole vectors, scalings, buffers, and what becomes FedAvg."""

from __future__ import annotations

import pytest
import torch
from literal_clients import server_work
from torch import nn

from unseen.aggregation import ServerWork, weighted_mean
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.models import FlatState, Kind

MODULE = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3))


def make_work(clients: int = 3, *, same: bool = False) -> ServerWork:
    """A server's round; client k has k + 1 samples."""
    flat = FlatState(MODULE)
    weights = flat.read()
    moves = 0.1 * torch.randn(clients, len(weights), generator=torch.Generator().manual_seed(2))
    rows = weights + (moves[:1].expand(clients, -1) if same else moves + 0.05)
    rows[:, flat.layout.extent(Kind.INTEGER_BUFFER)] = 7
    return server_work(flat, rows)


def literal_step(work: ServerWork, *, c: float, scaling: str, by_samples: bool) -> torch.Tensor:
    """CAGrad's step from whole vectors; its dual by exponentiated gradient descent."""
    trained, clients = work.updates.layout.extent(Kind.PARAMETER), len(work.updates)
    counts = work.updates.samples if by_samples else torch.ones(clients)
    shares = counts / counts.sum()
    changes = work.updates.rows[:, trained].double() - work.weights[trained].double()
    vectors = shares.double()[:, None] * changes * (clients if scaling == "mean-preserving" else 1)
    unit = vectors.norm(dim=1).mean()
    scaled = vectors / unit
    mean = scaled.mean(dim=0)
    radius = c * (mean.square().sum() + 1e-4).sqrt()
    weights = torch.full((clients,), 1 / clients, dtype=torch.float64)
    for _ in range(1500):
        direction = weights @ scaled
        length = (direction.square().sum() + 1e-4).sqrt()
        weights = weights * torch.exp(-(scaled @ mean + radius * scaled @ direction / length))
        weights = weights / weights.sum()
    factor = radius / ((weights @ scaled).square().sum() + 1e-4).sqrt()
    whole = 1 + c if scaling == "mean-preserving" else 1 + c**2
    return (vectors.mean(dim=0) + factor * weights @ vectors) / whole


@pytest.mark.parametrize("scaling", ["mean-preserving", "as-released"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("clients", [2, 3, 6])
def test_equals_the_literal_algorithm(clients, weighting, scaling):
    work = make_work(clients)
    trained = work.updates.layout.extent(Kind.PARAMETER)
    settings = {"scaling": scaling, "server_lr": 0.7, "c": 0.4}
    merged = make_method("fedomg", settings, weighting=weighting).server(work)
    step = literal_step(work, c=0.4, scaling=scaling, by_samples=weighting == "samples")
    expected, largest = work.weights[trained].double() + 0.7 * step, float(step.abs().max())
    torch.testing.assert_close(merged[trained].double(), expected, rtol=0, atol=2e-3 * largest)


def test_the_released_step_is_a_fifth_of_fedavgs_where_clients_agree():
    work = make_work(same=True)
    make_method("fedomg", {"scaling": "as-released"}, weighting="uniform").server(work)
    assert work.diagnostics["relative_step"] == pytest.approx(0.2, rel=1e-2)
    work = make_work(same=True)
    make_method("fedomg", {"scaling": "as-released", "server_lr": 0.05}, weighting="uniform").server(work)
    assert work.diagnostics["relative_step"] == pytest.approx(0.02, rel=1e-2)


@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_equal_clients_make_fedavg_with_the_rate(rate):
    work = make_work(same=True)
    layout = work.updates.layout
    trained = layout.extent(Kind.PARAMETER)
    merged = make_method("fedomg", {"server_lr": rate}, weighting="uniform").server(work)
    mean = weighted_mean(work.updates.rows, torch.ones(3), layout=layout)
    expected = torch.lerp(work.weights[trained], mean[trained], rate)
    torch.testing.assert_close(merged[trained], expected, rtol=1e-4, atol=1e-5)


def test_without_a_search_it_is_fedavg(make_uneven_experiment, go):
    ours, _ = go(make_uneven_experiment("fedomg", settings={"c": 0}), "ours", rounds=3)
    fedavg, _ = go(make_uneven_experiment("fedavg"), "fedavg", rounds=3)
    torch.testing.assert_close(ours.weights, fedavg.weights, rtol=1e-4, atol=1e-5)


def test_matching_raises_the_smallest_inner_product_and_says_so():
    work = make_work()
    trained = work.updates.layout.extent(Kind.PARAMETER)
    merged = make_method("fedomg", weighting="uniform").server(work)
    steps = work.updates.rows[:, trained] - work.weights[trained]
    mean, ours = steps.mean(dim=0), merged[trained] - work.weights[trained]
    assert (ours - mean).norm() > 0.05 * mean.norm()
    assert (steps @ ours).min() / ours.norm() > (steps @ mean).min() / mean.norm()
    assert work.diagnostics["matching_steps"] > 0
    assert work.diagnostics["relative_step"] == pytest.approx(float(ours.norm() / mean.norm()), rel=1e-4)


@pytest.mark.parametrize("buffers", ["mean", "keep"])
def test_statistics_are_averaged_or_kept(buffers):
    work = make_work()
    layout = work.updates.layout
    merged = make_method("fedomg", {"buffers": buffers}).server(work)
    mean = weighted_mean(work.updates.rows, work.updates.samples, layout=layout)
    for kind in (Kind.FLOAT_BUFFER, Kind.INTEGER_BUFFER):
        expected = (mean if buffers == "mean" else work.weights)[layout.extent(kind)]
        torch.testing.assert_close(merged[layout.extent(kind)], expected)


def test_a_run_with_kept_buffers_never_moves_them(make_uneven_experiment, go):
    experiment = make_uneven_experiment("fedomg", settings={"buffers": "keep"})
    start = FlatState(experiment.network).read()
    ours, _ = go(experiment, rounds=2)
    trained = FlatState(experiment.network).layout.extent(Kind.PARAMETER)
    assert torch.equal(ours.weights[trained.stop :], start[trained.stop :])
    assert not torch.equal(ours.weights[trained], start[trained])


@pytest.mark.parametrize(
    ("settings", "said"), [({"c": 1}, "below 1"), ({"c": -0.1}, "at least 0"), ({"server_lr": 0}, "above 0")]
)
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(UsageError, match=said):
        make_method("fedomg", settings)
