"""How far the models of clients lie apart in every layer, within and between domains (CSAC's figure 4).

One pass over the clients serves any number of them: no pair is ever taken by itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unseen.aggregation.blocks import difference_blocks
from unseen.aggregation.layers import Layer


class PairDistances(NamedTuple):
    """Root mean square distance of two clients' layers, over all pairs of a kind; None without a pair."""

    layers: tuple[str, ...]
    same_domain: tuple[float | None, ...]
    other_domain: tuple[float | None, ...]


def pair_distances(rows: Tensor, domains: Sequence[str | None], layers: Sequence[Layer]) -> PairDistances:
    """Distances between clients of the same domain and between clients of different ones.

    domains  each client's domain; None for a client that holds several, which is left out

    Sums over pairs follow from sums over clients: sum |w_i - w_j|^2 = n sum |w_i|^2 - |sum w_i|^2, here of
    differences to one client's weights, so that large weights that differ little lose no digits.
    """
    pure = [place for place, domain in enumerate(domains) if domain is not None]
    members = rows if len(pure) == len(rows) else rows[pure]
    names = [domains[place] for place in pure]
    found = [[name == one for name in names] for one, size in Counter(names).items() if size > 1]
    groups = torch.tensor([[True] * len(names), *found], dtype=torch.float64)
    everyone, *each = groups.sum(dim=1).tolist()
    within = sum(map(_pairs, each))
    between = _pairs(everyone) - within
    same: list[float | None] = []
    other: list[float | None] = []
    for layer in layers if pure else ():
        whole, *parts = _pair_sums(members, groups, layer)
        same.append(math.sqrt(max(sum(parts), 0.0) / within) if within else None)
        other.append(math.sqrt(max(whole - sum(parts), 0.0) / between) if between else None)
    return PairDistances(tuple(layer.name for layer in layers if pure), tuple(same), tuple(other))


def _pair_sums(rows: Tensor, groups: Tensor, layer: Layer) -> list[float]:
    """For every group (a row of ones and zeros), the sum of squared distances over its pairs."""
    squares = torch.zeros(len(rows), dtype=torch.float64)
    of_sums = torch.zeros(len(groups), dtype=torch.float64)
    for extent in layer.slices:
        for _, block in difference_blocks(rows, rows[0], extent):
            squares += torch.linalg.vector_norm(block, dim=1).square_()
            of_sums += torch.linalg.vector_norm(groups @ block, dim=1).square_()
    sums: list[float] = (groups.sum(dim=1) * (groups @ squares) - of_sums).tolist()
    return sums


def _pairs(count: float) -> float:
    return count * (count - 1) / 2
