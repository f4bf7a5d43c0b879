"""Secure aggregation: the server learns the sum of the clients' updates and no single update."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from unseen.errors import UnseenError, UsageError
from unseen.hparams import setting
from unseen.models import Layout
from unseen.privacy.base import Protection, explain_missing_sum, register_protection, withhold_update
from unseen.privacy.batch_order import SealingSettings, draw_batches
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
from unseen.privacy.secagg.masking import MaskingSession
from unseen.privacy.secagg.message_forms import (
    ADVERTISE,
    CHECK,
    COMMITMENTS,
    CONTENTS,
    DEAL,
    DEALT,
    MASKED,
    NAMES,
    PART,
    PROOF,
    PROOFS,
    PUBLIC,
    REVEAL,
    REVEALED,
    ROSTER,
    SHARES,
    STEP,
    SURVIVORS,
    UNUSABLE,
    explain_answer,
    explain_row,
)
from unseen.privacy.secagg.packing import (
    HEAD,
    Whole,
    decode,
    encode,
    pack_update,
    packed_size,
    unpack_sum,
)
from unseen.privacy.secagg.unmasking import Cohort, form_cohort, open_sum
from unseen.privacy.serialization import bytes_to_tensor, json_from_tensor, json_to_tensor, split_parts
from unseen.privacy.survivors import FEWEST
from unseen.training import ClientWork, Update

ONE = "a one, to check that masks cancel"
HIDDEN = "masked: readable only as the sum over the round's clients"
_COHORT = "cohort"


@dataclass(frozen=True)
class SecureSumSettings(SealingSettings):
    """Settings of secure aggregation."""

    bits: int = setting(24, "fractional binary digits; more are finer and leave less range for large numbers")
    threshold: int | None = setting(
        None,
        "number of clients that must remain to open a sum, or collude with the server to read a "
        f"single update; none = more than half of the round's clients, and always at least {FEWEST}",
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
    sends = (PUBLIC, PROOF, SHARES, COMMITMENTS, UNUSABLE, REVEALED, MASKED, CONTENTS)
    seals = True
    answers_protected: ClassVar[Mapping[str, str]] = {
        PUBLIC: "public keys, fresh for every round",
        PROOF: "signed with the site's key",
        SHARES: "encrypted for the other clients",
        COMMITMENTS: "digests of random numbers",
        UNUSABLE: "one yes or no per client",
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
        """State the cost: twice the bytes, four more messages, and a mask for every pair of clients."""
        sent, asked = 8 * (HEAD + run.numbers) / 1e6, self.settings.threshold
        return [
            f"secure-sum: a client's model takes {sent:.3g} MB a round ({4 * run.numbers / 1e6:.3g} MB "
            f"without); it answers four more messages and makes {run.in_round} masks of that size; "
            f"{self.threshold(run.in_round)} of {run.in_round} clients must remain in a round",
            *(
                [f"secure-sum: threshold={asked} counts as {FEWEST}: a sum over two would show both updates"]
                if asked is not None and asked < FEWEST
                else []
            ),
        ]

    def threshold(self, clients: int) -> int:
        """Return the number of clients needed to open a sum."""
        return max(self.settings.threshold or clients // 2 + 1, FEWEST)

    def before_training(self, work: ClientWork, context: ClientContext) -> None:
        """Draw batches from a secret of the client."""
        draw_batches(work, self.settings)

    def answer(self, message: Message, context: ClientContext) -> Message:
        """Advertise keys, send shares, check those of others, or help to remove masks."""
        session, step = MaskingSession(context), message[STEP]
        if torch.equal(step, ADVERTISE):
            return session.advertise()
        roster, names = message[ROSTER], json_from_tensor(message[NAMES])
        threshold = self.threshold(len(roster))
        if torch.equal(step, DEAL):
            proofs = [
                split_parts(bytes_to_tensor(part)) if part else [] for part in split_parts(message[PROOFS])
            ]
            return session.deal(roster, names, proofs, threshold=threshold)
        theirs = {"shares": message[SHARES], "commitments": message[COMMITMENTS]}
        if torch.equal(step, CHECK):
            return session.check(roster, names, dealt=message[DEALT], **theirs)
        if torch.equal(step, REVEAL):
            return session.reveal(
                roster, names, message[SURVIVORS], taking_part=message[PART], threshold=threshold, **theirs
            )
        raise UnseenError("the server asked for an unknown step of secure summation")

    def seal(self, update: Update, context: ClientContext) -> Update:
        """Send masked numbers and nothing else; diagnostics are not sent."""
        roster, part = context.received[ROSTER], context.received[PART]
        names = json_from_tensor(context.received[NAMES])
        numbers, contents = pack_update(update, context.method, context.layout, bits=self.settings.bits)
        try:
            whole = encode(numbers, bits=self.settings.bits, clients=int(part.sum()))
            hidden = MaskingSession(context).mask(
                whole, roster, names, part, threshold=self.threshold(len(roster))
            )
        except UnseenError as error:
            return withhold_update(str(error))
        sent = {MASKED: torch.from_numpy(hidden.view("int64")), CONTENTS: json_to_tensor(contents)}
        return replace(withhold_update(""), extras=sent)

    def begin(self, context: ServerContext) -> Message:
        """Let the clients agree on keys."""
        cohort = form_cohort(context, needed=self.threshold)
        context.notes[_COHORT] = cohort
        return {ROSTER: cohort.roster, NAMES: cohort.names, PART: cohort.taking_part}

    def finish(
        self, context: ServerContext, received: Sequence[ReceivedUpdate], rows: Tensor
    ) -> RoundUpdates:
        """Sum what was received, remove the masks from the sum, and check that none is left."""
        cohort: Cohort = context.notes[_COHORT]
        masked, contents = _usable_rows(received, cohort, context)
        summed, clients = open_sum(cohort, masked, context)
        total = decode(summed, bits=self.settings.bits)
        if total[0] != len(clients):
            raise UnseenError("secure summation: the masks did not cancel; a client used other keys")
        return unpack_sum(total, contents, clients=clients, method=context.method, layout=context.layout)

    def explain_unusable_update(
        self, update: Update, method: MethodTraits, layout: Layout, described: Mapping[str, Tensor]
    ) -> str:
        """Check the form of a masked row; what it hides, only the client can check."""
        masked, contents = update.extras.get(MASKED), update.extras.get(CONTENTS)
        return explain_row(masked, contents, method=method, layout=layout, described=described)

    def explain_unusable_answer(self, answer: Message, asked: Message) -> str:
        """Check that an answer has the form of its step."""
        return explain_answer(answer, asked)

    def disclose(self, update: Update, method: MethodTraits) -> list[DisclosureEntry]:
        """List the kinds of values in a masked row, 8 bytes per number."""
        try:
            extras = {
                entry["kind"]: packed_size(entry) for entry in json_from_tensor(update.extras[CONTENTS])
            }
            state = update.extras[MASKED].numel() - HEAD - sum(extras.values())
        except (LookupError, TypeError, ValueError, RecursionError):
            return [  # a client that is about to be set aside
                DisclosureEntry(kind, value.numel(), value.nbytes) for kind, value in update.extras.items()
            ]
        weighted = method.weighting == "samples"
        sizes = {", ".join(method.in_state): state, **({SAMPLES: 1} if weighted else {})}
        sizes |= {TRAINING_METRICS: 3, **extras, ONE: 1 if weighted else 2}
        format_bytes = update.extras[CONTENTS].nbytes
        return [
            *(DisclosureEntry(kind, size, 8 * size, HIDDEN) for kind, size in sizes.items()),
            DisclosureEntry(CONTENTS, format_bytes, format_bytes, "shapes and names only"),
        ]

    def statement(self) -> str:
        """State what the server could read."""
        return (
            "Updates were masked before they left a client; whoever runs the server can read only the sum "
            "over a round's clients, as long as fewer than the threshold conspire with it. "
            f"{self.settings.order_statement}"
        )


def _usable_rows(
    received: Sequence[ReceivedUpdate], cohort: Cohort, context: ServerContext
) -> tuple[dict[str, Whole], list[dict[str, Any]]]:
    """Return the rows that can be summed and what they hold; others are faults of their clients.

    Rows can be summed only if all hold the same, so what most clients sent counts.
    """
    part = {name for name, takes in zip(cohort.clients, cohort.taking_part.tolist(), strict=True) if takes}
    rows: dict[str, Whole] = {}
    contents: dict[str, list[dict[str, Any]]] = {}
    for client, update in received:
        row, text = update.extras.get(MASKED), update.extras.get(CONTENTS)
        reason = "sent an update although it does not take part in the sum"
        if client in part:
            reason = explain_row(row, text, method=context.method, layout=context.layout, described={})
        if reason or row is None or text is None:
            context.fault(client, reason)
        else:
            rows[client], contents[client] = row.numpy().view("uint64"), json_from_tensor(text)
    listed = [json.dumps(each, sort_keys=True) for each in contents.values()]
    common = max(listed, key=listed.count, default="")
    for client in [client for client, text in zip(contents, listed, strict=True) if text != common]:
        context.fault(client, "sent other kinds of values than most clients")
        del rows[client]
    return rows, json.loads(common) if common else []
