"""Inputs of a protection: traits of the method, the planned run, and the client's and server's contexts.

Methods are in a higher layer and describe themselves by a plain value; engines fill in the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from unseen.aggregation import GradientSurgery, Reduction, Updates, Weighting
from unseen.models import Layout
from unseen.privacy.answer_journal import AnswerJournal, MemoryJournal
from unseen.privacy.budget import PrivacyBudget, UnlimitedBudget
from unseen.training import LocalTrainingConfig, Update

Message = dict[str, Tensor]
"""Named tensors: the form of all messages of protections, because every engine can carry it."""
SAMPLES = "number of samples"


class RoundIdentity(Protocol):
    """A client's key for signing its keys of a round, and what it knows of the others' keys."""

    def sign(self, *, client: str, round: int, keys: bytes) -> list[bytes]:
        """Sign a client's public keys of a round; return the parts of the proof."""

    def objection(self, *, client: str, round: int, keys: bytes, proof: Sequence[bytes]) -> str:
        """Say why another client's keys cannot be trusted; empty if they can, or if nobody can tell."""


@dataclass(frozen=True)
class MethodTraits:
    """Traits of a method that decide which protections it can use.

    sends      every kind of value that leaves a client
    in_state   those of them that are part of the flat state
    weighting  weights of the clients in the mean of states that the server half computes
    merges     of the extras: whether the server half needs only their mean (with the same weights as the
               states) or their sum over the clients; of extras not named it needs each client's
    surgery    its server half, if it combines states with coefficients that depend only on their Gram matrix
    beyond_losses  how its client half uses samples other than through their separate losses in `fit`; empty
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
    beyond_losses: str = "it does not declare that it uses samples only through their separate losses"

    @property
    def buffer_weighting(self) -> Weighting:
        """Weights of the clients in the mean of float buffers: equal under surgery, see `combine_clients`."""
        return self.weighting if self.surgery is None else "uniform"

    @property
    def extra_kinds(self) -> tuple[str, ...]:
        """Kinds of values that are sent as `Update.extras`."""
        return tuple(kind for kind in self.sends if kind not in (*self.in_state, SAMPLES))


@dataclass(frozen=True)
class PlannedRun:
    """A run that is about to start.

    train_sizes     number of training samples per client
    in_round        number of clients per round
    module          what clients train and send
    mixing_samples  names of augmentations through which samples affect each other; empty if there are none
    extras          extras of a client as tensors without memory, as far as their size is known
    start           the same for the exchange before round 1, which starts the head; empty if there is none
    """

    method: MethodTraits
    rounds: int
    train_sizes: Sequence[int]
    in_round: int
    module: nn.Module
    plan: LocalTrainingConfig
    seed: int = 0
    mixing_samples: str = ""
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    start: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def numbers(self) -> int:
        """Number of values in a client's state."""
        return Layout.of(self.module).size


@dataclass(frozen=True)
class ClientContext:
    """Everything that the client half of a protection may use; it runs in the client's process.

    received  what the server half sent to all clients of the round, with the weights
    state     the client's own state: kept between messages and across rounds, never sent
    start     the global weights as received; None outside of training
    journal   what this client has answered already; unlike `state`, no server can name an old version of it
    job       digest of the job, as the client received it; empty where the server simulates its clients
    budget    account of what the client's answers have cost in privacy, over all runs
    secret    a key of this run at the client, which outlives every version of `state`; empty where the server
              simulates its clients, whose keys are in `state`
    identity  signs the client's keys of a round and checks those of others; None where there are no such keys
    """

    client: str
    round: int
    seed: int
    method: MethodTraits
    layout: Layout
    received: Mapping[str, Tensor] = field(default_factory=dict)
    state: MutableMapping[str, Tensor] = field(default_factory=dict)
    start: Tensor | None = None
    journal: AnswerJournal = field(default_factory=MemoryJournal)
    job: bytes = b""
    budget: PrivacyBudget = field(default_factory=UnlimitedBudget)
    secret: bytes = b""
    identity: RoundIdentity | None = None


Ask = Callable[[Mapping[str, Message]], dict[str, Message]]
"""Sends each named client its message, and returns the answers received."""


Fault = Callable[[str, str], None]
"""Called with a client's name and the reason why its answer is not used."""


def _nobody(_: Mapping[str, Message]) -> dict[str, Message]:
    return {}


def _ignore_fault(client: str, reason: str) -> None:
    """Record nothing."""


def ask_in_turn(clients: Sequence[str], message: Message, ask: Ask) -> tuple[str, Message] | None:
    """Ask clients one after another; return the first that answers, and its answer. Refusals are recorded."""
    for client in clients:
        answer = ask({client: message}).get(client)
        if answer is not None:
            return client, answer
    return None


@dataclass
class ServerContext:
    """Everything that the server half of a protection may use in a round.

    clients  names of the clients asked to train, in the order of the federation
    weights  the global state before this round
    state    the server half's own state: kept across rounds and in checkpoints
    ask      exchanges one message with each of some clients
    sizes    number of training samples of each client, as known before the run
    plan     the clients' local training
    notes    what `begin` passes to `finish` and `conclude` of this round; not stored
    fault    records a client that sent something unusable, with the reason
    refusals reasons of clients that refused to answer in this round
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
    sizes: Mapping[str, int] = field(default_factory=dict)
    plan: LocalTrainingConfig | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    fault: Fault = _ignore_fault
    refusals: dict[str, str] = field(default_factory=dict)


class ReceivedUpdate(NamedTuple):
    """An update as the server received it from a client."""

    client: str
    update: Update


@dataclass(frozen=True)
class RoundUpdates:
    """Updates of a round for the method's server half, and numbers for the records.

    loss         mean training loss over the clients
    seen         samples trained on, repetitions counted
    diagnostics  the clients' diagnostics by client; empty if they were not sent
    """

    updates: Updates
    loss: float
    seen: int
    diagnostics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def stack_updates(received: Sequence[ReceivedUpdate], rows: Tensor, layout: Layout) -> RoundUpdates:
    """Stack updates as they were sent, one row per client."""
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
