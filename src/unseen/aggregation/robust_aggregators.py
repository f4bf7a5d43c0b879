"""Robust aggregators: coordinate-wise median and trimmed mean, Krum and multi-Krum, geometric median.

The coordinate-wise rules leave out extreme values by a network of vector operations. The others need only the
inner products of the clients' steps (one blocked pass) and one weighted sum. Steps are taken from the global
state: an absurd client spoils its own row of the matrix and no other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unseen.aggregation.aggregators import AGGREGATORS, Aggregator, Combined
from unseen.aggregation.averaging import weighted_sum
from unseen.aggregation.sorting_network import middle_blocks
from unseen.aggregation.step_products import squared_distances, step_products
from unseen.errors import UsageError
from unseen.hparams import setting

FEWEST = 3
"""Of two clients that differ, no rule can say which one lies."""


@dataclass(frozen=True)
class _RobustAggregator(Aggregator):
    def needs(self) -> int:
        """Return the smallest number of clients in a round."""
        return FEWEST


@AGGREGATORS.register("median")
@dataclass(frozen=True)
class Median(_RobustAggregator):
    """Coordinate-wise median (Yin et al. 2018): bears fewer than half lying clients."""

    def tolerates(self, clients: int) -> int:
        """Return the largest number below half."""
        return max((clients - 1) // 2, 0)

    def combine(self, rows: Tensor, reference: Tensor) -> Combined:
        """Take the middle value of every column, or the mean of the two middle ones."""
        return Combined(_mean_of_middle(rows, self.tolerates(len(rows))))


@AGGREGATORS.register("trimmed-mean")
@dataclass(frozen=True)
class TrimmedMean(_RobustAggregator):
    """Coordinate-wise trimmed mean (Yin et al. 2018): leaves out the extremes of every coordinate."""

    trim: float = setting(
        0.2, "fraction of the clients left out at each end, in (0, 0.5); at least one client is"
    )

    def __post_init__(self) -> None:
        if not 0 < self.trim < 0.5:
            raise UsageError(f"setting 'trim' of trimmed-mean must be between 0 and 0.5, not {self.trim}")

    def tolerates(self, clients: int) -> int:
        """Return the number of clients that are left out at each end."""
        return min(max(int(self.trim * clients), 1), (clients - 1) // 2)

    def combine(self, rows: Tensor, reference: Tensor) -> Combined:
        """Average the values of every column without the smallest and the largest ones."""
        return Combined(_mean_of_middle(rows, self.tolerates(len(rows))))


@dataclass(frozen=True)
class _ByDistance(_RobustAggregator):
    """Settings of the rules that score clients by their distances to the nearest others."""

    liars: int | None = setting(
        None, "number f of clients that may lie; none = the most that so many clients allow, (n - 3) / 2"
    )

    def __post_init__(self) -> None:
        if self.liars is not None and self.liars < 0:
            raise UsageError(f"setting 'liars' must not be negative, not {self.liars}")

    def needs(self) -> int:
        """Return 2 f + 3, below which the rule promises nothing."""
        return FEWEST if self.liars is None else 2 * self.liars + 3

    def tolerates(self, clients: int) -> int:
        """Return f."""
        most = max((clients - 3) // 2, 0)
        return most if self.liars is None else min(self.liars, most)

    def scores(self, rows: Tensor, reference: Tensor) -> Tensor:
        """Sum every client's squared distances to its n - f - 2 nearest others (Blanchard et al. 2017)."""
        squares = squared_distances(rows, reference)
        nearest = max(len(rows) - self.tolerates(len(rows)) - 2, 1)
        return squares.sort(dim=1).values[:, 1 : nearest + 1].sum(dim=1)


@AGGREGATORS.register("krum")
@dataclass(frozen=True)
class Krum(_ByDistance):
    """Krum (Blanchard et al. 2017): the state of the one client that is nearest to its neighbours."""

    def combine(self, rows: Tensor, reference: Tensor) -> Combined:
        """Choose the client with the smallest score; of equal ones the first."""
        chosen = int(self.scores(rows, reference).argmin())
        shares = torch.zeros(len(rows), dtype=torch.float64)
        shares[chosen] = 1
        return Combined(rows[chosen].clone(), shares)


@AGGREGATORS.register("multi-krum")
@dataclass(frozen=True)
class MultiKrum(_ByDistance):
    """Multi-Krum (Blanchard et al. 2017): the mean of the clients with the smallest scores."""

    keep: int | None = setting(None, "number of clients that are averaged, at most n - f; none = n - f")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is not None and self.keep < 1:
            raise UsageError(f"setting 'keep' of multi-krum must be at least 1, not {self.keep}")

    def combine(self, rows: Tensor, reference: Tensor) -> Combined:
        """Average the clients with the smallest scores, never more than n - f.

        An honest client's score counts no liar, since n - f - 1 others are honest; a liar beyond the honest
        clients' diameter has a larger one.
        """
        most = len(rows) - self.tolerates(len(rows))
        best = self.scores(rows, reference).argsort(stable=True)[: min(self.keep or most, most)]
        shares = torch.zeros(len(rows), dtype=torch.float64)
        shares[best] = 1 / len(best)
        return Combined(weighted_sum(rows, shares), shares)


@AGGREGATORS.register("geometric-median")
@dataclass(frozen=True)
class GeometricMedian(_RobustAggregator):
    """Geometric median (Pillutla et al. 2022): the state with the smallest sum of distances to clients."""

    iterations: int = setting(200, "largest number of steps of Weiszfeld's algorithm")
    accuracy: float = setting(1e-6, "move of the point, in median distances, below which it ends")

    def __post_init__(self) -> None:
        if self.iterations < 1 or not self.accuracy > 0:
            raise UsageError(
                "settings 'iterations' and 'accuracy' of geometric-median must be at least 1 and above 0"
            )

    def tolerates(self, clients: int) -> int:
        """Return the largest number below half."""
        return max((clients - 1) // 2, 0)

    def combine(self, rows: Tensor, reference: Tensor) -> Combined:
        """Run Weiszfeld's algorithm on the clients' shares: distances follow from the Gram matrix."""
        products = step_products(rows, reference)
        shares = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
        for _ in range(self.iterations):
            towards = products @ shares
            squares = (products.diagonal() - 2 * towards + shares @ towards).clamp_(min=0)
            # A client at the current point would get all of the weight: distances have a smallest value.
            distance = float(squares.sqrt().median())
            weights = 1 / squares.sqrt().clamp_(min=1e-6 * distance or 1e-150)
            former, shares = shares, weights / weights.sum()
            moved = shares - former
            if float(moved @ products @ moved) <= (self.accuracy * distance) ** 2:
                break
        return Combined(weighted_sum(rows, shares), shares)


def _mean_of_middle(rows: Tensor, cut: int) -> Tensor:
    """Average the values of every column without its `cut` smallest and `cut` largest."""
    merged = torch.empty_like(rows[0])
    into = merged.numpy()
    for columns, (first, *others) in middle_blocks(rows, cut):
        total = into[columns]
        np.copyto(total, first)
        for each in others:
            total += each
        if others:
            total *= 1 / (1 + len(others))
    return merged
