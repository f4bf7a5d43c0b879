"""Averaged products are the literal mean of the clients' products, cut to the rank as well as possible."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from unseen.aggregation import Updates, average_products, weighted_mean
from unseen.models import FlatState
from unseen.models.lora import LoRALinear, factor_pairs


class TwoLayers(nn.Module):
    """Two corrected layers of different shapes, and a tensor that is not one."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first = LoRALinear(nn.Linear(7, 5), rank=rank, alpha=1.0, generator=generator)
        self.second = LoRALinear(nn.Linear(4, 9), rank=rank, alpha=1.0, generator=generator)
        self.head = nn.Linear(3, 2)


def make_updates(rank: int, clients: int, *, seed: int = 0, same_a: bool = False) -> Updates:
    layout = FlatState(TwoLayers(rank)).layout
    rows = torch.randn(clients, layout.size, generator=torch.Generator().manual_seed(seed))
    if same_a:
        for pair in factor_pairs(layout):
            rows[:, pair.a.slice] = rows[0, pair.a.slice]
    return Updates(
        clients=tuple(f"c{number}" for number in range(clients)),
        rows=rows,
        samples=torch.arange(1.0, clients + 1, dtype=torch.float64),
        steps=torch.ones(clients, dtype=torch.float64),
        extras=tuple({} for _ in range(clients)),
        layout=layout,
    )


def products(vector: Tensor, updates: Updates) -> list[Tensor]:
    return [
        pair.b.view(vector).double() @ pair.a.view(vector).double() for pair in factor_pairs(updates.layout)
    ]


def literal_mean(updates: Updates, weights: Tensor, number: int) -> Tensor:
    """Add up p_k B_k A_k in a loop."""
    total = sum(
        float(weight) * products(row, updates)[number]
        for weight, row in zip(weights, updates.rows, strict=True)
    )
    assert isinstance(total, Tensor)
    return total / float(weights.sum())


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(2, 5), st.integers(0, 99))
def test_the_result_is_the_best_matrix_of_that_rank(rank: int, clients: int, seed: int) -> None:
    updates = make_updates(rank, clients, seed=seed)
    merged = weighted_mean(updates.rows, updates.samples, layout=updates.layout)
    result = average_products(merged, updates, "samples")
    for number, found in enumerate(products(result, updates)):
        whole = literal_mean(updates, updates.samples, number)
        u, s, v = torch.linalg.svd(whole, full_matrices=False)
        nearest = (u[:, :rank] * s[:rank]) @ v[:rank]
        torch.testing.assert_close((found - whole).norm(), (nearest - whole).norm(), rtol=1e-4, atol=1e-4)
    factors = torch.zeros(updates.layout.size, dtype=torch.bool)
    for pair in factor_pairs(updates.layout):
        factors[pair.a.slice] = factors[pair.b.slice] = True
    assert torch.equal(result[~factors], merged[~factors])


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_clients_that_span_the_same_rows_are_averaged_exactly(weighting: str) -> None:
    updates = make_updates(3, 4, same_a=True)
    weights = updates.samples if weighting == "samples" else torch.ones(4, dtype=torch.float64)
    merged = weighted_mean(updates.rows, weights, layout=updates.layout)
    result = average_products(merged, updates, weighting)
    for number, found in enumerate(products(result, updates)):
        torch.testing.assert_close(found, literal_mean(updates, weights, number), rtol=1e-4, atol=1e-5)


def test_the_mean_of_factors_is_biased_and_this_mean_is_closer() -> None:
    updates = make_updates(4, 3)
    merged = weighted_mean(updates.rows, updates.samples, layout=updates.layout)
    result = average_products(merged, updates, "samples")
    for number, (biased, found) in enumerate(
        zip(products(merged, updates), products(result, updates), strict=True)
    ):
        whole = literal_mean(updates, updates.samples, number)
        assert float((found - whole).norm()) < 0.7 * float((biased - whole).norm())


def test_a_step_of_the_server_is_kept_and_the_covariance_added() -> None:
    updates = make_updates(2, 2, seed=5, same_a=True)
    moved = torch.randn(updates.layout.size, generator=torch.Generator().manual_seed(9))
    result = average_products(moved, updates, "samples")
    for found, expected in zip(products(result, updates), products(moved, updates), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_factor_a_keeps_its_scale_and_stays_near() -> None:
    updates = make_updates(3, 2)
    near = updates.rows[0] + 0.05 * torch.randn(
        2, updates.layout.size, generator=torch.Generator().manual_seed(3)
    )
    close = Updates(**{**vars(updates), "rows": near})
    merged = weighted_mean(close.rows, close.samples, layout=close.layout)
    result = average_products(merged, close, "samples")
    for pair in factor_pairs(updates.layout):
        before, after = pair.a.view(merged), pair.a.view(result)
        torch.testing.assert_close(after.norm(), before.norm())
        assert float((after * before).sum() / before.norm() ** 2) > 0.8


def test_one_client_changes_nothing() -> None:
    updates = make_updates(2, 1)
    merged = updates.rows[0].clone()
    assert average_products(merged, updates, "samples") is merged


def test_factors_of_zero_stay_zero() -> None:
    updates = make_updates(2, 3)
    for pair in factor_pairs(updates.layout):
        updates.rows[:, pair.b.slice] = 0
    merged = weighted_mean(updates.rows, updates.samples, layout=updates.layout)
    result = average_products(merged, updates, "samples")
    assert bool(torch.isfinite(result).all())
    assert all(float(found.abs().max()) < 1e-9 for found in products(result, updates))
