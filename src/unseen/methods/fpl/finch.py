"""FINCH (Sarfraz, Sharma, Stiefelhagen 2019): clustering by first neighbours, without parameters.

Every point is joined with its nearest neighbour; what is connected is a cluster. The clusters' means are
joined in the same way, until all would be one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def cluster_points(points: Tensor) -> Tensor:
    """Return the cluster (0, 1, ...) of every point in the coarsest partition, by cosine distance.

    A single cluster of all points counts only as the first partition: up to three points are always one.
    """
    labels = torch.arange(len(points), device=points.device)
    means = points
    while len(means) > 1:
        joined = _connected_parts(_first_neighbours(means))
        if not joined.any() and len(means) < len(points):
            break
        labels = joined[labels]
        means = average_clusters(points, labels)
    return labels


def average_clusters(points: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of every cluster's points."""
    members = F.one_hot(labels).T.to(points.dtype)
    return members @ points / members.sum(1, keepdim=True)


def _first_neighbours(points: Tensor) -> Tensor:
    """Find the nearest other point of each; of equally near ones, the first."""
    directions = F.normalize(points.double(), dim=1)
    similarity = directions @ directions.T
    return similarity.fill_diagonal_(-torch.inf).argmax(1)


def _connected_parts(neighbours: Tensor) -> Tensor:
    """Number the parts of the graph that joins each point with its neighbour, whatever the direction."""
    lowest = torch.arange(len(neighbours), device=neighbours.device)
    while True:
        spread = torch.minimum(lowest, lowest[neighbours])
        spread = spread.scatter_reduce(0, neighbours, spread, "amin")
        if torch.equal(spread, lowest):
            numbered: Tensor = lowest.unique(return_inverse=True)[1]
            return numbered
        lowest = spread
