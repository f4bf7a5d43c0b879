"""Homomorphic encryption: clients hold the secret key, the server computes on ciphertexts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from unseen.errors import UnseenError, UsageError
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
from unseen.privacy.disclosure import PLAIN, DisclosureEntry
from unseen.privacy.he.aggregate import (
    COEFFICIENTS,
    DECIDE,
    DECISIONS,
    MEAN,
    OPEN,
    EncryptedRound,
    decide_coefficients,
    decrypt_sum,
)
from unseen.privacy.he.ciphertext_forms import explain_key_answer, explain_sealed
from unseen.privacy.he.ciphertext_packing import (
    CIPHERTEXTS,
    COUNTERS,
    MAGNITUDES,
    CiphertextLayout,
    encrypt_update,
)
from unseen.privacy.he.ckks import SLOTS, import_tenseal
from unseen.privacy.he.encrypted_sums import (
    ADDED,
    ADDENDS,
    CONTENTS,
    PEERS,
    RangeError,
    count_addends,
    describe_extras,
    encrypt_extras,
    measure_addends,
)
from unseen.privacy.he.encryption_cost import calibrate, describe, estimate
from unseen.privacy.he.key_exchange import (
    CONTEXT,
    KEY_ID,
    LOCKED,
    PUBLIC,
    STEP,
    KeyRing,
    deliver_key,
)
from unseen.privacy.he.server_process import EncryptedServer, ServerProcess
from unseen.privacy.he.sum_approval import (
    APPROVAL,
    APPROVE,
    PRESENT,
    answer_present,
    approve_sum,
    request_approval,
    require_approved,
)
from unseen.privacy.serialization import count_parts, tensor_to_bytes
from unseen.privacy.survivors import FEWEST
from unseen.training import ClientWork, Update

HIDDEN = "encrypted: the server held only ciphertexts"
SHAPES = "shapes and names only"
LOSS, COUNTS = "training loss", "counts of steps and of samples seen"
_NUMBER = 8


@register_protection
class Encrypted(Protection[SealingSettings]):
    """Homomorphic encryption (CKKS) of updates, for means and for gradient surgery (PPDG, section 3.2).

    A round: clients encrypt with the key that they share; all whose updates are combined, at least three,
    approve the list of them, and never another list for the round; the server computes the encrypted Gram
    matrix; a key holder decrypts it and returns the coefficients; the server forms the encrypted weighted sum
    and, of what else the method merges, plain sums; a key holder decrypts these. The arithmetic runs in a
    separate process, which never has the secret key.
    """

    name = "encrypted"
    summary = "homomorphic encryption: clients hold the key, the server computes on ciphertexts"
    extra = "he"
    sends = (
        PUBLIC,
        LOCKED,
        CONTEXT,
        KEY_ID,
        CIPHERTEXTS,
        MAGNITUDES,
        COUNTERS,
        COEFFICIENTS,
        DECISIONS,
        MEAN,
        ADDENDS,
        CONTENTS,
        ADDED,
        APPROVAL,
    )
    seals = True
    answers_protected: ClassVar[Mapping[str, str]] = {
        PUBLIC: "public keys",
        LOCKED: "encrypted for the other clients",
        CONTEXT: "public: lets the server compute, not read",
        KEY_ID: "a random number",
        COEFFICIENTS: "all that came of the K x K Gram matrix, which only a key holder decrypted",
        DECISIONS: "all that came of the K x K Gram matrix, which only a key holder decrypted",
        MEAN: "only the combination of the round's updates, decrypted by a key holder",
        ADDED: "only the sums over the round's clients, decrypted by a key holder",
        APPROVAL: "a code that only key holders can make",
    }

    def __init__(self, settings: SealingSettings) -> None:
        super().__init__(settings)
        self._process: ServerProcess | None = None
        self._opened: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None, "_opened": None}

    # before the run

    def incompatibility(self, method: MethodTraits) -> str | None:
        """Accept weighted means of states, combinations by their Gram matrix, and extras that are merged."""
        if missing := explain_missing_sum(method, updates_to="encrypt", sum_to="compute encrypted"):
            return missing
        single = [kind for kind in method.extra_kinds if kind not in method.merges]
        if single:
            return (
                f"its server half needs {' and '.join(single)} of every client, and only sums are decrypted"
            )
        if method.needs_individual_updates and method.surgery is None:
            return (
                "its server half processes single updates in a way that ciphertexts do not support (it needs "
                "more than a weighted sum with coefficients from their inner products)"
            )
        if method.surgery is not None and method.weighting == "samples":
            return (
                "the client that decides on the inner products does not learn the others' numbers of "
                "samples: use --weighting uniform or method"
            )
        return None

    def check(self, run: PlannedRun) -> None:
        """Require the libraries and at least three clients."""
        import_tenseal()
        require_cryptography(self.extra, f"--protect {self.name}")
        if run.in_round < FEWEST:
            raise UsageError(
                f"--protect {self.name} needs at least {FEWEST} clients in a round, here are {run.in_round}: "
                "each of two could subtract its own update from the decrypted sum and read the other's"
            )

    def cost_notes(self, run: PlannedRun) -> list[str]:
        """Estimate seconds and bytes per round from a calibration on a few ciphertexts."""
        products, clients = run.method.surgery is not None, run.in_round
        packing = CiphertextLayout.of(Layout.of(run.module))
        measured, plain = calibrate(products=products), 4 * run.numbers

        def note(extras: Mapping[str, Tensor], when: str, *, products: bool) -> str:
            cost = estimate(
                measured,
                packing,
                clients=clients,
                products=products,
                addends=count_addends(describe_extras(extras)),
            )
            sent = plain + sum(value.nbytes for value in extras.values())
            return describe(cost, clients=clients, plain=sent, when=when)

        notes = [note(run.extras, "for every round", products=products)]
        unknown = [kind for kind in run.method.extra_kinds if kind not in run.extras]
        if unknown:
            notes[0] += f"; {' and '.join(unknown)} not counted, whose size is not known before the run"
        return notes + ([note(run.start, "to start the head", products=False)] if run.start else [])

    # client half: a key holder

    def before_training(self, work: ClientWork, context: ClientContext) -> None:
        """Draw batches from a secret of the client."""
        draw_batches(work, self.settings)

    def seal(self, update: Update, context: ClientContext) -> Update:
        """Send ciphertexts and what the server weights them by; diagnostics are not sent."""
        if context.start is None:
            raise ValueError("an update is sealed where it was trained, with the weights it started from")
        try:
            holder = KeyRing(context.state).holder(context.received[KEY_ID])
        except UnseenError as error:
            return withhold_update(str(error))
        method = context.method
        sent = encrypt_update(update, context.start, holder, method=method, layout=context.layout)
        if update.extras:
            try:
                sent |= encrypt_extras(update, holder, method=method, clients=int(context.received[PEERS]))
            except RangeError as error:
                return withhold_update(str(error))
        return replace(update, weights=torch.empty(0), loss=0.0, extras=sent, diagnostics={})

    def answer(self, message: Message, context: ClientContext) -> Message:
        """Run a step of the key exchange, approve a sum, decide on a Gram matrix, or decrypt the sum."""
        ring, step = KeyRing(context.state), message[STEP]
        if torch.equal(step, PRESENT):
            return answer_present()
        if torch.equal(step, APPROVE):
            return approve_sum(message, ring, context)
        if torch.equal(step, DECIDE):
            require_approved(message, ring, context)
            return decide_coefficients(message, ring.holder(), context)
        if torch.equal(step, OPEN):
            require_approved(message, ring, context)
            return decrypt_sum(message, ring.holder(), CiphertextLayout.of(context.layout))
        return ring.answer(message)

    # server half

    def begin(self, context: ServerContext) -> Message:
        """Ensure that all clients have the key; the server process starts meanwhile."""
        self._process = self._process or ServerProcess()
        deliver_key(context, products=context.method.surgery is not None)
        peers = {PEERS: torch.tensor([len(context.clients)])} if context.method.extra_kinds else {}
        return {KEY_ID: context.state[KEY_ID], **peers}

    def finish(
        self, context: ServerContext, received: Sequence[ReceivedUpdate], rows: Tensor
    ) -> RoundUpdates:
        """Aggregate ciphertexts as the method does, and have the result decrypted."""
        if len(received) < FEWEST:
            raise UnseenError(
                f"{len(received)} clients sent a usable update, at least {FEWEST} are needed: each of two "
                "could subtract its own from the sum, so nothing was decrypted. Continue with --resume when "
                "more clients can be reached"
            )
        clients, approval = request_approval([client for client, _ in received], context)
        kept = [each for each in received if each.client in clients]
        return EncryptedRound(self._ready(context), context, kept, approval).aggregate()

    def _ready(self, context: ServerContext) -> ServerProcess:
        """Return the server process, loaded with the public context of the run's key."""
        self._process = self._process or ServerProcess()
        if self._opened is None or not torch.equal(self._opened, context.state[KEY_ID]):
            self._process.run(EncryptedServer.open, tensor_to_bytes(context.state[CONTEXT]))
            self._opened = context.state[KEY_ID]
        return self._process

    def explain_unusable_update(
        self, update: Update, method: MethodTraits, layout: Layout, described: Mapping[str, Tensor]
    ) -> str:
        """Check the number of ciphertexts and what is sent beside them."""
        return explain_sealed(update, layout, described)

    def explain_unusable_answer(self, answer: Message, asked: Message) -> str:
        """Check that an answer has the form of its step."""
        return explain_key_answer(answer, asked)

    # disclosure

    def disclose(self, update: Update, method: MethodTraits) -> list[DisclosureEntry]:
        """List the entries: padded ciphertexts hold state and loss; the rest are the server's weights.

        Extras are in ciphertexts of their own.
        """
        ciphertexts = update.extras[CIPHERTEXTS]
        numbers = SLOTS * count_parts(ciphertexts)
        return [
            DisclosureEntry(", ".join(method.in_state), numbers, ciphertexts.nbytes, HIDDEN),
            DisclosureEntry(LOSS, 1, 0, HIDDEN),
            *(DisclosureEntry(*size, HIDDEN) for size in measure_addends(update.extras)),
            DisclosureEntry(SAMPLES, 1, _NUMBER),
            DisclosureEntry(COUNTS, 2, 2 * _NUMBER),
            *(
                DisclosureEntry(kind, value.numel(), value.nbytes, SHAPES if kind == CONTENTS else PLAIN)
                for kind, value in update.extras.items()
                if kind not in (CIPHERTEXTS, ADDENDS)
            ),
        ]

    def statement(self) -> str:
        """State what the server could read."""
        return (
            "Updates were encrypted before they left a client, with a key that only clients hold. The "
            "server computed in a process that held ciphertexts and the public context only. Key holders "
            "decrypted the combination of each round's updates, the sums over the clients of what else the "
            "method merges and, for gradient surgery, the K x K matrix of the updates' inner products. "
            f"{self.settings.order_statement}"
        )
