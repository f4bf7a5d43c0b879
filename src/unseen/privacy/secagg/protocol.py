"""Secure aggregation: the server learns the sum of the clients' updates and no single update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from unseen.errors import UnseenError, UsageError
from unseen.hparams import Settings, setting
from unseen.models import Layout
from unseen.privacy.base import Protection, explain_missing_sum, register_protection, withhold_update
from unseen.privacy.context import (
    SAMPLES,
    ClientContext,
    Message,
    MethodTraits,
    PlannedRun,
    ReceivedUpdate,
    RoundUpdates,
    ServerContext,
)
from unseen.privacy.crypto import require_cryptography
from unseen.privacy.disclosure import TRAINING_METRICS, DisclosureEntry
from unseen.privacy.secagg.masking import FEWEST, PUBLIC, REVEALED, SHARES, MaskingSession
from unseen.privacy.secagg.message_forms import BOX_BYTES, explain_form, explain_keys, explain_row
from unseen.privacy.secagg.packing import (
    HEAD,
    RangeError,
    decode,
    encode,
    pack_update,
    packed_size,
    unpack_sum,
)
from unseen.privacy.secagg.shamir import SHARE_BYTES
from unseen.privacy.secagg.unmasking import (
    ADVERTISE,
    DEAL,
    PART,
    ROSTER,
    STEP,
    SURVIVORS,
    Cohort,
    form_cohort,
    open_sum,
)
from unseen.privacy.serialization import json_from_tensor, json_to_tensor
from unseen.training import Update

MASKED, CONTENTS = "masked numbers", "what the masked numbers are"
CHECK = "a one, to check that masks cancel"
HIDDEN = "masked: readable only as the sum over the round's clients"
_COHORT = "cohort"


@dataclass(frozen=True)
class SecureSumSettings(Settings):
    """Settings of secure aggregation."""

    bits: int = setting(24, "fractional binary digits; more are finer and leave less range for large numbers")
    threshold: int | None = setting(
        None,
        "number of clients that must remain to open a sum, or collude with the server to read a "
        "single update; none = more than half of the round's clients",
    )

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 52:
            raise UsageError(f"setting 'bits' of secure-sum must be in [1, 52], not {self.bits}")
        if self.threshold is not None and self.threshold < 2:
            raise UsageError(f"setting 'threshold' of secure-sum must be at least 2, not {self.threshold}")


@register_protection
class SecureSum(Protection[SecureSumSettings]):
    """Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS 2017)."""

    name = "secure-sum"
    summary = "masks that cancel: the server reads only the sum over a round's clients"
    extra = "privacy"
    sends = (PUBLIC, SHARES, REVEALED, MASKED, CONTENTS)
    seals = True
    answers_protected: ClassVar[Mapping[str, str]] = {
        PUBLIC: "public keys, fresh for every round",
        SHARES: "encrypted for the other clients",
        REVEALED: "open the sum only: of each client one of its two masks",
    }

    def incompatibility(self, method: MethodTraits) -> str | None:
        """Accept methods whose server half needs one weighted mean of states, and extras only reduced."""
        if missing := explain_missing_sum(method, updates_to="hide", sum_to="hide it in"):
            return missing
        if method.needs_individual_updates:
            return "its server half uses every client's own update, and here it would get only their sum"
        single = [kind for kind in method.extra_kinds if kind not in method.merges]
        if single:
            return f"its server half needs {' and '.join(single)} of every client, not only the sum"
        return None

    def check(self, run: PlannedRun) -> None:
        """Refuse too small a cohort: with two clients, each could subtract its own part from the sum."""
        require_cryptography(self.extra, f"--protect {self.name}")
        if run.in_round < FEWEST:
            raise UsageError(
                f"--protect {self.name} needs at least {FEWEST} clients in a round, here are {run.in_round}: "
                "each of two could subtract its own update from the sum and read the other's"
            )
        if self.threshold(run.in_round) > run.in_round:
            raise UsageError(
                f"setting 'threshold' of {self.name} is {self.settings.threshold}, but a round has only "
                f"{run.in_round} clients"
            )

    def cost_notes(self, run: PlannedRun) -> list[str]:
        """State the cost: twice the bytes, three more messages, and a mask for every pair of clients."""
        sent = 8 * (HEAD + run.numbers) / 1e6
        return [
            f"secure-sum: a client's model takes {sent:.3g} MB a round ({4 * run.numbers / 1e6:.3g} MB "
            f"without); it answers three more messages and makes {run.in_round} masks of that size; "
            f"{self.threshold(run.in_round)} of {run.in_round} clients must remain in a round"
        ]

    def threshold(self, clients: int) -> int:
        """Return the number of clients needed to open a sum."""
        return self.settings.threshold or max(clients // 2 + 1, 2)

    def answer(self, message: Message, context: ClientContext) -> Message:
        """Advertise keys, send shares, or help to remove masks."""
        session, step = MaskingSession(context.state, context.round), message[STEP]
        if torch.equal(step, ADVERTISE):
            return session.advertise()
        roster = message[ROSTER]
        threshold = self.threshold(len(roster))
        if torch.equal(step, DEAL):
            return session.deal(roster, threshold=threshold)
        return session.reveal(
            roster,
            message[SURVIVORS],
            taking_part=message[PART],
            shares=message[SHARES],
            threshold=threshold,
        )

    def seal(self, update: Update, context: ClientContext) -> Update:
        """Send masked numbers and nothing else; diagnostics are not sent."""
        roster, part = context.received[ROSTER], context.received[PART]
        numbers, contents = pack_update(update, context.method, context.layout, bits=self.settings.bits)
        try:
            whole = encode(numbers, bits=self.settings.bits, clients=int(part.sum()))
        except RangeError as error:
            return withhold_update(str(error))
        hidden = MaskingSession(context.state, context.round).mask(whole, roster, part)
        sent = {MASKED: torch.from_numpy(hidden.view("int64")), CONTENTS: json_to_tensor(contents)}
        return replace(withhold_update(""), extras=sent)

    def begin(self, context: ServerContext) -> Message:
        """Let the clients agree on keys."""
        cohort = form_cohort(context.clients, context.ask, needed=self.threshold)
        context.notes[_COHORT] = cohort
        return {ROSTER: cohort.roster, PART: cohort.taking_part}

    def finish(
        self, context: ServerContext, received: Sequence[ReceivedUpdate], rows: Tensor
    ) -> RoundUpdates:
        """Sum what was received, remove the masks from the sum, and check that none is left."""
        cohort: Cohort = context.notes[_COHORT]
        contents = _common_contents(received)
        masked = {client: update.extras[MASKED].numpy().view("uint64") for client, update in received}
        total = decode(open_sum(cohort, masked, context.ask, round=context.round), bits=self.settings.bits)
        if total[0] != len(masked):
            raise UnseenError("secure summation: the masks did not cancel; a client used other keys")
        return unpack_sum(
            total, contents, clients=tuple(masked), method=context.method, layout=context.layout
        )

    def explain_unusable_update(
        self, update: Update, method: MethodTraits, layout: Layout, described: Mapping[str, Tensor]
    ) -> str:
        """Check the form of a masked row; what it hides, only the client can check."""
        masked, contents = update.extras.get(MASKED), update.extras.get(CONTENTS)
        return explain_row(masked, contents, method=method, layout=layout, described=described)

    def explain_unusable_answer(self, answer: Message, asked: Message) -> str:
        """Check that an answer has the form of its step."""
        if torch.equal(asked[STEP], ADVERTISE):
            return explain_keys(answer, PUBLIC)
        if torch.equal(asked[STEP], DEAL):
            return explain_form(answer, SHARES, shape=(len(asked[ROSTER]), BOX_BYTES))
        return explain_form(answer, REVEALED, shape=(len(asked[ROSTER]), SHARE_BYTES))

    def disclose(self, update: Update, method: MethodTraits) -> list[DisclosureEntry]:
        """List the kinds of values in a masked row, 8 bytes per number."""
        extras = {entry["kind"]: packed_size(entry) for entry in json_from_tensor(update.extras[CONTENTS])}
        weighted = method.weighting == "samples"
        state = update.extras[MASKED].numel() - HEAD - sum(extras.values())
        sizes = {", ".join(method.in_state): state, **({SAMPLES: 1} if weighted else {})}
        sizes |= {TRAINING_METRICS: 3, **extras, CHECK: 1 if weighted else 2}
        format_bytes = update.extras[CONTENTS].nbytes
        return [
            *(DisclosureEntry(kind, size, 8 * size, HIDDEN) for kind, size in sizes.items()),
            DisclosureEntry(CONTENTS, format_bytes, format_bytes, "shapes and names only"),
        ]

    def statement(self) -> str:
        """State what the server could read."""
        return (
            "Updates were masked before they left a client; whoever runs the server can read only the sum "
            "over a round's clients, as long as fewer than the threshold conspire with it."
        )


def _common_contents(received: Sequence[ReceivedUpdate]) -> list[dict[str, Any]]:
    """Return the contents of the rows; they can be summed only if all have the same."""
    first, *others = (json_from_tensor(update.extras[CONTENTS]) for _, update in received)
    sizes = {update.extras[MASKED].numel() for _, update in received}
    if len(sizes) > 1 or any(contents != first for contents in others):
        raise UnseenError("secure summation: clients sent different kinds of values, they cannot be added up")
    return first
