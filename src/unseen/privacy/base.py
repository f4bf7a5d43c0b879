"""What a protection is: something done to updates between a client and the method's server half.

It has a client's half, which runs where the client lives, and a server's half. Neither knows of processes,
Flower or files; they speak in messages of named tensors, and engines carry them.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from torch import Tensor

from unseen.errors import UnseenError
from unseen.hparams import Configurable, Settings
from unseen.privacy.context import (
    ClientContext,
    Message,
    MethodTraits,
    PlannedRun,
    ReceivedUpdate,
    RoundUpdates,
    ServerContext,
    stack_updates,
)
from unseen.privacy.disclosure import DisclosureEntry, unprotected_entries
from unseen.registry import Registry
from unseen.training import ClientWork, Update, reason_to_reject

S = TypeVar("S", bound=Settings)


class Protection(Configurable[S]):
    """Every call has a default that changes nothing, so that a protection overrides only what it does.

    A round goes: `begin` (server), then for each client `before_training`, the method's client half and
    `seal` (client), then `finish` (server), the method's server half, and `conclude` (server). In `begin`,
    `finish` and `conclude` the server may `side.ask(...)` clients, who reply by `answer`.

    extra   the optional dependencies it needs: pip install 'unseen[EXTRA]'
    sends   the kinds of values that `answer` and `seal` let leave beside what methods declare: the keys of
            their messages
    draws_clients  whether it draws the clients of a round itself, by `sample_clients`
    seals   whether what `seal` returns is unreadable, so that the client itself must look whether its update
            is sound, because the server cannot
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    extra: ClassVar[str] = ""
    sends: tuple[str, ...] = ()
    seals: ClassVar[bool] = False
    draws_clients: ClassVar[bool] = False

    # before the run

    def incompatibility(self, method: MethodTraits) -> str | None:
        """Why this protection cannot serve a method, or None if it can."""
        return None

    def check(self, run: PlannedRun) -> None:
        """Refuse a run with a UsageError that says why; whether it serves the method was asked before."""

    def resolve(self, run: PlannedRun) -> Self:
        """The protection with what the run decides filled in (a noise for an epsilon, say); after `check`."""
        return self

    def cost_notes(self, run: PlannedRun) -> list[str]:
        """What a user should know of its price before the run starts, one sentence each."""
        return []

    def sample_clients(
        self, clients: int, *, fraction: float, round: int, seed: int, state: MutableMapping[str, Tensor]
    ) -> Sequence[int]:
        """Draw the positions of a round's clients, in rising order; asked only where `draws_clients`.

        state  the server's half's memory
        """
        raise NotImplementedError

    # the client's half

    def before_training(self, work: ClientWork, side: ClientContext) -> None:
        """Change how a client trains, before the method's client half gets its work."""

    def seal(self, update: Update, side: ClientContext) -> Update:
        """Turn an update into what is sent; the last thing that happens at the client."""
        return update

    def answer(self, message: Message, side: ClientContext) -> Message:
        """Reply to a message of the server's half; an UnseenError is a refusal and reaches the server."""
        raise UnseenError(f"protection {self.name!r} asks clients nothing, but a message came")

    # the server's half

    def begin(self, side: ServerContext) -> Message:
        """Open a round; what is returned goes to all its clients with the weights."""
        return {}

    def finish(self, side: ServerContext, received: Sequence[ReceivedUpdate], rows: Tensor) -> RoundUpdates:
        """Turn what was received into what the method's server half gets.

        rows  the unsealed states among `received`, one row each
        """
        return stack_updates(received, rows, side.layout)

    def conclude(self, weights: Tensor, side: ServerContext) -> Tensor:
        """Look at the new global weights before anyone else does."""
        return weights

    # the record

    def disclose(self, update: Update, method: MethodTraits) -> list[DisclosureEntry]:
        """What a sent update lets the server read, in which size, protected how."""
        return unprotected_entries(update, method)

    def disclose_answer(self, message: Message) -> list[DisclosureEntry]:
        """The same for an answer; every key of `answer`'s messages is a kind."""
        return [DisclosureEntry(kind, value.numel(), value.nbytes) for kind, value in message.items()]

    def privacy_spent(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Numbers that tell how far the protection has gone (an epsilon, say), for records and progress."""
        return {}

    def statement(self) -> str:
        """How updates were protected, in one sentence for a data protection officer."""
        return "Updates were sent as they are; whoever runs the server can read each client's own."


def _all_modules() -> tuple[str, ...]:
    """Name every module of this package, so that a new file with a registered protection is all it takes."""
    found = pkgutil.walk_packages([str(Path(__file__).parent)], f"{__package__}.")
    return tuple(module.name for module in found if not module.ispkg)


PROTECTIONS: Registry[type[Protection[Any]]] = Registry(
    "protection", group="unseen.protections", builtin=_all_modules()
)


def register_protection(protection: type[Protection[Any]]) -> type[Protection[Any]]:
    """Enter a protection under its name: the command line, tests and docs find it there."""
    return PROTECTIONS.register(protection.name)(protection)


def make_protection(name: str, settings: Mapping[str, Any] | None = None) -> Protection[Any]:
    """Make a protection by name with its settings checked."""
    kind = PROTECTIONS[name]
    return kind.from_settings(settings or {}, owner=f"protection {name!r}")


@register_protection
class NoProtection(Protection[Settings]):
    """Updates travel as they are."""

    name = "none"
    summary = "updates travel as they are (but for the transport's own encryption)"


def seal_update(protection: Protection[Any], update: Update, side: ClientContext) -> Update:
    """Let an update leave through a protection: engines call this last, where the client lives.

    Behind a seal the server cannot see that an update is unusable, so the client withholds it itself.
    """
    if protection.seals:
        reason = reason_to_reject(update, side.layout.size)
        if reason is not None:
            return withhold_update(reason)
    sent = protection.seal(update, side)
    if protection.seals:
        _require_named(protection, sent.extras)
    return sent


def answer_message(protection: Protection[Any], message: Message, side: ClientContext) -> Message:
    """Let a client answer; every kind of value in the answer must be declared."""
    answer = protection.answer(message, side)
    _require_named(protection, answer)
    return answer


def withhold_update(reason: str) -> Update:
    """What a client sends that keeps its update to itself."""
    import torch

    return Update(weights=torch.empty(0), samples=0, steps=0, seen=0, loss=0.0, withheld=reason)


def _require_named(protection: Protection[Any], message: Mapping[str, Tensor]) -> None:
    undeclared = sorted(set(message) - set(protection.sends))
    if undeclared:
        raise ValueError(f"protection {protection.name!r} sends {undeclared} without declaring it in `sends`")
