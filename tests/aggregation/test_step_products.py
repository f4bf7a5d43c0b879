"""Products and distances of steps in float32 blocks, against float64 on the whole matrix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unseen.aggregation import gram
from unseen.aggregation.step_products import squared_distances, step_products


def exact(rows: Tensor, reference: Tensor) -> Tensor:
    steps = rows.double() - reference.double()
    return steps @ steps.t()


@given(st.integers(3, 11), st.integers(1, 3000), st.integers(1, 500), st.integers(0, 10**6))
def test_products_are_accurate_relative_to_the_lengths(
    clients: int, size: int, width: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    reference = torch.randn(size, generator=generator)
    rows = reference + 0.01 * torch.randn(clients, size, generator=generator)
    found, expected = step_products(rows, reference, width=width), exact(rows, reference)
    lengths = expected.diagonal().sqrt()
    assert bool(((found - expected).abs() <= 1e-5 * torch.outer(lengths, lengths)).all())
    assert torch.equal(found, found.t())


def test_a_long_state_is_accurate_too() -> None:
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(700_001, generator=generator)
    rows = reference + 0.01 * torch.randn(5, len(reference), generator=generator).abs()
    found, expected = step_products(rows, reference), exact(rows, reference)
    lengths = expected.diagonal().sqrt()
    assert float(((found - expected).abs() / torch.outer(lengths, lengths)).max()) < 3e-6


def test_an_absurd_client_spoils_its_own_row_only() -> None:
    generator = torch.Generator().manual_seed(1)
    rows, reference = torch.randn(5, 4000, generator=generator), torch.zeros(4000)
    honest = step_products(rows, reference)
    rows[2] = 1e15
    others = [0, 1, 3, 4]
    assert torch.equal(step_products(rows, reference)[others][:, others], honest[others][:, others])


@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_squares_out_of_range_are_computed_in_float64(size: float) -> None:
    rows, reference = torch.randn(4, 300, generator=torch.Generator().manual_seed(2)), torch.zeros(300)
    rows[1] *= size
    assert torch.equal(step_products(rows, reference), gram(rows, reference, slice(0, 300)))


def test_equal_clients_are_close_and_distances_are_those_of_the_differences() -> None:
    generator = torch.Generator().manual_seed(3)
    rows, reference = torch.randn(6, 5000, generator=generator), torch.randn(5000, generator=generator)
    rows[4] = rows[1]
    found = squared_distances(rows, reference)
    expected = torch.cdist(rows.double(), rows.double()).square()
    assert float(found[1, 4]) <= 1e-5 * float(found.max())
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5 * float(expected.max()))
