"""Distances between clients per layer, by a blocked direct pass without cancellation, and weights from them.

Distances come from differences to one client's weights, never from products of raw weights: where clients
differ by 0.1 %, a Gram matrix of raw float32 weights is wrong by up to 73 %. A block is a few columns of all
clients, converted to float64 in a buffer that fits a core's private cache. So the matrix is read once and
never copied as a whole, and sums depend on the block width only in the last bits of a float64.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from unseen.aggregation.averaging import Grouping, Layer, normalize_weights, split_layers
from unseen.models import Layout

BLOCK_BYTES = 1_120_000
"""Size of a float64 block: half the second-level cache of a core, next to the float32 that streams in."""
LINE = 8
"""Columns of float64 in a cache line."""


def block_width(clients: int, *, block_bytes: int = BLOCK_BYTES) -> int:
    """Return the number of columns per block: an odd number of cache lines.

    With an even one, above all a power of two, the rows of a block compete for the same cache sets.
    """
    lines = block_bytes // (8 * LINE * max(clients, 1))
    return LINE * max(1, lines - 1 + lines % 2)


def block_slices(extent: slice, width: int) -> Iterator[slice]:
    """Split a part of the state into slices of at most `width` columns."""
    for start in range(extent.start, extent.stop, width):
        yield slice(start, min(start + width, extent.stop))


def difference_blocks(
    rows: Tensor, reference: Tensor, extent: slice, *, width: int | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield (columns, w_k - reference of all clients there) in float64.

    All blocks share one buffer: use a block before requesting the next.
    """
    width = width or block_width(len(rows))
    buffer = torch.empty(len(rows), min(width, max(extent.stop - extent.start, 1)), dtype=torch.float64)
    for columns in block_slices(extent, width):
        block = buffer[:, : columns.stop - columns.start]
        block.copy_(rows[:, columns]).sub_(reference[columns].double())
        yield columns, block


DistanceMetric = Literal["l2", "l1", "cosine"]

PARALLEL = 1e-13
"""Squared sine of an angle that rounding alone can produce."""


class LayerDistances(NamedTuple):
    """Distances of every client to the clients' mean.

    layers  the rows of `values`
    values  float64 (layers x clients)
    """

    layers: tuple[Layer, ...]
    values: Tensor


def layer_distances(
    rows: Tensor,
    layout: Layout,
    *,
    metric: DistanceMetric = "l2",
    grouping: Grouping = "tensor",
    width: int | None = None,
    weights: Tensor | None = None,
) -> LayerDistances:
    """Compute the distance of every client's layer to the mean of the clients, avg_l = mean_k w_{k,l}.

    metric    l2: ||w_k - avg||_2; l1: ||w_k - avg||_1; cosine: 1 - cos(w_k, avg), where a zero vector is at
              distance 0 from a zero vector and 1 from any other
    grouping  what a layer is, see `split_layers`
    width     columns per block; None = chosen by the number of clients
    weights   of the clients in the mean; None = equal

    Identical clients are at distance 0 exactly.
    """
    layers = split_layers(layout, grouping)
    values = torch.zeros(len(layers), len(rows), dtype=torch.float64)
    shares = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
    if weights is not None:
        shares = normalize_weights(weights)
    for layer, value in zip(layers, values, strict=True):
        if metric == "cosine":
            value.copy_(_cosine_distance(rows, layer, shares, width))
        elif metric == "l1":
            value.copy_(_absolute_sum(rows, layer, shares, width))
        else:
            value.copy_(_square_sum(rows, layer, shares, width).sqrt_())
    return LayerDistances(layers, values)


def _square_sum(rows: Tensor, layer: Layer, shares: Tensor, width: int | None) -> Tensor:
    """Sum (w_k - avg)^2 over a layer, per client."""
    total = torch.zeros(len(rows), dtype=torch.float64)
    for _, _, centred in _centred_blocks(rows, layer, shares, width):
        total += torch.linalg.vector_norm(centred, dim=1).square_()
    return total


def _absolute_sum(rows: Tensor, layer: Layer, shares: Tensor, width: int | None) -> Tensor:
    """Sum |w_k - avg| over a layer, per client."""
    total = torch.zeros(len(rows), dtype=torch.float64)
    for _, _, centred in _centred_blocks(rows, layer, shares, width):
        total += torch.linalg.vector_norm(centred, ord=1, dim=1)
    return total


def _cosine_distance(rows: Tensor, layer: Layer, shares: Tensor, width: int | None) -> Tensor:
    """Compute 1 - cos(avg + e_k, avg) from |avg|^2, avg.e_k and |e_k|^2, which keeps digits.

    Nearly parallel vectors would lose them otherwise.

    With |a|^2 |v|^2 - (a.v)^2 = |a|^2 |e|^2 - (a.e)^2 for v = a + e, the difference of two numbers near one
    becomes a quotient of small numbers. Vectors that are parallel up to rounding are at distance 0.
    """
    mean_square = torch.zeros((), dtype=torch.float64)
    products = torch.zeros(len(rows), dtype=torch.float64)
    squares = torch.zeros_like(products)
    for columns, shift, centred in _centred_blocks(rows, layer, shares, width):
        mean = shift.add_(rows[0, columns])
        mean_square += mean.dot(mean)
        products += centred @ mean
        squares += torch.linalg.vector_norm(centred, dim=1).square_()
    own_square = mean_square + 2 * products + squares
    lengths = (mean_square * own_square.clamp_(min=0)).sqrt_()
    inner = mean_square + products
    excess = mean_square * squares - products.square()
    excess[excess < PARALLEL * mean_square * squares] = 0
    distance = torch.where(inner > 0, excess / (lengths * (lengths + inner)), 1 - inner / lengths)
    both_zero = (mean_square == 0) & (squares == 0)
    return torch.where(lengths > 0, distance, torch.where(both_zero, 0.0, 1.0))


def _centred_blocks(
    rows: Tensor, layer: Layer, shares: Tensor, width: int | None
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield (columns, mean of the clients less the first client, clients less their mean) of a layer."""
    for extent in layer.slices:
        for columns, block in difference_blocks(rows, rows[0], extent, width=width):
            mean = shares @ block
            yield columns, mean, block.sub_(mean)


LayerWeighting = Literal["divergence", "similarity", "average"]


def divergence_weights(
    distances: Tensor, strategy: LayerWeighting = "divergence", *, start: Tensor | None = None
) -> Tensor:
    """Convert distances to the mean (layers x clients) to weights that sum to one per layer (CSAC, eq. 4).

    divergence  p_k = dist_k / sum_j dist_j: a client far from the mean counts more (eq. 4)
    similarity  p_k = (1 / dist_k) / sum_j (1 / dist_j): a client near the mean counts more; clients exactly
                at the mean share the whole weight
    average     p_k = 1 / K (eq. 3)

    Where all distances of a layer are zero the weights are uniform.

    start  weights n_k of the clients by which each of these is multiplied before it is scaled to sum to one,
           so that clients at the same distance count by them; None = equal
    """
    if bool((distances < 0).any()) or not bool(torch.isfinite(distances).all()):
        raise ValueError("distances must be finite and not negative")
    shares = torch.ones_like(distances, dtype=torch.float64)
    if strategy == "divergence":
        shares = _relative_to_largest(distances.double())
    elif strategy == "similarity":
        shares = _inverse(distances.double())
    equal: Tensor | float = 1 / distances.shape[1]
    if start is not None:
        equal = normalize_weights(start)
        shares = shares * equal
    totals = shares.sum(dim=1, keepdim=True)
    return torch.where(totals > 0, shares / totals.clamp_min(1e-300), equal)


def _relative_to_largest(distances: Tensor) -> Tensor:
    """Scale to [0, 1], so that neither tiny nor huge distances underflow or overflow."""
    largest = distances.amax(dim=1, keepdim=True)
    return torch.where(largest > 0, distances / largest, 0.0)


def _inverse(distances: Tensor) -> Tensor:
    """Scale inverse distances so that the nearest client has 1."""
    smallest = distances.amin(dim=1, keepdim=True)
    at_the_mean = (distances == 0).double()
    return torch.where(smallest > 0, smallest / distances, at_the_mean)


class PairDistances(NamedTuple):
    """Root mean square distance of two clients' layers, within and between domains (CSAC, figure 4).

    None where there is no such pair.
    """

    layers: tuple[str, ...]
    same_domain: tuple[float | None, ...]
    other_domain: tuple[float | None, ...]


def pair_distances(rows: Tensor, domains: Sequence[str | None], layers: Sequence[Layer]) -> PairDistances:
    """Compute distances between clients of the same domain and between clients of different domains.

    One pass over the clients is enough for any number of them: no pair is computed separately.

    domains  each client's domain; None for a client with several, which is left out

    Sums over pairs follow from sums over clients: sum |w_i - w_j|^2 = n sum |w_i|^2 - |sum w_i|^2, here of
    differences to one client's weights, so that large weights with small differences lose no digits.
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
    """Sum the squared distances over the pairs of every group (a row of ones and zeros)."""
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
