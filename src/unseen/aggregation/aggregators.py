"""Aggregators: how the server merges the clients' states where a method averages them, `--aggregate NAME`.

The mean follows any single client as far as it likes to go. A robust aggregator bounds what a few lying
clients can do. All but the mean count every client once: weights by samples rest on what clients say.

Buffer policy of the robust ones: float buffers (batch-norm statistics) are merged together with the
parameters, by the same rule; integer buffers (batch counters) take the lower median of the clients.

A plugin adds one with a class:

    @AGGREGATORS.register("midrange")
    @dataclass(frozen=True)
    class Midrange(Aggregator):
        '''The middle between the smallest and the largest value; one liar moves it.'''

        def combine(self, rows: Tensor, reference: Tensor) -> Combined:
            return Combined((rows.amin(0) + rows.amax(0)) / 2)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unseen.aggregation.averaging import normalize_weights, weighted_mean, without_counters
from unseen.aggregation.distances import block_slices, block_width
from unseen.errors import UnseenError
from unseen.hparams import Settings, make_settings
from unseen.models import Kind, Layout
from unseen.registry import Registry


class Combined(NamedTuple):
    """A merged vector, and the part that every client has in it, where the rule gives such parts."""

    vector: Tensor
    shares: Tensor | None = None


@dataclass(frozen=True)
class Aggregator(Settings, ABC):
    """Base class of all aggregators; its fields are the settings that `--aggregate-set` takes."""

    def tolerates(self, clients: int) -> int:
        """Return how many lying clients among so many cannot move the result arbitrarily far."""
        return 0

    def needs(self) -> int:
        """Return the smallest number of clients in a round."""
        return 1

    @abstractmethod
    def combine(self, rows: Tensor, reference: Tensor) -> Combined:
        """Merge vectors (clients x numbers), none of them preferred.

        reference  the global vector before the round: honest clients are near it
        """


AGGREGATORS: Registry[type[Aggregator]] = Registry(
    "aggregator",
    group="unseen.aggregators",
    builtin=("unseen.aggregation.aggregators", "unseen.aggregation.robust_aggregators"),
)


def make_aggregator(name: str, settings: Mapping[str, Any] | None = None) -> Aggregator:
    """Create an aggregator by name with its settings checked."""
    return make_settings(AGGREGATORS[name], settings or {}, owner=f"aggregator {name!r}")


@AGGREGATORS.register("mean")
@dataclass(frozen=True)
class Mean(Aggregator):
    """The mean, with the weights that the method gives the clients; one lying client moves it anywhere."""

    def combine(self, rows: Tensor, reference: Tensor) -> Combined:
        """Average with equal weights; states are averaged by `weighted_mean`."""
        equal = torch.full((len(rows),), 1 / len(rows), dtype=rows.dtype)
        return Combined(equal @ rows, equal)


@dataclass
class StateMerging:
    """How a round's states are merged: the aggregator, and the largest weight of a site in the mean.

    reference    the global state before the round
    groups       the site of every client; a client of several domains is a site of its own
    diagnostics  what acted, for the round's record
    used         whether the method's server half asked for a mean at all
    """

    aggregator: Aggregator
    reference: Tensor
    clients: tuple[str, ...]
    groups: tuple[str, ...] = ()
    max_weight: float | None = None
    diagnostics: dict[str, Any] = field(default_factory=dict)
    used: bool = False

    def merge_states(self, rows: Tensor, weights: Tensor, layout: Layout) -> Tensor:
        """Merge whole states, by the mean with bounded weights or by a robust aggregator."""
        self.used = True
        if isinstance(self.aggregator, Mean):
            return weighted_mean(rows, self._bounded(weights), layout=layout)
        merged, numbers = torch.empty_like(rows[0]), without_counters(layout)
        found = self._combine(rows[:, numbers], self.reference[numbers])
        merged[numbers] = found.vector
        if found.shares is not None:
            shares = zip(self.clients, found.shares.tolist(), strict=True)
            self.diagnostics["merged_shares"] = dict(shares)
        counters = layout.extent(Kind.INTEGER_BUFFER)
        if counters.start != counters.stop:
            merged[counters] = rows[:, counters].median(dim=0).values
        return merged

    def merge_vectors(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Merge other vectors that a method averages beside the states, such as control variates."""
        if isinstance(self.aggregator, Mean):
            return normalize_weights(self._bounded(weights)).to(rows.dtype) @ rows
        return self._combine(rows, torch.zeros_like(rows[0])).vector

    def _combine(self, rows: Tensor, reference: Tensor) -> Combined:
        if len(rows) < self.aggregator.needs():
            raise UnseenError(
                f"{len(rows)} clients sent a usable update, and the aggregator needs at least "
                f"{self.aggregator.needs()}: continue with --resume when more can be reached"
            )
        return self.aggregator.combine(rows, reference)

    def _bounded(self, weights: Tensor) -> Tensor:
        if self.max_weight is None:
            return weights
        shares = normalize_weights(weights)
        bounded = bound_shares(shares, self.groups, largest=self.max_weight)
        if not torch.equal(bounded, shares):
            before = sum_by_group(shares, self.groups)
            acted = {group: share for group, share in before.items() if share > self.max_weight}
            self.diagnostics["weight_before_bound"] = acted
        return bounded


def bound_shares(shares: Tensor, groups: tuple[str, ...], *, largest: float) -> Tensor:
    """Lower the share of every group above `largest` to it, and give the rest to the others in proportion.

    Where the bound leaves no room (fewer than 1 / largest groups), all groups have the same share. Clients of
    a group keep their proportions.
    """
    totals = sum_by_group(shares, groups)
    bound = max(largest, 1 / len(totals))
    capped: set[str] = set()
    while True:
        free = sum(total for group, total in totals.items() if group not in capped)
        room = 1 - bound * len(capped)
        factor = room / free if free > 0 else 0.0
        over = {g for g, total in totals.items() if g not in capped and total * factor > bound * (1 + 1e-12)}
        if not over:
            break
        capped |= over
    if not capped:
        return shares
    spread = {
        group: bound / total if group in capped and total > 0 else factor for group, total in totals.items()
    }
    return shares * torch.tensor([spread[group] for group in groups], dtype=shares.dtype)


def sum_by_group(shares: Tensor, groups: tuple[str, ...]) -> dict[str, float]:
    """Add up the shares of each group."""
    totals = dict.fromkeys(groups, 0.0)
    for group, share in zip(groups, shares.tolist(), strict=True):
        totals[group] += share
    return totals


def step_norms(rows: Tensor, reference: Tensor, layout: Layout) -> Tensor:
    """Compute ||w_k - w|| of every client over all but the batch counters: float64 (clients)."""
    extent = without_counters(layout)
    squares = torch.zeros(len(rows), dtype=torch.float64)
    for columns in block_slices(extent, block_width(len(rows))):
        block = rows[:, columns] - reference[columns]
        squares += torch.linalg.vector_norm(block, dim=1, dtype=torch.float64).square_()
    return squares.sqrt_()


def clip_steps(rows: Tensor, reference: Tensor, norms: Tensor, *, limit: float, layout: Layout) -> list[int]:
    """Shorten steps longer than `limit` to it, in place; return the places of the shortened rows.

    A shortened state lies between the global one and the client's, so that no variance becomes negative.
    """
    extent = without_counters(layout)
    places: list[int] = (norms > limit).nonzero().flatten().tolist()
    for place in places:
        row, start = rows[place, extent], reference[extent]
        torch.lerp(start, row, limit / float(norms[place]), out=row)
    return places
