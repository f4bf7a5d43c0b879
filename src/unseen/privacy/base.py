"""Base class of protections, which process updates between a client and the method's server half.

A protection has a client half, which runs in the client's process, and a server half. Neither knows about
processes, Flower or files; they exchange messages of named tensors, which engines carry.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from torch import Tensor

from unseen.errors import UnseenError, UsageError
from unseen.hparams import Configurable, Settings
from unseen.models import Layout
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
from unseen.privacy.disclosure import PLAIN, DisclosureEntry, unprotected_entries
from unseen.registry import Registry
from unseen.training import ClientWork, LocalTrainingConfig, Update, reason_to_reject

S = TypeVar("S", bound=Settings)


class Protection(Configurable[S]):
    """Base class of protections; every call has a default that changes nothing.

    A round is: `begin` (server), then for each client `before_training`, the method's client half and
    `seal` (client), then `finish` (server), the method's server half, and `conclude` (server). In `begin`,
    `finish` and `conclude` the server may `context.ask(...)` clients, who reply by `answer`.

    name    what `--protect` takes
    extra   the optional dependencies it needs: pip install 'unseen[EXTRA]'
    sends   the kinds of values that `answer` and `seal` send in addition to what methods declare: the keys of
            their messages
    draws_clients  whether it samples the clients of a round itself, by `sample_clients`
    seals   whether the server cannot read what `seal` returns, so that the client itself must check whether
            its update is usable
    sums_only  whether `finish` passes on the sum over the clients and no single update; sealing ones do
    equal_weights  whether every client counts the same, whatever weights the method declares
    noised_at_client  whether all that a client sends while it trains carries noise of its own, so that a site
            can account for it without trusting the server
    shows_clients  whether the server may see what is a single client's own, so that sums of its features may
            leave beside the metrics
    answers_protected  how each kind of value in an `answer` is protected, for the disclosure log; the others
            are plain
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    extra: ClassVar[str] = ""
    sends: tuple[str, ...] = ()
    seals: ClassVar[bool] = False
    noised_at_client: ClassVar[bool] = False
    draws_clients: ClassVar[bool] = False
    sums_only: ClassVar[bool] = False
    equal_weights: ClassVar[bool] = False
    shows_clients: ClassVar[bool] = False
    answers_protected: ClassVar[Mapping[str, str]] = {}

    # before the run

    def incompatibility(self, method: MethodTraits) -> str | None:
        """Explain why this protection cannot be combined with a method; None if it can."""
        return None

    def check(self, run: PlannedRun) -> None:
        """Refuse a run with a UsageError that says why; called after `incompatibility`."""

    def resolve(self, run: PlannedRun) -> Self:
        """Fill in what depends on the run (such as the noise for a target epsilon); called after `check`."""
        return self

    def cost_notes(self, run: PlannedRun) -> list[str]:
        """List what a user should know about the cost before the run starts, one sentence each."""
        return []

    def planned_epsilon(
        self, *, samples: int, plan: LocalTrainingConfig, rounds: int, delta: float
    ) -> float | None:
        """Compute what a whole run costs a client with so many samples; None if it adds no noise itself."""
        return None

    def sample_clients(
        self, clients: int, *, fraction: float, round: int, seed: int, state: MutableMapping[str, Tensor]
    ) -> Sequence[int]:
        """Sample the positions of a round's clients, in ascending order; called only if `draws_clients`.

        state  the server half's own state
        """
        raise NotImplementedError

    # client half

    def before_training(self, work: ClientWork, context: ClientContext) -> None:
        """Change how a client trains, before the method's client half runs."""

    def seal(self, update: Update, context: ClientContext) -> Update:
        """Convert an update to what is sent; the client's last step in a round."""
        return update

    def answer(self, message: Message, context: ClientContext) -> Message:
        """Answer a message of the server half; an UnseenError is a refusal that is reported to the server."""
        raise UnseenError(f"protection {self.name!r} sends clients no messages, but one was received")

    # server half

    def begin(self, context: ServerContext) -> Message:
        """Begin a round; the returned message is sent to all its clients with the weights."""
        return {}

    def finish(
        self, context: ServerContext, received: Sequence[ReceivedUpdate], rows: Tensor
    ) -> RoundUpdates:
        """Convert the received updates to the input of the method's server half.

        rows  the unsealed states among `received`, one row each
        """
        return stack_updates(received, rows, context.layout)

    def conclude(self, weights: Tensor, context: ServerContext) -> Tensor:
        """Process the new global weights before anyone else gets them."""
        return weights

    # what a lying client may send, checked where answers arrive from another machine

    def explain_unusable_update(
        self, update: Update, method: MethodTraits, layout: Layout, described: Mapping[str, Tensor]
    ) -> str:
        """Explain why `finish` cannot take an update that a client sent; "" if it can.

        described  the method's extras as tensors without memory, as far as their shapes are known
        """
        return ""

    def explain_unusable_answer(self, answer: Message, asked: Message) -> str:
        """Explain why the server half cannot take a client's answer to `asked`; "" if it can.

        Keys are declared already; here are types and shapes.
        """
        return ""

    # disclosure

    def disclose(self, update: Update, method: MethodTraits) -> list[DisclosureEntry]:
        """List what a sent update discloses to the server: kind, size and protection."""
        return unprotected_entries(update, method)

    def disclose_answer(self, message: Message) -> list[DisclosureEntry]:
        """List what an answer discloses; every key of the message is a kind."""
        return [
            DisclosureEntry(kind, value.numel(), value.nbytes, self.answers_protected.get(kind, PLAIN))
            for kind, value in message.items()
        ]

    def privacy_spent(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the privacy spent so far (such as epsilon), for records and progress."""
        return {}

    def statement(self) -> str:
        """State how updates were protected, for a data protection officer."""
        return "Updates were sent as they are; whoever runs the server can read each client's own."


def _all_modules() -> tuple[str, ...]:
    """List every module of this package, so that a new file with a registered protection is found."""
    found = pkgutil.walk_packages([str(Path(__file__).parent)], f"{__package__}.")
    return tuple(module.name for module in found if not module.ispkg)


PROTECTIONS: Registry[type[Protection[Any]]] = Registry(
    "protection", group="unseen.protections", builtin=_all_modules()
)


def register_protection(protection: type[Protection[Any]]) -> type[Protection[Any]]:
    """Register a protection under its name, for the command line, tests and docs."""
    return PROTECTIONS.register(protection.name)(protection)


def protection_type(named: str) -> type[Protection[Any]]:
    """Return the class of a protection, or of a combination: names with commas between, in any order."""
    names = [part.strip() for part in named.split(",")]
    if len(names) == 1:
        return PROTECTIONS[names[0]]
    for name in PROTECTIONS:
        if sorted(name.split(",")) == sorted(names):
            return PROTECTIONS[name]
    from unseen.privacy.combined import explain_combination

    for name in names:
        PROTECTIONS[name]
    raise UsageError(f"--protect {','.join(names)} makes no sense: {explain_combination(names)}")


def make_protection(name: str, settings: Mapping[str, Any] | None = None) -> Protection[Any]:
    """Create a protection, or a combination of them, by name with its settings checked."""
    kind = protection_type(name)
    return kind.from_settings(settings or {}, owner=f"protection {kind.name!r}")


@register_protection
class NoProtection(Protection[Settings]):
    """No protection: updates are sent as they are."""

    name = "none"
    summary = "updates are sent as they are (apart from transport encryption)"
    shows_clients = True


def seal_update(protection: Protection[Any], update: Update, context: ClientContext) -> Update:
    """Seal an update with a protection: the last call of an engine in the client's process.

    The server cannot see that a sealed update is unusable, so the client itself withholds it.
    """
    if protection.seals:
        reason = reason_to_reject(update, context.layout.size)
        if reason is not None:
            return withhold_update(reason)
    sent = protection.seal(update, context)
    if protection.seals:
        _require_named(protection, sent.extras)
    return sent


def answer_message(protection: Protection[Any], message: Message, context: ClientContext) -> Message:
    """Answer a message at a client; every kind of value in the answer must be declared."""
    answer = protection.answer(message, context)
    _require_named(protection, answer)
    return answer


def explain_missing_sum(method: MethodTraits, *, updates_to: str, sum_to: str) -> str | None:
    """Explain why a method has no sum of updates to protect; None if it has one."""
    if not method.in_state:
        return f"clients send no update, so there is nothing to {updates_to}"
    if method.topology == "pooled":
        return f"it pools the data itself, so there are no updates to {updates_to}"
    if method.topology == "serial":
        return f"its model passes from one client to the next, so there is no sum to {sum_to}"
    return None


def withhold_update(reason: str) -> Update:
    """Create the message of a client that does not send its update."""
    import torch

    return Update(weights=torch.empty(0), samples=0, steps=0, seen=0, loss=0.0, withheld=reason)


def _require_named(protection: Protection[Any], message: Mapping[str, Tensor]) -> None:
    undeclared = sorted(set(message) - set(protection.sends))
    if undeclared:
        raise ValueError(f"protection {protection.name!r} sends {undeclared} without declaring it in `sends`")
