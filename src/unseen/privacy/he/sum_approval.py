"""Approval of an encrypted sum: before anything of a round is decrypted, its clients agree whose sum it is.

Any key holder could decrypt any sum. So a holder decrypts only with the approvals of more than half of the
round's clients, and of at least three. Each notes the list of clients that it approved and approves no other
one for that round: two groups of more than half share a client. Approvals are authenticated with the clients'
key, so the server can neither make nor change one. That a ciphertext is the sum over the listed clients, no
holder can check: a server that computes something else is not stopped here.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence

import torch

from unseen.errors import UnseenError
from unseen.privacy.context import ClientContext, Message, ServerContext
from unseen.privacy.he.encrypted_sums import PEERS
from unseen.privacy.he.key_exchange import STEP, KeyRing
from unseen.privacy.serialization import (
    bytes_to_tensor,
    json_from_tensor,
    json_to_tensor,
    tensor_to_bytes,
)
from unseen.privacy.survivors import FEWEST, admit_survivors, former_survivors, list_refusals

APPROVE = torch.tensor([6])
"""Step before a Gram matrix is decided on or a sum is decrypted."""
APPROVAL = "approval of the sum"
APPROVALS, IN_ROUND, IN_SUM = "approvals", "clients of the round", "clients of the sum"
CODE_BYTES = 32


def approvals_needed(in_round: int) -> int:
    """Return how many clients must approve: more than half, and at least three."""
    return max(in_round // 2 + 1, FEWEST)


# client half


def approve_sum(message: Message, ring: KeyRing, context: ClientContext) -> Message:
    """Approve the list of clients in a sum, once per round; the answer proves it to the other key holders."""
    in_round, in_sum = _read_lists(message)
    if context.client not in in_sum:
        raise UnseenError("was asked to approve a sum without its own update")
    key = ring.approval_key()
    admit_survivors(in_sum, context)
    return {APPROVAL: bytes_to_tensor(_code(key, context.client, context.round, in_round, in_sum))}


def require_approved(message: Message, ring: KeyRing, context: ClientContext) -> None:
    """Refuse to decrypt what too few clients approved, or sums that count others than the list."""
    in_round, in_sum = _read_lists(message)
    key, given = ring.approval_key(), message.get(APPROVALS)
    if given is None or given.shape != (len(in_sum), CODE_BYTES) or given.dtype is not torch.uint8:
        raise UnseenError("was asked to decrypt with approvals that cannot be read")
    found = sum(
        hmac.compare_digest(tensor_to_bytes(code), _code(key, client, context.round, in_round, in_sum))
        for client, code in zip(in_sum, given, strict=True)
    )
    needed = approvals_needed(len(in_round))
    if PEERS in message and int(message[PEERS]) != len(in_sum):
        raise UnseenError("was asked to decrypt sums over another number of clients than approved")
    if found < needed:
        raise UnseenError(
            f"was asked to decrypt a sum that {found} of {len(in_round)} clients approved; {needed} must"
        )


def _read_lists(message: Message) -> tuple[list[str], list[str]]:
    """Read the clients of the round and those of the sum; refuse lists that hide nobody."""
    try:
        in_round, in_sum = (
            [str(name) for name in json_from_tensor(message[kind])] for kind in (IN_ROUND, IN_SUM)
        )
    except (LookupError, TypeError, ValueError) as error:
        raise UnseenError("was not told whose updates are in the sum, so it decrypts nothing") from error
    if len(set(in_sum)) != len(in_sum) or not set(in_sum) <= set(in_round):
        raise UnseenError("the list of clients in the sum is invalid")
    if len(in_sum) < FEWEST:
        raise UnseenError(
            f"a sum over {len(in_sum)} clients is not decrypted, {FEWEST} are needed: each of two could "
            "subtract its own update"
        )
    return in_round, in_sum


def _code(key: bytes, client: str, round: int, in_round: Sequence[str], in_sum: Sequence[str]) -> bytes:
    text = json.dumps([client, round, sorted(in_round), sorted(in_sum)])
    return hmac.digest(key, text.encode(), "sha256")


# server half


def request_approval(clients: Sequence[str], context: ServerContext) -> tuple[list[str], Message]:
    """Return the clients whose sum may be decrypted, and what shows it to a key holder.

    If a round was opened over fewer clients before a crash, these alone approve, and the others are left out.
    """
    clients, needed = list(clients), approvals_needed(len(context.clients))
    question, found = _ask(clients, context)
    if len(found) < needed and (former := former_survivors(clients, context)):
        clients = former
        if len(clients) >= FEWEST:
            question, found = _ask(clients, context)
    if len(found) < needed:
        refusals = list_refusals(context)
        raise UnseenError(
            f"round {context.round}: {len(found)} clients approved the decryption of the sum, at least "
            f"{needed} must; nothing was decrypted. "
            + (f"Refused by {refusals}" if refusals else "Continue with --resume when more can be reached")
        )
    missing = bytes(CODE_BYTES)
    codes = [tensor_to_bytes(found[name]) if name in found else missing for name in clients]
    return clients, question | {APPROVALS: torch.stack([bytes_to_tensor(code) for code in codes])}


def _ask(clients: Sequence[str], context: ServerContext) -> tuple[Message, dict[str, torch.Tensor]]:
    lists = {IN_ROUND: json_to_tensor(list(context.clients)), IN_SUM: json_to_tensor(list(clients))}
    answers = context.ask({client: {STEP: APPROVE, **lists} for client in clients})
    return lists, {client: answer[APPROVAL] for client, answer in answers.items()}
