"""Averages of client states, and the policy for their buffers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unseen.aggregation import (
    combine_clients,
    layerwise_weighted_sum,
    mean_from_sum,
    merge_buffers,
    normalize_weights,
    scale_for_sum,
    split_layers,
    step_towards,
    weighted_mean,
    without_counters,
)
from unseen.models import FlatState, Kind, Layout

PLAIN = Layout.of(nn.Linear(3, 2))
NORMED = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))


@st.composite
def rows_and_weights(draw):
    clients = draw(st.integers(1, 8))
    seed = draw(st.integers(0, 2**31))
    rows = torch.randn(clients, PLAIN.size, generator=torch.Generator().manual_seed(seed))
    weights = draw(st.lists(st.floats(0.01, 1000), min_size=clients, max_size=clients))
    return rows, torch.tensor(weights, dtype=torch.float64)


@given(rows_and_weights())
def test_equals_the_literal_sum(case):
    rows, weights = case
    literal = torch.zeros(PLAIN.size, dtype=torch.float64)
    for row, weight in zip(rows, weights, strict=True):
        literal += row.double() * float(weight) / float(weights.sum())
    torch.testing.assert_close(
        weighted_mean(rows, weights, layout=PLAIN).double(), literal, rtol=1e-5, atol=1e-6
    )


@given(rows_and_weights(), st.randoms(use_true_random=False))
def test_order_of_clients_does_not_matter(case, random):
    rows, weights = case
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = weighted_mean(rows[order], weights[order], layout=PLAIN)
    torch.testing.assert_close(shuffled, weighted_mean(rows, weights, layout=PLAIN), rtol=1e-5, atol=1e-6)


@given(rows_and_weights())
def test_one_client_and_identical_clients_are_the_identity(case):
    rows, weights = case
    assert torch.equal(weighted_mean(rows[:1], weights[:1], layout=PLAIN), rows[0])
    same = rows[:1].expand_as(rows)
    torch.testing.assert_close(weighted_mean(same, weights, layout=PLAIN), rows[0], rtol=1e-6, atol=1e-7)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=10))
def test_weights_sum_to_one(weights):
    assert float(normalize_weights(torch.tensor(weights, dtype=torch.float64)).sum()) == pytest.approx(1)


@pytest.mark.parametrize("weights", [[1.0, -1.0], [float("nan"), 1.0]])
def test_impossible_weights_are_refused(weights):
    with pytest.raises(ValueError, match="weights must be"):
        normalize_weights(torch.tensor(weights))


def test_buffers_follow_their_policy():
    flat = FlatState(NORMED)
    layout = flat.layout
    rows = flat.read().repeat(2, 1)
    rows[0, layout.extent(Kind.INTEGER_BUFFER)] = 7
    rows[1, layout.extent(Kind.INTEGER_BUFFER)] = 4
    rows[0, layout.extent(Kind.FLOAT_BUFFER)] = 1.0
    rows[1, layout.extent(Kind.FLOAT_BUFFER)] = 2.0
    merged = weighted_mean(rows, torch.tensor([1.0, 3.0]), layout=layout)
    assert merged[layout.extent(Kind.INTEGER_BUFFER)].tolist() == [7.0]
    assert merged[layout.extent(Kind.FLOAT_BUFFER)].tolist() == [1.75] * 4


def states_with_buffers() -> tuple[torch.Tensor, Layout]:
    """Three clients with counters 7, 4 and 3, and float buffers 1, 2 and 6."""
    flat = FlatState(NORMED)
    rows = flat.read().repeat(3, 1)
    rows[:, flat.layout.extent(Kind.INTEGER_BUFFER)] = torch.tensor([[7.0], [4.0], [3.0]])
    rows[:, flat.layout.extent(Kind.FLOAT_BUFFER)] = torch.tensor([[1.0], [2.0], [6.0]])
    return rows, flat.layout


def test_every_average_merges_buffers_by_the_same_policy():
    rows, layout = states_with_buffers()
    counters, statistics = layout.extent(Kind.INTEGER_BUFFER), layout.extent(Kind.FLOAT_BUFFER)
    layers = len(split_layers(layout))
    third = torch.full((layers, 3), 1 / 3, dtype=torch.float64)
    averages = (
        weighted_mean(rows, torch.ones(3), layout=layout),
        combine_clients(rows, rows[0], torch.tensor([0.9, 0.1, -0.4]), layout=layout),
        layerwise_weighted_sum(rows, third, layout=layout),
        merge_buffers(torch.zeros(layout.size), rows, layout=layout, weights=third[0]),
    )
    for merged in averages:
        assert merged[counters].tolist() == [7.0], "the largest"
        assert merged[statistics].tolist() == pytest.approx([3.0] * 4), "the mean"
    stepped = step_towards(rows[0], averages[0], rate=0.5, layout=layout)
    assert torch.equal(stepped[statistics.start :], averages[0][statistics.start :]), "whatever the rate"


def test_a_sum_gives_the_mean_and_rounds_counters():
    rows, layout = states_with_buffers()
    weights = [2.0, 1.0, 1.0]
    total = sum(
        scale_for_sum(row.double().numpy(), weight, layout=layout)
        for row, weight in zip(rows, weights, strict=True)
    )
    mean = torch.from_numpy(mean_from_sum(total, weight=4.0, clients=3, layout=layout)).float()
    known = weighted_mean(rows, torch.tensor(weights), layout=layout)
    numbers = without_counters(layout)
    torch.testing.assert_close(mean[numbers], known[numbers])
    assert mean[numbers.stop :].tolist() == [5.0], "14 / 3, rounded, whatever the weights"
