"""The blocked passes against plain numpy on the whole matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unseen.aggregation import (
    combine_clients,
    cosines,
    gram,
    layer_distances,
    layerwise_weighted_sum,
    sign_agreement,
    split_layers,
    weighted_mean,
    weighted_sum,
)
from unseen.aggregation.distances import BLOCK_BYTES, block_width
from unseen.models import Kind, Layout

METRICS = ("l2", "l1", "cosine")
LAYOUT = Layout.of(nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Linear(6, 4)))
COUNTERS = LAYOUT.extent(Kind.INTEGER_BUFFER)


def close_clients(clients: int, size: int, *, spread: float, seed: int) -> torch.Tensor:
    """Clients that differ by a part `spread` of their weights."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(1, size, generator=generator)
    return base * (1 + spread * torch.randn(clients, size, generator=generator))


def states(clients: int, *, spread: float = 1.0, seed: int = 0) -> torch.Tensor:
    """Rows that fit LAYOUT, counters whole."""
    rows = close_clients(clients, LAYOUT.size, spread=spread, seed=seed)
    rows[:, COUNTERS] = torch.arange(clients).float()[:, None]
    return rows


def naive_distances(rows: torch.Tensor, layer, metric: str) -> np.ndarray:
    values = np.concatenate([rows[:, place].numpy().astype(np.longdouble) for place in layer.slices], axis=1)
    mean = values.mean(axis=0)
    if metric == "l2":
        return np.sqrt(((values - mean) ** 2).sum(axis=1))
    if metric == "l1":
        return np.abs(values - mean).sum(axis=1)
    return 1 - values @ mean / np.sqrt((values**2).sum(axis=1) * (mean**2).sum())


cases = given(
    clients=st.integers(1, 12),
    size=st.integers(1, 2000),
    width=st.integers(1, 300),
    seed=st.integers(0, 2**31),
)


@cases
def test_gram_is_that_of_the_differences_whatever_the_blocks(clients, size, width, seed):
    rows = close_clients(clients, size, spread=0.3, seed=seed)
    reference = rows.mean(dim=0)
    start = size // 3
    moves = (rows.double() - reference.double())[:, start:].numpy()
    found = gram(rows, reference, slice(start, size), width=width)
    scale = float(np.abs(moves @ moves.T).max())
    np.testing.assert_allclose(found.numpy(), moves @ moves.T, rtol=1e-12, atol=1e-12 * scale)
    assert torch.equal(found, found.t())
    whole = gram(rows, reference, slice(start, size))
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-12 * scale)


@cases
def test_signs_agree_where_numpy_says_so(clients, size, width, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(-1, 3, (clients, size), generator=generator).float()
    reference = torch.randint(-1, 1, (size,), generator=generator).float()
    signs = np.sign((rows - reference).numpy())
    found = sign_agreement(rows, reference, slice(0, size), width=width)
    np.testing.assert_array_equal(found.agree.numpy(), np.abs(signs.sum(axis=0)) == clients)
    np.testing.assert_array_equal(found.unmoved.numpy(), (signs == 0).all(axis=0))
    assert torch.equal(found.agree ^ found.unmoved, ~found.conflict)


def test_share_of_agreement_leaves_out_what_nobody_moved():
    rows = torch.tensor([[1.0, 1.0, 0.0, -1.0], [2.0, -1.0, 0.0, -1.0]])
    agreement = sign_agreement(rows, torch.zeros(4), slice(0, 4))
    assert agreement.fraction == pytest.approx(2 / 3)
    assert sign_agreement(torch.zeros(3, 4), torch.zeros(4), slice(0, 4)).fraction == 1


@pytest.mark.parametrize("grouping", ["tensor", "module"])
@pytest.mark.parametrize("metric", METRICS)
@given(clients=st.integers(1, 12), width=st.integers(1, 300), seed=st.integers(0, 2**31))
def test_distances_to_the_mean(metric, grouping, clients, width, seed):
    rows = states(clients, seed=seed)
    found = layer_distances(rows, LAYOUT, metric=metric, grouping=grouping, width=width)
    again = layer_distances(rows, LAYOUT, metric=metric, grouping=grouping)
    torch.testing.assert_close(found.values, again.values, rtol=1e-12, atol=1e-12)
    assert found.layers == split_layers(LAYOUT, grouping)
    for layer, values in zip(found.layers, found.values, strict=True):
        expected = naive_distances(rows, layer, metric)
        np.testing.assert_allclose(values, expected.astype(float), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("spread", [1e-2, 1e-3, 1e-4])
def test_distances_keep_their_digits_where_clients_hardly_differ(metric, spread):
    rows = states(9, spread=spread, seed=3)
    found = layer_distances(rows, LAYOUT, metric=metric)
    for layer, values in zip(found.layers, found.values, strict=True):
        np.testing.assert_allclose(values, naive_distances(rows, layer, metric).astype(float), rtol=1e-5)


def test_a_gram_matrix_of_raw_weights_would_not_do():
    """The reason for the direct pass: what products of raw float32 weights make of the same distances."""
    rows = states(9, spread=1e-4, seed=3)[:, LAYOUT.extent(Kind.PARAMETER)]
    products = rows @ rows.t()
    squares = products.diagonal() - 2 * products.mean(dim=0) + products.mean()
    direct = (rows.double() - rows.double().mean(dim=0)).square().sum(dim=1)
    assert ((squares.double() - direct) / direct).abs().max() > 0.1


@pytest.mark.parametrize("metric", METRICS)
def test_identical_clients_are_at_distance_zero_exactly(metric):
    rows = states(1).expand(5, -1)
    assert not layer_distances(rows, LAYOUT, metric=metric).values.any()


def test_cosine_of_zero_parallel_and_opposite_layers():
    layout = Layout.of(nn.Linear(4, 1, bias=False))
    direction = torch.tensor([0.3, -0.1, 0.7, 0.2])

    def distances(*factors: float) -> list[float]:
        rows = torch.tensor(factors)[:, None] * direction
        return layer_distances(rows, layout, metric="cosine").values[0].tolist()

    assert distances(1, 2, 4) == pytest.approx([0, 0, 0], abs=1e-12)
    assert distances(0, 0) == [0, 0]
    assert distances(0, 3) == pytest.approx([1, 0])
    assert distances(-1, 3, 3) == pytest.approx([2, 0, 0])


def test_layers_are_tensors_or_modules_and_never_counters():
    tensors, modules = split_layers(LAYOUT), split_layers(LAYOUT, "module")
    assert "1.running_var" in [layer.name for layer in tensors]
    assert [layer.name for layer in modules] == ["0", "1", "2"]
    assert [len(layer.slices) for layer in modules] == [2, 4, 2]
    for layers in (tensors, modules):
        covered = sorted(
            column for layer in layers for place in layer.slices for column in range(place.start, place.stop)
        )
        assert covered == list(range(COUNTERS.start))


@pytest.mark.parametrize("grouping", ["tensor", "module"])
@given(clients=st.integers(1, 8), seed=st.integers(0, 2**31))
def test_layerwise_sum_is_the_literal_one(grouping, clients, seed):
    rows = states(clients, seed=seed)
    layers = split_layers(LAYOUT, grouping)
    weights = rows[:, : len(layers)].t().abs().double()
    merged = layerwise_weighted_sum(rows, weights, layout=LAYOUT, grouping=grouping)
    for layer, own in zip(layers, weights, strict=True):
        for place in layer.slices:
            literal = sum(float(share) * row[place].double() for share, row in zip(own, rows, strict=True))
            torch.testing.assert_close(merged[place].double(), literal, rtol=1e-5, atol=1e-5)
    assert merged[COUNTERS].tolist() == [clients - 1]


def test_layerwise_sum_of_one_client_is_the_identity_and_wrong_shapes_are_refused():
    rows = states(1)
    ones = torch.ones(len(split_layers(LAYOUT)), 1, dtype=torch.float64)
    assert torch.equal(layerwise_weighted_sum(rows, ones, layout=LAYOUT), rows[0])
    with pytest.raises(ValueError, match="do not fit"):
        layerwise_weighted_sum(rows, ones[1:], layout=LAYOUT)


@given(clients=st.integers(1, 8), seed=st.integers(0, 2**31))
def test_sums_from_a_reference(clients, seed):
    rows = states(clients, seed=seed)
    reference = rows[0].flip(0).clone()
    coefficients = rows[:, 5].double()
    literal = reference.double() + coefficients @ (rows.double() - reference.double())
    found = weighted_sum(rows, coefficients, reference=reference)
    torch.testing.assert_close(found.double(), literal, rtol=1e-4, atol=1e-4)
    plain = weighted_sum(rows, coefficients)
    torch.testing.assert_close(plain.double(), coefficients @ rows.double(), rtol=1e-4, atol=1e-4)


def test_combined_clients_move_parameters_and_average_statistics():
    rows, reference = states(3), states(1, seed=9)[0]
    merged = combine_clients(rows, reference, torch.tensor([2.0, 0.0, -1.0]), layout=LAYOUT)
    trained, statistics = LAYOUT.extent(Kind.PARAMETER), LAYOUT.extent(Kind.FLOAT_BUFFER)
    literal = reference + 2 * (rows[0] - reference) - (rows[2] - reference)
    torch.testing.assert_close(merged[trained], literal[trained], rtol=1e-5, atol=1e-5)
    mean = weighted_mean(rows, torch.ones(3), layout=LAYOUT)
    torch.testing.assert_close(merged[statistics], mean[statistics])
    assert merged[COUNTERS].tolist() == [2]
    assert torch.equal(combine_clients(rows[:1], reference, torch.ones(1), layout=LAYOUT), rows[0])


def test_cosines_of_zero_vectors_are_zero():
    vectors = torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.0, 0.0], [3.0, 3.0]], dtype=torch.float64)
    root = 0.5**0.5
    expected = [[1, -1, 0, root], [-1, 1, 0, -root], [0, 0, 0, 0], [root, -root, 0, 1]]
    torch.testing.assert_close(cosines(vectors @ vectors.t()), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("clients", [1, 50, 5000, 200_000])
def test_blocks_stay_small_whatever_the_number_of_clients(clients):
    assert 8 * clients * block_width(clients) <= max(BLOCK_BYTES, 2**27)
