"""How far each client's layers lie from the clients' mean: a blocked direct pass, without cancellation.

Distances come from differences to one client's weights, never from products of raw weights: where clients
differ by 0.1 %, a Gram matrix of raw float32 weights is wrong by up to 73 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from unseen.aggregation.blocks import difference_blocks
from unseen.aggregation.layers import Grouping, Layer, layers_of
from unseen.models import Layout

Metric = Literal["l2", "l1", "cosine"]

PARALLEL = 1e-13
"""Squared sine of an angle that rounding alone can make."""


class LayerDistances(NamedTuple):
    """Distances of every client to the clients' mean.

    layers  what the rows of `values` stand for
    values  float64 (layers x clients)
    """

    layers: tuple[Layer, ...]
    values: Tensor


def layer_distances(
    rows: Tensor,
    layout: Layout,
    *,
    metric: Metric = "l2",
    grouping: Grouping = "tensor",
    width: int | None = None,
) -> LayerDistances:
    """Distance of every client's layer to the mean of the clients' layers, avg_l = mean_k w_{k,l}.

    metric    l2: ||w_k - avg||_2; l1: ||w_k - avg||_1; cosine: 1 - cos(w_k, avg), where a zero vector is at
              distance 0 from a zero vector and 1 from any other
    grouping  what a layer is, see `layers_of`
    width     columns of a block; chosen by the number of clients unless given

    Identical clients are at distance 0 exactly.
    """
    layers = layers_of(layout, grouping)
    values = torch.zeros(len(layers), len(rows), dtype=torch.float64)
    for layer, value in zip(layers, values, strict=True):
        if metric == "cosine":
            value.copy_(_cosine_distance(rows, layer, width))
        elif metric == "l1":
            value.copy_(_absolute_sum(rows, layer, width))
        else:
            value.copy_(_square_sum(rows, layer, width).sqrt_())
    return LayerDistances(layers, values)


def _square_sum(rows: Tensor, layer: Layer, width: int | None) -> Tensor:
    """Sum of (w_k - avg)^2 over a layer, for every client."""
    total = torch.zeros(len(rows), dtype=torch.float64)
    for _, _, centred in _centred_blocks(rows, layer, width):
        total += torch.linalg.vector_norm(centred, dim=1).square_()
    return total


def _absolute_sum(rows: Tensor, layer: Layer, width: int | None) -> Tensor:
    """Sum of |w_k - avg| over a layer, for every client."""
    total = torch.zeros(len(rows), dtype=torch.float64)
    for _, _, centred in _centred_blocks(rows, layer, width):
        total += torch.linalg.vector_norm(centred, ord=1, dim=1)
    return total


def _cosine_distance(rows: Tensor, layer: Layer, width: int | None) -> Tensor:
    """1 - cos(avg + e_k, avg) from |avg|^2, avg.e_k and |e_k|^2, so that nearly parallel vectors keep digits.

    With |a|^2 |v|^2 - (a.v)^2 = |a|^2 |e|^2 - (a.e)^2 for v = a + e, the difference of two numbers near one
    becomes a quotient of small numbers. Vectors that are parallel up to rounding are at distance 0.
    """
    mean_square = torch.zeros((), dtype=torch.float64)
    products = torch.zeros(len(rows), dtype=torch.float64)
    squares = torch.zeros_like(products)
    for columns, shift, centred in _centred_blocks(rows, layer, width):
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


def _centred_blocks(rows: Tensor, layer: Layer, width: int | None) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield (columns, mean of the clients less the first client, clients less their mean) of a layer."""
    share = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
    for extent in layer.slices:
        for columns, block in difference_blocks(rows, rows[0], extent, width=width):
            mean = share @ block
            yield columns, mean, block.sub_(mean)
