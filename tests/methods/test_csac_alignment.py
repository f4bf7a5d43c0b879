"""CSAC's tensor arithmetic against the paper's formulas written out as plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unseen.aggregation import ServerWork, Updates, layer_distances, split_layers
from unseen.aggregation.distances import divergence_weights
from unseen.methods import make_method
from unseen.methods.csac.alignment import (
    Projections,
    channel_similarity,
    geometry,
    over_local_layers,
    pairwise_mmd,
    pairwise_mse,
    position_similarity,
)
from unseen.models import Entry, FlatState, Kind, Layout


def literal_mmd(x, y):
    """FIELD 4.1 in words: five Gaussian kernels on the joint batch, unbiased within, n^2 between."""
    joint = [*x, *y]
    count = len(x)
    squared = [[((u - v) ** 2).sum() for v in joint] for u in joint]
    mean = sum(float(value.detach()) for row in squared for value in row) / len(joint) ** 2

    def kernel(i, j):
        return sum(torch.exp(-squared[i][j] / (2 * 3.0**power * mean)) for power in (-3, -2, -1, 0, 1))

    total = 0.0
    for i in range(count):
        for j in range(count):
            if i != j:
                total = total + kernel(i, j) / (count * (count - 1))
                total = total + kernel(count + i, count + j) / (count * (count - 1))
            total = total - 2 * kernel(i, count + j) / count**2
    return total


def literal_attention(fused, local, *, channelwise):
    """Eq. 7 and 8: softmax over m of the averaged attention maps, which are averaged over the batch too."""
    weights = torch.zeros(len(fused), len(local), dtype=fused.dtype)
    for layer in range(len(fused)):
        energies = []
        for other in range(len(local)):
            maps = [
                (a @ b.T if channelwise else a.T @ b).mean()
                for a, b in zip(fused[layer], local[other], strict=True)
            ]
            energies.append(math.exp(sum(float(value) for value in maps) / len(maps)))
        for other, energy in enumerate(energies):
            weights[layer, other] = energy / sum(energies)
    return weights


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("layers", "others", "samples", "size"), [(1, 1, 2, 3), (2, 3, 5, 4), (3, 3, 4, 7)])
def test_mmd_and_its_gradient_equal_the_formula(layers, others, samples, size):
    first = normal(layers, samples, size, seed=1).requires_grad_()
    second = (normal(others, samples, size, seed=2) * 2 + 1).requires_grad_()
    weights = normal(layers, others, seed=3)
    found = pairwise_mmd(first, second)
    expected = torch.stack([torch.stack([literal_mmd(x, y) for y in second]) for x in first])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    gradients = torch.autograd.grad((weights * found).sum(), (first, second))
    wanted = torch.autograd.grad((weights * expected).sum(), (first, second))
    torch.testing.assert_close(gradients, wanted, rtol=1e-9, atol=1e-9)


def test_mmd_grows_with_the_distance_of_the_sets_and_keeps_digits_far_from_zero():
    first = normal(1, 64, 5).float()
    values = [float(pairwise_mmd(first, first.roll(1, 1) + shift)) for shift in (0.0, 0.5, 1.0, 2.0)]
    assert values == sorted(values) and values[0] < 0.05 < values[3]
    shifted = pairwise_mmd(first + 1000, first + 1001)
    torch.testing.assert_close(shifted, pairwise_mmd(first, first + 1), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("samples", [1, 3])
def test_mmd_of_one_sample_or_of_equal_features_is_finite_with_a_zero_gradient(samples):
    first = torch.zeros(2, samples, 4, requires_grad=True)
    value = pairwise_mmd(first, torch.zeros(2, samples, 4))
    value.sum().backward()
    assert value.shape == (2, 2) and torch.equal(value, torch.zeros(2, 2))
    assert torch.equal(first.grad, torch.zeros_like(first))


def test_mse_of_all_pairs():
    first, second = normal(2, 3, 4), normal(3, 3, 4, seed=1)
    for layer in range(2):
        for other in range(3):
            pairs = zip(first[layer].ravel(), second[other].ravel(), strict=True)
            expected = sum(float((u - v) ** 2) for u, v in pairs) / 12
            assert float(pairwise_mse(first, second)[layer, other]) == pytest.approx(expected)


@pytest.mark.parametrize("channelwise", [False, True])
def test_attention_equals_equations_7_and_8(channelwise):
    fused, local = normal(3, 4, 5, 6), normal(3, 4, 5, 6, seed=1) * 2
    similarity = channel_similarity if channelwise else position_similarity
    found = over_local_layers(similarity(fused, local))
    torch.testing.assert_close(found, literal_attention(fused, local, channelwise=channelwise))
    torch.testing.assert_close(found.sum(1), torch.ones(3, dtype=torch.float64))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
def test_windows_of_a_projection_reach_the_target_size_and_every_pixel(height, width, rows, columns):
    target = min(height, rows), min(width, columns)
    kernel, stride = geometry((height, width), target)
    for size, wanted, window, step in zip((height, width), target, kernel, stride, strict=True):
        assert (size - window) // step + 1 == wanted
        assert (wanted - 1) * step + window == size and window >= step


def test_projections_bring_maps_of_any_size_to_that_of_the_last():
    shapes = [torch.Size(shape) for shape in ((8, 13, 9), (6, 6, 9), (4, 6, 4))]
    projections = Projections(shapes, channels=5, query_key=True)
    maps = [torch.randn(2, *shape) for shape in shapes]
    fused, local = projections(maps, maps)
    assert fused.shape == local.shape == (3, 2, 5, 24)
    assert not torch.equal(fused, local)
    queries, keys = projections.queried(fused, local)
    expected = projections.queries[1](fused[1].unflatten(-1, (6, 4))).flatten(2)
    torch.testing.assert_close(queries[1], expected)
    assert keys.shape == local.shape and not torch.equal(keys, local)


def small_module():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def literal_weights(states, *, metric="l2", strategy="divergence"):
    """The fractions of eq. 4 for one layer, given as one vector a client."""
    mean = sum(states) / len(states)
    if metric == "l2":
        distances = [math.sqrt(float(((state - mean) ** 2).sum())) for state in states]
    elif metric == "l1":
        distances = [float((state - mean).abs().sum()) for state in states]
    else:
        distances = [
            1 - float(state @ mean) / math.sqrt(float(state @ state) * float(mean @ mean)) for state in states
        ]
    if strategy == "similarity":
        distances = [1 / distance for distance in distances]
    if strategy == "average" or sum(distances) == 0:
        distances = [1.0] * len(states)
    return [distance / sum(distances) for distance in distances]


def merge(rows, layout, **settings):
    clients = tuple(f"c{number}" for number in range(len(rows)))
    ones = torch.ones(len(rows), dtype=torch.float64)
    updates = Updates(clients, rows, ones, ones, tuple({} for _ in clients), layout)
    work = ServerWork(round=1, seed=0, weights=rows[0], updates=updates)
    return make_method("csac", settings).server(work), work.diagnostics


@pytest.mark.parametrize("metric", ["l2", "l1", "cosine"])
@pytest.mark.parametrize("strategy", ["divergence", "similarity", "average"])
@pytest.mark.parametrize("layer", ["tensor", "module"])
@given(clients=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_the_server_merges_by_equations_3_and_4(metric, strategy, layer, clients, seed):
    layout = FlatState(small_module()).layout
    rows = torch.randn(clients, layout.size, generator=torch.Generator().manual_seed(seed))
    counters = layout.extent(Kind.INTEGER_BUFFER)
    rows[:, counters] = torch.arange(clients).float().roll(seed)[:, None]
    if clients == 1 and strategy == "similarity":
        strategy = "average"
    merged, _ = merge(rows, layout, metric=metric, strategy=strategy, layer=layer)
    for part in split_layers(layout, layer):
        states = [torch.cat([row[place] for place in part.slices]).double() for row in rows]
        found = torch.cat([merged[place] for place in part.slices]).double()
        weights = literal_weights(states, metric=metric, strategy=strategy)
        expected = sum(weight * state for weight, state in zip(weights, states, strict=True))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(merged[counters], rows[:, counters].amax(0))


@given(
    clients=st.integers(1, 12),
    size=st.integers(1, 2000),
    seed=st.integers(0, 10_000),
    spread=st.sampled_from([0.0, 1e-3, 1.0]),
)
def test_weights_equal_the_literal_ones_however_close_clients_are(clients, size, seed, spread):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(size, generator=generator) + spread * torch.randn(clients, size, generator=generator)
    layout = Layout((Entry("layer", (size,), Kind.PARAMETER, 0, size),))
    for metric in ("l2", "l1"):
        weights = divergence_weights(layer_distances(rows, layout, metric=metric).values)[0]
        expected = literal_weights(list(rows.double() - rows[0].double()), metric=metric)
        torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_identical_clients_stay_as_they_are():
    flat = FlatState(small_module())
    rows = flat.read().expand(4, -1).contiguous()
    for strategy in ("divergence", "similarity", "average"):
        torch.testing.assert_close(merge(rows, flat.layout, strategy=strategy)[0], rows[0])


def test_a_client_further_from_the_mean_weighs_more_and_the_records_show_it():
    flat = FlatState(small_module())
    offsets = torch.tensor([0.0, 0.1, 0.3, 1.0])
    rows = flat.read() + offsets[:, None] * normal(flat.layout.size).float()
    _, diagnostics = merge(rows, flat.layout)
    assert diagnostics["layers"] == ["0.weight", "2.weight"]
    for row in diagnostics["layer_weights"]:
        assert sum(row) == pytest.approx(1, abs=1e-4)
        assert max(row) == row[3]
        nearest = min(range(4), key=lambda k: abs(float(offsets[k] - offsets.mean())))
        assert min(row) == row[nearest]


@given(st.integers(1, 5), st.integers(1, 8), st.integers(0, 10_000), st.sampled_from([1e-200, 1.0, 1e200]))
def test_weights_sum_to_one_and_keep_or_reverse_the_order(layers, clients, seed, scale):
    generator = torch.Generator().manual_seed(seed)
    distances = torch.rand(layers, clients, generator=generator, dtype=torch.float64) * scale
    distances[torch.rand(layers, clients, generator=generator) < 0.2] = 0
    for strategy in ("divergence", "similarity", "average"):
        weights = divergence_weights(distances, strategy)
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(1), torch.ones(layers, dtype=torch.float64))
    order = (distances[:, :, None] < distances[:, None]).double()
    far, near = divergence_weights(distances), divergence_weights(distances, "similarity")
    assert (order * (far[:, :, None] - far[:, None]) <= 0).all()
    assert (order * (near[:, :, None] - near[:, None]) >= 0).all()


def test_zero_distances_give_uniform_weights():
    zeros = torch.zeros(2, 4)
    for strategy in ("divergence", "similarity", "average"):
        assert torch.equal(divergence_weights(zeros, strategy), torch.full((2, 4), 0.25).double())
    with pytest.raises(ValueError, match="finite"):
        divergence_weights(torch.tensor([[float("nan"), 1.0]]))
