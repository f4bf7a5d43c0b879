"""Sums over a client's samples of features, of their products, and of their products with targets.

Sums of several clients add up to those of the pooled samples, so whatever a server computes from them is what
it would compute from all samples in one place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.data import Batch, Samples
from unseen.models import Network, blocked_maps

BATCH = 128
SUMS, VALIDATION_SUMS = "feature sums", "validation feature sums"
"""Kinds of values that leave a client: sums of features, targets and their products, over each split."""

Watch = Callable[[Tensor, Batch], None]
Balance = Literal["samples", "clients", "classes"]
BALANCE = "what has equal weight: all `samples`, all `clients`, or all `classes` of all clients"


def sample_weights(samples: Samples, balance: Balance) -> Tensor:
    """Return the weight of each of a client's samples, for which it needs to know no other client.

    Where there are no classes, `classes` is `clients`.
    """
    if balance == "samples":
        return torch.ones(len(samples), dtype=torch.float64)
    if balance == "clients" or not samples.task_type.has_classes:
        return torch.full((len(samples),), 1 / max(len(samples), 1), dtype=torch.float64)
    return 1 / samples.targets.bincount(minlength=1).double()[samples.targets]


class FeatureBatch(NamedTuple):
    """Features, targets (classes as vectors, a quantity as it is) and weights of some samples, in float64."""

    features: Tensor
    targets: Tensor
    weights: Tensor


def feature_batches(
    network: Network,
    samples: Samples,
    *,
    prepare: Callable[[Batch], Batch],
    balance: Balance,
    one: float = 1.0,
    watch: Watch | None = None,
) -> Iterator[FeatureBatch]:
    """Yield features and targets of all samples, as in evaluation: in order, without augmentation.

    one    what a class vector has at its class, instead of 1
    watch  called with the features of every batch as the head gets them
    """
    weights = sample_weights(samples, balance)
    network.eval()
    with torch.inference_mode():
        for positions in torch.arange(len(samples)).split(BATCH):
            batch = prepare(samples.gather(positions))
            with blocked_maps():
                features = network.features(batch.inputs)
            targets = target_values(batch.targets.cpu(), samples, one=one)
            yield FeatureBatch(features.cpu().double(), targets, weights[positions])
            if watch is not None:
                watch(features, batch)


def target_values(targets: Tensor, samples: Samples, *, one: float) -> Tensor:
    """Convert targets to a row of numbers per sample: `one` at the class and 0 elsewhere, or the quantity."""
    if samples.task_type.has_classes:
        return one * F.one_hot(targets.long(), len(samples.classes)).double()
    return targets.double().reshape(len(targets), -1)


@dataclass(frozen=True)
class FeatureSums:
    """Weighted sums over samples with targets y (c numbers) and features f (d numbers), in float64.

    matrix   sum of u u^T with u = (1, y, f): all sums of one value and of products of two
    outputs  c
    """

    matrix: Tensor
    outputs: int

    @classmethod
    def zeros(cls, features: int, outputs: int) -> FeatureSums:
        """Return the sums over no sample."""
        size = 1 + outputs + features
        return cls(torch.zeros(size, size, dtype=torch.float64), outputs)

    def add(self, batch: FeatureBatch) -> None:
        """Add a batch in place."""
        features, targets, weights = batch
        whole = torch.cat([torch.ones_like(weights)[:, None], targets, features], dim=1)
        self.matrix.addmm_((whole * weights[:, None]).T, whole)

    @property
    def count(self) -> Tensor:
        """Total weight: the number of samples where each weighs 1."""
        return self.matrix[0, 0]

    @property
    def targets(self) -> Tensor:
        """Sum of y."""
        return self.matrix[0, 1 : 1 + self.outputs]

    @property
    def squares(self) -> Tensor:
        """Sum of |y|^2."""
        return self.matrix.diagonal()[1 : 1 + self.outputs].sum()

    @property
    def features(self) -> Tensor:
        """Sum of f."""
        return self.matrix[0, 1 + self.outputs :]

    @property
    def cross(self) -> Tensor:
        """Sum of f y^T (d x c)."""
        return self.matrix[1 + self.outputs :, 1 : 1 + self.outputs]

    @property
    def products(self) -> Tensor:
        """Sum of f f^T (d x d)."""
        return self.matrix[1 + self.outputs :, 1 + self.outputs :]

    def standardized(self, mean: Tensor, scale: Tensor) -> FeatureSums:
        """Return the sums over features (f - mean) / scale; u changes linearly, so they follow from these."""
        change = torch.eye(len(self.matrix), dtype=torch.float64)
        place = slice(1 + self.outputs, None)
        change[place, 0] = -mean / scale
        change[place, place] = (1 / scale).diag()
        return FeatureSums(change @ self.matrix @ change.T, self.outputs)

    def pack(self) -> Tensor:
        """Return the upper triangle, which is what a client sends."""
        rows, columns = torch.triu_indices(*self.matrix.shape)
        return self.matrix[rows, columns]

    @classmethod
    def unpack(cls, sent: Sequence[Tensor], *, outputs: int) -> FeatureSums:
        """Add up what clients sent; one entry that is a sum already is taken as it is."""
        triangle = torch.stack(list(sent)).sum(0)
        size = math.isqrt(2 * len(triangle))
        rows, columns = torch.triu_indices(size, size)
        matrix = torch.zeros(size, size, dtype=torch.float64)
        matrix[rows, columns] = triangle
        matrix[columns, rows] = triangle
        return cls(matrix, outputs)


def count_sums(*, features: int, outputs: int) -> int:
    """Count the numbers that `FeatureSums.pack` returns."""
    size = 1 + outputs + features
    return size * (size + 1) // 2


def sum_features(
    network: Network,
    samples: Samples,
    *,
    prepare: Callable[[Batch], Batch],
    balance: Balance,
    one: float = 1.0,
    watch: Watch | None = None,
    projection: Tensor | None = None,
) -> FeatureSums:
    """Pass samples through a network's features once and sum them up; arguments as in `feature_batches`.

    projection  matrix P, with which P^T f is summed up instead of f
    """
    outputs = samples.task_type.count_outputs(samples.classes)
    size = network.feature_size if projection is None else projection.shape[1]
    sums = FeatureSums.zeros(size, outputs)
    for batch in feature_batches(network, samples, prepare=prepare, balance=balance, one=one, watch=watch):
        sums.add(batch if projection is None else batch._replace(features=batch.features @ projection))
    return sums
