"""Sums over a client's samples of features, of their products, and of their products with targets.

Sums of several clients add up to those of the pooled samples, so whatever a server computes from them is what
it would compute from all samples in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.data import Batch, Samples
from unseen.models import Network, blocked_maps

BATCH = 128
COUNTS, FEATURES = "weights and sums of targets", "sums of features"
CROSS, PRODUCTS = "sums of features times targets", "sums of products of features"

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
    """Weighted sums over samples with features f (d numbers) and targets y (c numbers), all float64.

    count     total weight: the number of samples where each weighs 1
    squares   sum of |y|^2
    targets   sum of y
    features  sum of f
    cross     sum of f y^T (d x c)
    products  sum of f f^T (d x d)
    """

    count: Tensor
    squares: Tensor
    targets: Tensor
    features: Tensor
    cross: Tensor
    products: Tensor

    @classmethod
    def zeros(cls, features: int, targets: int) -> FeatureSums:
        """Return the sums over no sample."""
        shapes = ((), (), (targets,), (features,), (features, targets), (features, features))
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))

    def add(self, batch: FeatureBatch) -> None:
        """Add a batch in place."""
        features, targets, weights = batch
        weighted = features * weights[:, None]
        self.count.add_(weights.sum())
        self.squares.add_(weights @ targets.square().sum(1))
        self.targets.add_(weights @ targets)
        self.features.add_(weighted.sum(0))
        self.cross.addmm_(weighted.T, targets)
        self.products.addmm_(weighted.T, features)

    def pack(self, of: str = "") -> dict[str, Tensor]:
        """Name the sums as kinds of values that leave a client; of the products only the upper triangle.

        of  end of the names, for sums over other samples than the training ones
        """
        rows, columns = torch.triu_indices(*self.products.shape)
        return {
            COUNTS + of: torch.cat([self.count[None], self.squares[None], self.targets]),
            FEATURES + of: self.features,
            CROSS + of: self.cross,
            PRODUCTS + of: self.products[rows, columns],
        }

    @classmethod
    def unpack(cls, sent: Sequence[Mapping[str, Tensor]], of: str = "") -> FeatureSums:
        """Add up what clients sent; one entry that is a sum already is taken as it is."""
        counts, features, cross, triangle = (
            torch.stack([extras[kind + of] for extras in sent]).sum(0)
            for kind in (COUNTS, FEATURES, CROSS, PRODUCTS)
        )
        size = len(features)
        rows, columns = torch.triu_indices(size, size)
        products = torch.zeros(size, size, dtype=torch.float64)
        products[rows, columns] = triangle
        products[columns, rows] = triangle
        return cls(counts[0], counts[1], counts[2:], features, cross, products)

    @staticmethod
    def kinds(of: str = "") -> tuple[str, ...]:
        """Return the names that `pack` gives."""
        return tuple(kind + of for kind in (COUNTS, FEATURES, CROSS, PRODUCTS))


def sum_features(
    network: Network,
    samples: Samples,
    *,
    prepare: Callable[[Batch], Batch],
    balance: Balance,
    one: float = 1.0,
    watch: Watch | None = None,
) -> FeatureSums:
    """Pass samples through a network's features once and sum them up; arguments as in `feature_batches`."""
    outputs = samples.task_type.count_outputs(samples.classes)
    sums = FeatureSums.zeros(network.feature_size, outputs)
    for batch in feature_batches(network, samples, prepare=prepare, balance=balance, one=one, watch=watch):
        sums.add(batch)
    return sums
