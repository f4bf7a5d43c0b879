"""Approval of an encrypted sum: before anything of a round is decrypted, its clients agree whose sum it is.

Any key holder could decrypt any sum. So a holder decrypts only with the approvals of all clients in the sum,
of at least three. Each notes the list that it approved and approves no other one for that round: two lists
that were both approved have no client in common, so the difference of their sums shows no single update. A
majority would not do, since only the server says who is in a round: it could have one list approved by one
half of an odd number of clients, and another list, which differs in one client, by the other half.

An approval is a code over the whole list, made with the clients' key: the server can neither make nor change
one. As nothing else can be decrypted once somebody approved, clients first say whether they are there; this
binds nobody. That a ciphertext is the sum over the listed clients, no holder can check: a server that
computes something else is not stopped here.
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

APPROVE, PRESENT = torch.tensor([6]), torch.tensor([7])
"""Steps before anything is decrypted: to approve the clients of the sum, and to say that one is there."""
APPROVAL = "approval of the sum"
APPROVALS, IN_SUM = "approvals", "clients of the sum"
CODE_BYTES = 32


# client half


def answer_present() -> Message:
    """Say that this client is there to approve: an approval without a code, which approves nothing."""
    return {APPROVAL: torch.empty(0, dtype=torch.uint8)}


def approve_sum(message: Message, ring: KeyRing, context: ClientContext) -> Message:
    """Approve the list of clients in a sum, once per round; the answer proves it to the other key holders."""
    in_sum = _read_list(message)
    if context.client not in in_sum:
        raise UnseenError("was asked to approve a sum without its own update")
    key = ring.approval_key()
    admit_survivors(in_sum, context)
    return {APPROVAL: bytes_to_tensor(_code(key, context.client, context.round, in_sum))}


def require_approved(message: Message, ring: KeyRing, context: ClientContext) -> None:
    """Refuse to decrypt what not all clients of the list approved, or sums over another number of them."""
    in_sum = _read_list(message)
    key, given = ring.approval_key(), message.get(APPROVALS)
    if given is None or given.shape != (len(in_sum), CODE_BYTES) or given.dtype is not torch.uint8:
        raise UnseenError("was asked to decrypt with approvals that cannot be read")
    if PEERS in message and int(message[PEERS]) != len(in_sum):
        raise UnseenError("was asked to decrypt sums over another number of clients than approved")
    lacking = [
        client
        for client, code in zip(in_sum, given, strict=True)
        if not hmac.compare_digest(tensor_to_bytes(code), _code(key, client, context.round, in_sum))
    ]
    if lacking:
        raise UnseenError(
            f"was asked to decrypt a sum that {len(in_sum) - len(lacking)} of its {len(in_sum)} clients "
            "approved; all must"
        )


def _read_list(message: Message) -> list[str]:
    """Read the clients of the sum; refuse a list that hides nobody."""
    try:
        in_sum = [str(name) for name in json_from_tensor(message[IN_SUM])]
    except (LookupError, TypeError, ValueError) as error:
        raise UnseenError("was not told whose updates are in the sum, so it decrypts nothing") from error
    if len(set(in_sum)) != len(in_sum):
        raise UnseenError("the list of clients in the sum names one of them twice")
    if len(in_sum) < FEWEST:
        raise UnseenError(
            f"a sum over {len(in_sum)} clients is not decrypted, {FEWEST} are needed: each of two could "
            "subtract its own update"
        )
    return in_sum


def _code(key: bytes, client: str, round: int, in_sum: Sequence[str]) -> bytes:
    return hmac.digest(key, json.dumps([client, round, sorted(in_sum)]).encode(), "sha256")


# server half


def request_approval(clients: Sequence[str], context: ServerContext) -> tuple[list[str], Message]:
    """Return the clients whose sum may be decrypted, and what shows it to a key holder.

    Clients that are gone since they sent their updates are left out. If a round was opened over fewer clients
    before a crash, these alone approve, and the others are left out.
    """
    present = context.ask({client: {STEP: PRESENT} for client in clients})
    clients = [client for client in clients if client in present]
    question, found = _ask(clients, context)
    if former := former_survivors(clients, context):
        clients = former
        question, found = _ask(clients, context)
    if len(clients) < FEWEST or len(found) < len(clients):
        refusals = list_refusals(context)
        raise UnseenError(
            f"round {context.round}: {len(found)} of {len(clients)} clients approved the decryption of their "
            f"sum; all must, and at least {FEWEST}; nothing was decrypted. "
            + (f"Refused by {refusals}" if refusals else "Continue with --resume when all can be reached")
        )
    codes = [found[name] for name in clients]
    return clients, question | {APPROVALS: torch.stack(codes)}


def _ask(clients: Sequence[str], context: ServerContext) -> tuple[Message, dict[str, torch.Tensor]]:
    """Ask clients to approve their sum; nobody, where they are too few, since an approval binds."""
    question = {IN_SUM: json_to_tensor(list(clients))}
    if len(clients) < FEWEST:
        return question, {}
    answers = context.ask({client: {STEP: APPROVE, **question} for client in clients})
    return question, {client: answer[APPROVAL] for client, answer in answers.items()}
