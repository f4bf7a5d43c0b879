"""What a protection is told: of the method and the run before it starts, and of the two sides in a round.

A method stands above this package, so that it describes itself in a plain value; engines fill in the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unseen.aggregation import GradientSurgery, Reduction, Updates, Weighting
from unseen.models import Layout
from unseen.training import LocalTrainingConfig, Update

Message = dict[str, Tensor]
"""Named tensors: the one form in which protections speak, because every engine can carry it."""
SAMPLES = "number of samples"


@dataclass(frozen=True)
class MethodTraits:
    """What a method says of itself.

    sends      every kind of value that leaves a client
    in_state   those of them that travel inside the flat state
    weighting  by what a client counts in the one mean of states that the server half takes
    merges     of what is sent beside the state: whether the server half needs only its mean (with the same
               weights as the states) or its sum over the clients; what is not named it needs of each client
    surgery    its server half, where it combines states by coefficients that depend on their Gram matrix only
    beyond_losses  how its client half uses samples other than by the loss that each has alone in `fit`; empty
               if it does not
    """

    name: str
    topology: str = "parallel"
    needs_individual_updates: bool = False
    sends: tuple[str, ...] = ("model weights", SAMPLES)
    in_state: tuple[str, ...] = ("model weights",)
    weighting: Weighting = "samples"
    merges: Mapping[str, Reduction] = field(default_factory=dict)
    surgery: GradientSurgery | None = None
    beyond_losses: str = "it does not say that it uses samples only by the loss that each has alone"

    @property
    def buffer_weighting(self) -> Weighting:
        """Weights of the clients in the mean of float buffers: equal under surgery, see `combine_clients`."""
        return self.weighting if self.surgery is None else "uniform"

    @property
    def beside_state(self) -> tuple[str, ...]:
        """The kinds of values that travel as `Update.extras`."""
        return tuple(kind for kind in self.sends if kind not in (*self.in_state, SAMPLES))


@dataclass(frozen=True)
class PlannedRun:
    """A run that is about to start.

    train_sizes  how many training samples each client holds
    in_round     how many clients take part in a round
    module       what clients train and send
    """

    method: MethodTraits
    rounds: int
    train_sizes: Sequence[int]
    in_round: int
    module: nn.Module
    plan: LocalTrainingConfig
    seed: int = 0

    @property
    def numbers(self) -> int:
        """How many numbers a client's state has."""
        return Layout.of(self.module).size


@dataclass(frozen=True)
class ClientContext:
    """What the client's half of a protection may use: it runs where the client lives.

    received  what the server's half sent to all clients of the round, with the weights
    memory    the client's own: kept between messages and from round to round, never sent
    start     the global weights as they arrived; none while no training is under way
    """

    client: str
    round: int
    seed: int
    method: MethodTraits
    layout: Layout
    received: Mapping[str, Tensor] = field(default_factory=dict)
    memory: MutableMapping[str, Tensor] = field(default_factory=dict)
    start: Tensor | None = None


Ask = Callable[[Mapping[str, Message]], dict[str, Message]]
"""Sends each named client its message and returns the answers of those that gave one."""


def _nobody(_: Mapping[str, Message]) -> dict[str, Message]:
    return {}


def ask_in_turn(clients: Sequence[str], message: Message, ask: Ask) -> tuple[str, Message] | None:
    """The first client that answers, and its answer; the refusals of others go to the records."""
    for client in clients:
        answer = ask({client: message}).get(client)
        if answer is not None:
            return client, answer
    return None


@dataclass
class ServerContext:
    """What the server's half of a protection may use in a round.

    clients  the names of those that were asked to train, in the order of the federation
    weights  the global state before this round
    state    the server's half's memory: kept from round to round and in checkpoints
    ask      exchanges one message with each of some clients
    notes    what `begin` leaves for `finish` and `conclude` of this round; kept nowhere
    """

    round: int
    seed: int
    clients: tuple[str, ...]
    method: MethodTraits
    layout: Layout
    weights: Tensor
    population: int
    state: MutableMapping[str, Tensor] = field(default_factory=dict)
    ask: Ask = _nobody
    notes: dict[str, Any] = field(default_factory=dict)


class ReceivedUpdate(NamedTuple):
    """An update as it reached the server from a client."""

    client: str
    update: Update


@dataclass(frozen=True)
class RoundUpdates:
    """What the method's server half and the records get of a round.

    loss         mean training loss over the clients
    seen         samples trained on, repetitions counted
    diagnostics  the clients' own numbers, by client; empty where they did not leave
    """

    updates: Updates
    loss: float
    seen: int
    diagnostics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def stack_updates(received: Sequence[ReceivedUpdate], rows: Tensor, layout: Layout) -> RoundUpdates:
    """Updates as they were sent, one row a client."""
    updates = [update for _, update in received]
    samples = torch.tensor([update.samples for update in updates], dtype=torch.float64)
    total = sum(update.samples for update in updates)
    return RoundUpdates(
        updates=Updates(
            clients=tuple(client for client, _ in received),
            rows=rows,
            samples=samples,
            steps=torch.tensor([update.steps for update in updates], dtype=torch.float64),
            extras=tuple(update.extras for update in updates),
            layout=layout,
        ),
        loss=sum(update.loss * update.samples for update in updates) / total,
        seen=sum(update.seen for update in updates),
        diagnostics={client: update.diagnostics for client, update in received},
    )
