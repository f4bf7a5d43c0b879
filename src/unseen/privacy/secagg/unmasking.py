"""Server half of secure aggregation: it forwards messages, sums up, and removes the masks from the sum.

Clients are not believed: one whose keys, shares or rows are unusable is recorded with a fault and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.privacy import crypto
from unseen.privacy.context import Message, ServerContext
from unseen.privacy.secagg import shamir
from unseen.privacy.secagg.masking import add_pair, pair_seed, share_digest
from unseen.privacy.secagg.message_forms import (
    ADVERTISE,
    CHECK,
    COMMITMENTS,
    DEAL,
    DEALT,
    DIGEST_BYTES,
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
)
from unseen.privacy.secagg.packing import Whole
from unseen.privacy.serialization import join_parts, json_to_tensor, tensor_to_bytes
from unseen.privacy.survivors import FEWEST, former_survivors, list_refusals

_NOTHING = torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True)
class Cohort:
    """Clients that agreed on keys in a round, in the order of the roster.

    taking_part  which of them also sent usable shares, so that their masks can be removed without them
    shares       the encrypted shares: the sender's row has one for every receiver
    commitments  the digests that senders announced of the shares, in the same order
    """

    clients: tuple[str, ...]
    roster: Tensor
    taking_part: Tensor
    shares: Tensor
    commitments: Tensor
    threshold: int

    @property
    def names(self) -> Tensor:
        """The clients' names, for messages."""
        return json_to_tensor(list(self.clients))


def form_cohort(context: ServerContext, *, needed: Callable[[int], int]) -> Cohort:
    """Collect the clients' public keys, then their encrypted shares, then their complaints about shares.

    needed  maps the number of clients to how many must help to open a sum
    """
    clients = context.clients
    answers = _ask({client: {STEP: ADVERTISE} for client in clients}, context)
    answers = _with_own_keys(answers, context)
    names = tuple(client for client in clients if client in answers)
    _require_enough(len(names), max(needed(len(clients)), FEWEST), "sent usable public keys", context)
    threshold = needed(len(names))
    roster = torch.stack([answers[name][PUBLIC] for name in names])
    proofs = join_parts([tensor_to_bytes(answers[name].get(PROOF, _NOTHING)) for name in names])
    about: Message = {ROSTER: roster, NAMES: json_to_tensor(list(names))}
    dealt = _ask({name: {STEP: DEAL, PROOFS: proofs, **about} for name in names}, context)
    _require_enough(len(dealt), threshold, "sent usable shares of their keys", context)
    first = next(iter(dealt.values()))
    shares, commitments = (
        torch.stack([dealt[name][kind] if name in dealt else torch.zeros_like(first[kind]) for name in names])
        for kind in (SHARES, COMMITMENTS)
    )
    present = torch.tensor([name in dealt for name in names])
    requests = {
        name: {
            STEP: CHECK,
            **about,
            DEALT: present,
            SHARES: shares[:, place].contiguous(),
            COMMITMENTS: commitments[:, place].contiguous(),
        }
        for place, name in enumerate(names)
        if name in dealt
    }
    taking_part = _exclude_liars(names, _ask(requests, context), threshold=threshold, context=context)
    _require_enough(int(taking_part.sum()), threshold, "agreed on usable shares", context)
    return Cohort(names, roster, taking_part, shares, commitments, threshold)


def _ask(messages: Mapping[str, Message], context: ServerContext) -> dict[str, Message]:
    """Send each client its message; an answer without the form of its step is a fault of its sender."""
    found: dict[str, Message] = {}
    for client, answer in context.ask(messages).items():
        reason = explain_answer(answer, messages[client])
        if reason:
            context.fault(client, reason)
        else:
            found[client] = answer
    return found


def _with_own_keys(answers: Mapping[str, Message], context: ServerContext) -> dict[str, Message]:
    """Leave out clients that sent keys of another client as their own."""
    taken: set[bytes] = set()
    found: dict[str, Message] = {}
    for client, answer in answers.items():
        both = tensor_to_bytes(answer[PUBLIC])
        halves = {both[: crypto.KEY_BYTES], both[crypto.KEY_BYTES :]}
        if len(halves) < 2 or halves & taken:
            context.fault(client, f"sent {PUBLIC} that are used already")
        else:
            taken |= halves
            found[client] = answer
    return found


def _exclude_liars(
    names: tuple[str, ...], said: Mapping[str, Message], *, threshold: int, context: ServerContext
) -> Tensor:
    """Leave out clients whose shares too few others can use, or that reject those of most others."""
    complaints = {
        name: {
            other
            for other, bad in zip(names, answer[UNUSABLE].tolist(), strict=True)
            if bad and other != name
        }
        for name, answer in said.items()
    }
    liars = find_liars(complaints, needed=threshold)
    for name, reason in liars.items():
        context.fault(name, reason)
    return torch.tensor([name in said and name not in liars for name in names])


def open_sum(
    cohort: Cohort, masked: Mapping[str, Whole], context: ServerContext
) -> tuple[Whole, tuple[str, ...]]:
    """Compute the sum of the numbers of the clients that sent theirs, and return whose they are.

    Of clients that sent, the private mask is removed; of dropped clients, the masks that they share with the
    others, which are in the others' numbers.
    """
    survivors, usable = _revealed_shares(cohort, masked, context)
    if len(usable) < cohort.threshold and (former := former_survivors(masked, context)):
        masked = {name: masked[name] for name in former}
        survivors, usable = _revealed_shares(cohort, masked, context)
    _require_enough(len(usable), cohort.threshold, "helped to remove the masks", context)
    total: Whole = np.zeros_like(next(iter(masked.values())))
    for numbers in masked.values():
        total = total + numbers
    for place in cohort.taking_part.nonzero().flatten().tolist():
        secret = _secret_of(place, cohort, usable, context)
        if bool(survivors[place]):
            total = total - crypto.mask(secret, len(total))
        else:
            _require_matching_key(secret, place, cohort)
            for other in survivors.nonzero().flatten().tolist():
                seed = pair_seed(secret, cohort.roster, me=place, other=other, round=context.round)
                total = add_pair(total, seed, plus=place < other)
    return total, tuple(masked)


def _revealed_shares(
    cohort: Cohort, masked: Mapping[str, Whole], context: ServerContext
) -> tuple[Tensor, dict[int, dict[int, bytes]]]:
    """Ask the clients that sent numbers for their shares; return who they are and what can be used."""
    _require_enough(len(masked), max(cohort.threshold, FEWEST), "sent a usable update", context)
    survivors = torch.tensor([name in masked for name in cohort.clients])
    requests = {
        name: reveal_request(cohort, survivors, place)
        for place, name in enumerate(cohort.clients)
        if bool(survivors[place])
    }
    return survivors, _verified_shares(cohort, survivors, _ask(requests, context), context)


def reveal_request(cohort: Cohort, survivors: Tensor, place: int) -> Message:
    """Build the request to a client to reveal its shares."""
    return {
        STEP: REVEAL,
        ROSTER: cohort.roster,
        NAMES: cohort.names,
        PART: cohort.taking_part,
        SURVIVORS: survivors,
        SHARES: cohort.shares[:, place].contiguous(),
        COMMITMENTS: cohort.commitments[:, place].contiguous(),
    }


def _verified_shares(
    cohort: Cohort, survivors: Tensor, answers: Mapping[str, Message], context: ServerContext
) -> dict[int, dict[int, bytes]]:
    """Compare revealed shares with what was announced; leave out clients that reveal others.

    Returns the usable shares of every helper: from the helper's position to shares by their owner's position.
    A row of zeros says that the owner's share was unusable.
    """
    found: dict[int, dict[int, bytes]] = {}
    for helper, name in enumerate(cohort.clients):
        if name not in answers:
            continue
        own: dict[int, bytes] = {}
        wrong: list[str] = []
        for owner in cohort.taking_part.nonzero().flatten().tolist():
            share = tensor_to_bytes(answers[name][REVEALED][owner])
            half = slice(0, DIGEST_BYTES) if bool(survivors[owner]) else slice(DIGEST_BYTES, None)
            if share_digest(share) == tensor_to_bytes(cohort.commitments[owner, helper])[half]:
                own[owner] = share
            elif any(share):
                wrong.append(cohort.clients[owner])
        if wrong:
            context.fault(name, f"revealed wrong shares of {', '.join(wrong)}")
        else:
            found[helper] = own
    return found


def _require_matching_key(private: bytes, lost: int, cohort: Cohort) -> None:
    if crypto.public_key(private) != tensor_to_bytes(cohort.roster[lost])[: crypto.KEY_BYTES]:
        raise UnseenError(f"the shares of {cohort.clients[lost]!r}'s mask key do not match its public key")


def _secret_of(
    owner: int, cohort: Cohort, usable: Mapping[int, Mapping[int, bytes]], context: ServerContext
) -> bytes:
    """Reconstruct a client's secret from the revealed shares: the seed of its own mask, or its mask key."""
    name = cohort.clients[owner]
    shares = {helper + 1: own[owner] for helper, own in usable.items() if owner in own}
    try:
        if len(shares) < cohort.threshold:
            raise ValueError(f"{len(shares)} clients hold usable shares of it, {cohort.threshold} are needed")
        return shamir.join(dict(sorted(shares.items())[: cohort.threshold]))
    except ValueError as error:
        context.fault(name, f"its masks cannot be removed: {error}")
        raise UnseenError(f"the masks of {name!r} cannot be removed: {error}; nothing was read") from error


def _require_enough(found: int, needed: int, what: str, context: ServerContext) -> None:
    if found < needed:
        refusals = list_refusals(context)
        raise UnseenError(
            f"secure summation: {found} clients {what}, at least {needed} are needed; nothing was read. "
            + (
                f"Refused by {refusals}"
                if refusals
                else "Continue with --resume when more can be reached, or allow fewer with --protect-set "
                f"threshold=N (at least {FEWEST})"
            )
        )


def find_liars(complaints: Mapping[str, Set[str]], *, needed: int) -> dict[str, str]:
    """Decide who is wrong where clients reject the shares of others.

    complaints  the clients that each one rejects
    needed      clients that must hold a usable share of each

    One whose shares most others reject is wrong; then one that rejects those of most others; then one whose
    shares fewer than `needed` of the rest can use.
    """
    liars: dict[str, str] = {}

    def rejecters(name: str) -> list[str]:
        return [other for other, rejected in complaints.items() if other not in liars and name in rejected]

    for name in complaints:
        by = rejecters(name)
        if _most(len(by), len(complaints)):
            liars[name] = f"sent unusable shares to {', '.join(by)}"
    for name, rejected in complaints.items():
        among = set(complaints) - set(liars)
        if name in among and _most(len(rejected & among), len(among)):
            liars[name] = f"rejects the shares of {', '.join(sorted(rejected & among))}"
    for name in complaints:
        by = rejecters(name)
        if name not in liars and by and len(complaints) - len(liars) - len(by) < needed:
            liars[name] = f"sent unusable shares to {', '.join(by)}"
    return liars


def _most(number: int, clients: int) -> bool:
    """Whether a number of clients are most of the others of one of them, and more than one."""
    return number > 1 and 2 * number > clients - 1
