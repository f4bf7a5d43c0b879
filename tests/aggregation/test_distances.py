"""Distances between clients against every pair taken by itself."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unseen.aggregation import Layer, pair_distances, select_recorded_layers, split_layers
from unseen.models import Layout

LAYERS = (Layer("first", (slice(0, 3), slice(7, 9))), Layer("second", (slice(3, 7),)))


def root_mean_square(rows, places, pairs):
    columns = torch.cat([rows[:, place] for place in places], dim=1).double()
    squares = [float((columns[i] - columns[j]).square().sum()) for i, j in pairs]
    return (sum(squares) / len(squares)) ** 0.5 if squares else None


@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=7), st.integers(0, 99))
def test_it_is_the_root_mean_square_over_pairs(domains, seed):
    rows = torch.randn(len(domains), 9, generator=torch.Generator().manual_seed(seed))
    found = pair_distances(rows, domains, LAYERS)
    pure = [place for place, domain in enumerate(domains) if domain]
    pairs = list(itertools.combinations(pure, 2))
    same = [(i, j) for i, j in pairs if domains[i] == domains[j]]
    other = [(i, j) for i, j in pairs if domains[i] != domains[j]]
    assert found.layers == (("first", "second") if pure else ())
    for number, layer in enumerate(LAYERS if pure else ()):
        assert found.same_domain[number] == pytest.approx(root_mean_square(rows, layer.slices, same))
        assert found.other_domain[number] == pytest.approx(root_mean_square(rows, layer.slices, other))


def test_small_differences_of_large_weights_are_not_lost():
    rows = 1000 + 1e-3 * torch.tensor([[0.0] * 9, [1.0] * 9, [3.0] * 9])
    found = pair_distances(rows, ["a", "a", "b"], LAYERS[1:])
    gap = (rows[1] - rows[0])[0].double() * 2
    assert found.same_domain[0] == pytest.approx(float(gap))


def test_equal_models_are_at_no_distance():
    found = pair_distances(torch.ones(4, 9), ["a", "a", "b", "b"], LAYERS)
    assert found.same_domain == found.other_domain == (0.0, 0.0)


def test_layers_with_a_kernel_or_matrix_are_shown():
    layout = Layout.of(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)))
    layers = split_layers(layout)
    assert [layers[place].name for place in select_recorded_layers(layers, layout)] == [
        "0.weight",
        "2.weight",
    ]
