"""Networks that leave out the extremes, against sorted columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unseen.aggregation import sorting_network
from unseen.aggregation.sorting_network import (
    Selection,
    middle_blocks,
    select_by_elimination,
    select_by_sorting,
    select_middle,
)


def columns_of(rows: int) -> Tensor:
    """All columns of zeros and ones, which decide by the zero-one principle, or many random ones."""
    if rows <= 10:
        return torch.tensor(list(itertools.product([0.0, 1.0], repeat=rows))).t().contiguous()
    return torch.randn(rows, 3000, generator=torch.Generator().manual_seed(rows))


@pytest.mark.parametrize("build", [select_by_elimination, select_by_sorting])
@pytest.mark.parametrize("rows", range(1, 18))
def test_a_network_leaves_out_the_smallest_and_the_largest(
    rows: int, build: Callable[[int, int], Selection], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = columns_of(rows)
    before, ordered = values.clone(), values.sort(dim=0).values
    for cut in range((rows + 1) // 2):
        monkeypatch.setattr(sorting_network, "select_middle", build)
        for columns, kept in middle_blocks(values, cut, width=100):
            found = torch.stack([torch.from_numpy(each.copy()) for each in kept]).sort(dim=0).values
            assert torch.equal(found, ordered[cut : rows - cut, columns])
    assert torch.equal(values, before), "the clients' rows are read only"


@pytest.mark.parametrize(
    ("rows", "cut", "operations"), [(3, 1, 4), (5, 1, 10), (5, 2, 10), (10, 2, 40), (10, 4, 44)]
)
def test_the_shorter_network_is_taken(rows: int, cut: int, operations: int) -> None:
    both = select_by_elimination(rows, cut), select_by_sorting(rows, cut)
    chosen: Selection = select_middle(rows, cut)
    assert chosen.operations == min(each.operations for each in both) <= operations


def test_many_clients_are_sorted() -> None:
    assert select_middle(60, 29) == select_by_sorting(60, 29)


def test_nothing_is_left_if_all_are_cut() -> None:
    with pytest.raises(ValueError, match="2 values at both ends cannot be left out of 4"):
        select_middle(4, 2)
