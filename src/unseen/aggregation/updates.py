"""The input of the server in a round: the clients' updates, one row per client."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unseen.aggregation.aggregators import StateMerging
from unseen.aggregation.averaging import normalize_weights, weighted_mean
from unseen.models import Layout
from unseen.seeding import torch_generator


@dataclass(frozen=True)
class Updates:
    """The clients' updates of one round, in the order of the clients' names in the federation.

    rows     float32 (clients x state): every client's whole state after local training
    samples  float64 (clients): number of training samples of each client
    steps    float64 (clients): number of optimizer steps of each client
    extras   what each client sent in addition to its state
    merging  how states are merged in place of the plain mean; None = as the method says
    """

    clients: tuple[str, ...]
    rows: Tensor
    samples: Tensor
    steps: Tensor
    extras: tuple[Mapping[str, Tensor], ...]
    layout: Layout
    merging: StateMerging | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def clients_in_mean(self) -> float:
        """Number of clients by which the mean divides."""
        return float(len(self))

    def mean(self, weights: Tensor) -> Tensor:
        """Average the clients' states, or merge them as `--aggregate` says.

        `averaging` and `aggregators` state the policies for buffers.
        """
        if self.merging is not None:
            return self.merging.merge_states(self.rows, weights, self.layout)
        return weighted_mean(self.rows, weights, layout=self.layout)

    def mean_of_vectors(self, vectors: Tensor, weights: Tensor) -> Tensor:
        """Average other vectors (clients x numbers) as the states are, such as control variates."""
        if self.merging is not None:
            return self.merging.merge_vectors(vectors, weights)
        return normalize_weights(weights).to(vectors.dtype) @ vectors


@dataclass(frozen=True)
class SummedUpdates(Updates):
    """Updates of which only the weighted mean of the clients' states is known, as the only row.

    `samples` is the sum over the clients, `extras` their mean or sum, as the method declares.

    expected  number of clients by which the mean divides, where it is not that of the clients in the sum
    """

    uniform: bool = False
    expected: float | None = None

    @property
    def clients_in_mean(self) -> float:
        """Number of clients by which the mean divides; under `dp-clients` the expected number."""
        return float(len(self)) if self.expected is None else self.expected

    def mean(self, weights: Tensor) -> Tensor:
        """Return the mean, taken with the weights that the method declares; refuse other weights."""
        expected = torch.ones_like(self.samples) if self.uniform else self.samples
        if not torch.equal(weights, expected):
            raise ValueError(
                "only the sum over clients is known, so the server half can use no other mean than the "
                f"one by {'equal weights' if self.uniform else 'samples'} that its method declares"
            )
        return self.rows[0].clone()


@dataclass
class ServerWork:
    """Everything a method's server half may use.

    rounds       number of rounds of the run, for schedules over rounds; None = unknown
    weights      the global state before this round
    state        the server's own state, kept across rounds
    population   number of clients in the federation, in this round or not; 0 = unknown
    lr           the clients' learning rate in this round; 0 = unknown
    asked        names of the clients that were asked to train, whether they returned a usable update or not
    diagnostics  numbers that the method adds to the round's record
    """

    round: int
    seed: int
    weights: Tensor
    updates: Updates
    rounds: int | None = None
    state: MutableMapping[str, Tensor] = field(default_factory=dict)
    diagnostics: dict[str, Any] = field(default_factory=dict)
    population: int = 0
    lr: float = 0.0
    asked: tuple[str, ...] = ()

    def generator(self, purpose: str) -> torch.Generator:
        """Create the server's generator for a purpose in this round."""
        return torch_generator(self.seed, purpose, "server", self.round)
