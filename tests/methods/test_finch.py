"""FINCH against its definition on a graph, and on points whose clusters are known."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen.methods.fpl.finch import average_clusters, cluster_points


def literal_parts(points):
    """Components of the graph that joins i and j if one is nearest to the other, or both to a third."""
    count = len(points)
    near = []
    for i in range(count):
        similarity = [
            float(points[i] @ points[j] / (points[i].norm() * points[j].norm())) if j != i else -2.0
            for j in range(count)
        ]
        near.append(similarity.index(max(similarity)))
    parts = [{i} for i in range(count)]
    for i in range(count):
        for j in range(count):
            if near[i] == j or near[j] == i or near[i] == near[j]:
                joined = next(part for part in parts if i in part) | next(part for part in parts if j in part)
                parts = [part for part in parts if not part & joined] + [joined]
    return parts


def literal_finch(points):
    """Partitions by components of the former one's means: the last of several parts, or the first."""
    partitions = [[{i} for i in range(len(points))]]
    while len(partitions[-1]) > 1:
        means = torch.stack([points[sorted(part)].mean(0) for part in partitions[-1]])
        joined = [set().union(*(partitions[-1][i] for i in group)) for group in literal_parts(means)]
        if len(joined) == 1 and len(partitions) > 1:
            break
        partitions.append(joined)
    return partitions[-1]


@given(st.integers(1, 14), st.integers(0, 10_000))
def test_equals_the_definition(count, seed):
    points = torch.randn(count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    labels = cluster_points(points)
    found = {frozenset((labels == label).nonzero().flatten().tolist()) for label in labels.unique()}
    assert found == {frozenset(part) for part in literal_finch(points)}
    assert labels.unique().tolist() == list(range(len(found)))
    means = average_clusters(points, labels)
    for label in range(len(means)):
        torch.testing.assert_close(means[label], points[labels == label].mean(0))


def test_two_groups_are_found_and_up_to_three_points_are_one():
    points = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0], [1.0, 0.05]])
    assert cluster_points(points).tolist() == [0, 1, 0, 1, 0]
    for count in (1, 2, 3):
        assert cluster_points(points[:count]).tolist() == [0] * count
