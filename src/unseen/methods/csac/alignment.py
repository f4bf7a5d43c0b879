"""CSAC's cross-layer semantic calibration (eq. 5 to 9): projections, attention, distances, alignment loss.

The paper averages whole attention maps (positions x positions, channels x channels). The average of a product
of matrices is the product of their averages, so no map is built. Distances (maximum mean
discrepancy with several Gaussian kernels, or MSE) work on stacks of feature sets and return the matrix of
all pairs at once, so that the distances inside a set are computed once, however many partners the set has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Size, Tensor, nn

from unseen.models import Network, Output

if TYPE_CHECKING:
    from unseen.methods.csac.csac import CSACSettings


def position_similarity(fused: Tensor, local: Tensor) -> Tensor:
    """Compute avg(A_l^T B_m) of CSAC's eq. 7, the batch mean: (L, n, c, d) and (M, n, c, d) give (L, M)."""
    return _mean_product(fused.mean(-1), local.mean(-1))


def channel_similarity(fused: Tensor, local: Tensor) -> Tensor:
    """Compute avg(A_l B_m^T) of CSAC's eq. 8, the batch mean: (L, n, c, d) and (M, n, c, d) give (L, M)."""
    return _mean_product(fused.mean(-2), local.mean(-2))


def over_local_layers(similarity: Tensor) -> Tensor:
    """Apply softmax over m (eq. 7 and 8): each fused layer distributes a weight of one over local layers."""
    return similarity.softmax(dim=1)


def _mean_product(fused: Tensor, local: Tensor) -> Tensor:
    """Compute the inner product of every pair of layers, averaged over the samples."""
    return fused.flatten(1) @ local.flatten(1).T / fused.shape[1]


BANDWIDTHS = tuple(3.0**power for power in range(-3, 2))
"""Bandwidth of each kernel in units of the mean squared distance: 1/27, 1/9, 1/3, 1, 3."""
_SMALLEST_BANDWIDTH = 1e-30


def pairwise_mmd(first: Tensor, second: Tensor) -> Tensor:
    """Compute the squared MMD of every pair of sets: (L, n, d) and (M, n, d) give (L, M).

    For sets x and y of n features:

        mean_{i != j} k(x_i, x_j) + mean_{i != j} k(y_i, y_j) - 2 mean_{i, j} k(x_i, y_j)
        k(u, v) = sum_b exp(-|u - v|^2 / (2 b s)),  b in BANDWIDTHS

    s is the mean of the squared distances over all (2n)^2 pairs of the joint set, a constant for the backward
    pass. The within-terms are unbiased, so the value may be slightly negative. One sample has no within-term:
    for n = 1 all distances are zero.
    """
    samples = first.shape[1]
    if samples < 2:
        return (first.sum() + second.sum()).mul(0).expand(len(first), len(second))
    middle = torch.cat([first, second]).detach().mean((0, 1))
    first, second = first - middle, second - middle
    inside_first = _squared_distances(first, first)[:, None]
    inside_second = _squared_distances(second, second)[None]
    between = _squared_distances(first[:, None], second[None])
    scale = mean_squared_distance(inside_first, inside_second, between)
    return (
        _mean_off_diagonal(_kernel(inside_first, scale))
        + _mean_off_diagonal(_kernel(inside_second, scale))
        - 2 * _kernel(between, scale).mean((-2, -1))
    )


def pairwise_mse(first: Tensor, second: Tensor) -> Tensor:
    """Compute the mean squared error of every pair of sets: (L, n, d) and (M, n, d) give (L, M)."""
    return (first[:, None] - second[None]).square().mean((-2, -1))


@torch.no_grad()
def mean_squared_distance(inside_first: Tensor, inside_second: Tensor, between: Tensor) -> Tensor:
    """Average over all (2n)^2 pairs of the joint set, from its blocks; 1 where all features are equal."""
    total = inside_first.sum((-2, -1)) + inside_second.sum((-2, -1)) + 2 * between.sum((-2, -1))
    mean = total / (4 * between.shape[-1] ** 2)
    return torch.where(mean > _SMALLEST_BANDWIDTH, mean, 1.0)


def _squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """Compute |u - v|^2 of all pairs of rows with one matrix product; features should be centered."""
    products = first @ second.transpose(-1, -2)
    lengths = first.square().sum(-1)[..., :, None] + second.square().sum(-1)[..., None, :]
    return (lengths - 2 * products).clamp_min(0)


def _kernel(squared: Tensor, scale: Tensor) -> Tensor:
    """Sum the Gaussian kernels; `squared` (..., n, n) broadcasts against one scale per pair."""
    relative = squared / (-2 * scale[..., None, None])
    return torch.stack([relative / bandwidth for bandwidth in BANDWIDTHS]).exp().sum(0)


def _mean_off_diagonal(matrices: Tensor) -> Tensor:
    """Compute the mean over i != j of (..., n, n)."""
    size = matrices.shape[-1]
    total = matrices.sum((-2, -1)) - matrices.diagonal(dim1=-2, dim2=-1).sum(-1)
    return total / (size * (size - 1))


class Geometry(NamedTuple):
    """Kernel and stride of a convolution without padding."""

    kernel: tuple[int, int]
    stride: tuple[int, int]


def geometry(maps: Sequence[int], target: Sequence[int]) -> Geometry:
    """Choose the convolution that maps one size (height, width) to a smaller or equal one exactly.

    Along each side stride = size // target and kernel = size - (target - 1) * stride, so that the windows
    cover every pixel: 28 -> 7 gives 4x4 windows 4 apart, 12 -> 4 gives 3x3 windows 3 apart.
    """
    strides = [size // wanted for size, wanted in zip(maps, target, strict=True)]
    kernels = [
        size - (wanted - 1) * stride for size, wanted, stride in zip(maps, target, strides, strict=True)
    ]
    return Geometry((kernels[0], kernels[1]), (strides[0], strides[1]))


def tapped_maps(output: Output) -> tuple[Tensor, ...]:
    """Return the maps of the tapped layers; without taps the features, as maps of one pixel."""
    return output.taps or (output.features[:, :, None, None],)


class Projections(nn.Module):
    """Convolutions of both models (eq. 5), and the 1x1 queries and keys if the position-wise map uses them.

    The common size is that of the last tapped layer (or of the smallest, if that is another one).
    """

    def __init__(self, shapes: Sequence[Size], *, channels: int, query_key: bool) -> None:
        super().__init__()
        target = min(shape[-2] for shape in shapes), min(shape[-1] for shape in shapes)
        self.fused = nn.ModuleList(_projection(shape, target, channels) for shape in shapes)
        self.local = nn.ModuleList(_projection(shape, target, channels) for shape in shapes)
        pointwise = len(shapes) if query_key else 0
        self.queries = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(pointwise))
        self.keys = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(pointwise))

    def forward(self, fused: Sequence[Tensor], local: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Project both networks' maps; return each side as (layers, n, channels, positions)."""
        return _apply(self.fused, fused).flatten(3), _apply(self.local, local).flatten(3)

    def queried(self, fused: Tensor, local: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the position-wise map compares: queries and keys, or the projected maps themselves."""
        if not self.queries:
            return fused, local
        queries = _apply(self.queries, fused[..., None])
        return queries.flatten(3), _apply(self.keys, local[..., None]).flatten(3)


def _projection(shape: Size, target: tuple[int, int], channels: int) -> nn.Conv2d:
    kernel, stride = geometry(shape[-2:], target)
    return nn.Conv2d(shape[-3], channels, kernel, stride=stride)


def _apply(layers: nn.ModuleList, maps: Sequence[Tensor] | Tensor) -> Tensor:
    return torch.stack([layer(values) for layer, values in zip(layers, maps, strict=True)])


class AlignmentLoss:
    """L_AL between the fused model, which is trained, and the frozen partner, with its running means.

    partner      the client's own model, in evaluation mode; it gets no gradients and no updates
    projections  project both models' maps to one size; None if only outputs are aligned
    """

    def __init__(self, settings: CSACSettings, *, partner: Network, projections: Projections | None) -> None:
        self.settings, self.partner, self.projections = settings, partner, projections
        self._samples = 0
        self._loss_sum = torch.zeros(())
        self._weights_sum = torch.zeros(())

    def __call__(self, inputs: Tensor, fused: Output) -> Tensor:
        """Compute the loss on a batch, given the fused model's outputs for it."""
        with torch.no_grad():
            local = self.partner.full(inputs)
        loss = torch.zeros((), device=inputs.device)
        if self.projections is not None:
            loss = loss + self._maps_term(self.projections, fused, local)
        if self.settings.aligns_logits:
            loss = loss + self._distances(fused.logits[None], local.logits[None])[0, 0]
        self._loss_sum = self._loss_sum + loss.detach().cpu() * len(inputs)
        self._samples += len(inputs)
        return loss

    def diagnostics(self) -> dict[str, Any]:
        """Return means over the round: the loss, and the weight of every pair (fused layer, local layer)."""
        samples = max(self._samples, 1)
        found: dict[str, Any] = {"alignment_loss": float(self._loss_sum) / samples}
        if self.projections is not None:
            rows: list[list[float]] = (self._weights_sum / samples).tolist()
            found["attention"] = [[round(value, 5) for value in row] for row in rows]
        return found

    def _maps_term(self, projections: Projections, fused: Output, local: Output) -> Tensor:
        """Compute eq. 6: the sum over l and m of a_{l,m} D(M_l', L_m')."""
        maps, partner_maps = projections(tapped_maps(fused), tapped_maps(local))
        with torch.set_grad_enabled(self.settings.attention_gradient):
            weights = pair_weights(self.settings, projections, maps, partner_maps)
        self._weights_sum = self._weights_sum + weights.detach().cpu() * maps.shape[1]
        return (weights * self._distances(maps.flatten(2), partner_maps.flatten(2))).sum()

    def _distances(self, fused: Tensor, local: Tensor) -> Tensor:
        return (pairwise_mmd if self.settings.distance == "mmd" else pairwise_mse)(fused, local)


def pair_weights(settings: CSACSettings, projections: Projections, fused: Tensor, local: Tensor) -> Tensor:
    """Compute the matrix a_{l,m}, in which every fused layer distributes a total weight of one.

    Cross-layer: eq. 9, the mean of the position-wise (eq. 7) and the channel-wise (eq. 8) weights, or one of
    them, or without attention 1/|R| for all. Same-layer: all of it to the layer at the same position.
    """
    layers = len(fused)
    if settings.alignment == "same-layer":
        return torch.eye(layers, device=fused.device)
    if settings.attention == "none":
        return torch.full((layers, layers), 1 / layers, device=fused.device)
    kinds = []
    if settings.attention in ("both", "position"):
        kinds.append(over_local_layers(position_similarity(*projections.queried(fused, local))))
    if settings.attention in ("both", "channel"):
        kinds.append(over_local_layers(channel_similarity(fused, local)))
    return torch.stack(kinds).mean(0)
