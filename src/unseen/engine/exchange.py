"""The exchange of one round between clients and the method's server half, through the protection.

Every update and every answer to the protection is entered into the disclosure log here.
What evaluations disclose is logged in `round_records.py`, what leaves before the first round in
`runner/start_record.py`, and the report's examples in `runner/finalize.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unseen.engine.base import Engine, Reply
from unseen.engine.experiment import Experiment
from unseen.errors import UnseenError
from unseen.models import Layout
from unseen.printable import printable
from unseen.privacy import DisclosureLog, Message, Protection, ReceivedUpdate, RoundUpdates, ServerContext
from unseen.privacy.context import Fault


@dataclass
class Traffic:
    """Bytes of the tensors sent to clients and received from them, without rejected updates."""

    up: int = 0
    down: int = 0


@dataclass(frozen=True)
class MessageChannel:
    """Sends the protection's messages to clients and returns their answers.

    It does not refer to the exchange: in a reference cycle with it a round's weights would stay in
    memory until the garbage collector runs.
    """

    engine: Engine
    protection: Protection[Any]
    round: int
    position: dict[str, int]
    left: DisclosureLog
    fault: Fault
    traffic: Traffic
    refusals: dict[str, str] = field(default_factory=dict)

    def __call__(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Send each client its message; clients that do not answer are recorded and left out."""
        positions = [self.position[client] for client in messages]
        answers = self.engine.consult(positions, list(messages.values()), round=self.round)
        self.traffic.down += sum(map(_size, messages.values()))
        found: dict[str, Message] = {}
        for answer in answers:
            if answer.message is None:
                self.refusals[answer.client] = answer.reason
                self.fault(answer.client, answer.reason)
            else:
                found[answer.client] = answer.message
                self.traffic.up += _size(answer.message)
                self.left.add(answer.client, self.protection.disclose_answer(answer.message))
        return found


class Exchange:
    """The exchange with a group of clients that train at the same time; `left` logs what they disclose."""

    def __init__(
        self,
        experiment: Experiment,
        engine: Engine,
        *,
        group: Sequence[int],
        round: int,
        weights: Tensor,
        layout: Layout,
        state: dict[str, Tensor],
        left: DisclosureLog,
        fault: Fault,
    ) -> None:
        self.protection, self.left, self.traffic = experiment.protection, left, Traffic()
        position = {experiment.federation.names[position]: position for position in group}
        channel = MessageChannel(engine, self.protection, round, position, left, fault, self.traffic)
        sizes = experiment.federation.train_sizes
        self.context = ServerContext(
            round=round,
            seed=experiment.seed,
            clients=tuple(position),
            method=experiment.halves_in(round).traits,
            layout=layout,
            weights=weights,
            population=len(experiment.federation),
            state=state,
            ask=channel,
            fault=fault,
            refusals=channel.refusals,
            sizes={name: int(sizes[place]) for name, place in position.items()},
            plan=experiment.plan,
        )

    def begin(self) -> Message:
        """Open the round; return what is sent to all clients with the weights."""
        sealing = self.protection.begin(self.context)
        self.traffic.down += len(self.context.clients) * _size(sealing)
        return sealing

    def measure(self, replies: Sequence[Reply]) -> None:
        """Log what clients sent, usable or not."""
        for reply in replies:
            if reply.update is not None and not reply.update.withheld:
                self.left.add(reply.client, self.protection.disclose(reply.update, self.context.method))

    def finish(self, rows: Tensor, replies: Sequence[Reply], sound: Sequence[ReceivedUpdate]) -> RoundUpdates:
        """Convert valid updates to the input of the method's server half."""
        self.traffic.up += sum(update.nbytes for _, update in sound)
        names = {client for client, _ in sound}
        kept = [place for place, reply in enumerate(replies) if reply.client in names]
        states = torch.empty(0) if self.protection.seals else _move_together(rows, kept)
        return self.protection.finish(self.context, sound, states)

    def conclude(self, weights: Tensor) -> Tensor:
        """Pass the new global weights to the protection."""
        return self.protection.conclude(weights, self.context)


@contextmanager
def blame_sites(engine: Engine, round: int) -> Iterator[None]:
    """Within the block, an error in using what came from other machines ends the run with one line.

    Answers are checked where they arrive; what still cannot be used is no error of this program. Where
    clients run on this machine, it is one and keeps its traceback.
    """
    try:
        yield
    except UnseenError:
        raise
    except Exception as error:
        if engine.holds_data:
            raise
        reason = printable(f"{type(error).__name__}: {error}")
        raise UnseenError(
            f"round {round}: what the sites sent cannot be used ({reason}); finished rounds are kept, "
            "continue with --resume, without the site whose answers the records show as faults"
        ) from error


def _size(message: Message) -> int:
    return sum(value.nbytes for value in message.values())


def _move_together(rows: Tensor, kept: Sequence[int]) -> Tensor:
    """Move the kept rows, in ascending order, to the front in place: a copy could be too large."""
    for place, row in enumerate(kept):
        if place != row:
            rows[place].copy_(rows[row])
    return rows[: len(kept)]
