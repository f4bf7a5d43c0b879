"""Server half of secure aggregation: it forwards messages, sums up, and removes the masks from the sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.privacy import crypto
from unseen.privacy.context import Ask, Message
from unseen.privacy.secagg import shamir
from unseen.privacy.secagg.masking import FEWEST, PUBLIC, REVEALED, SHARES, add_pair, pair_seed
from unseen.privacy.secagg.packing import Whole
from unseen.privacy.serialization import tensor_to_bytes

STEP = "step"
ADVERTISE, DEAL, REVEAL = (torch.tensor([number]) for number in range(3))
ROSTER, PART, SURVIVORS = "roster", "taking part", "survivors"


@dataclass(frozen=True)
class Cohort:
    """Clients that agreed on keys in a round, in the order of the roster.

    taking_part  which of them also sent shares, so that their masks can be removed without them
    shares       the encrypted shares: the sender's row has one for every receiver
    """

    clients: tuple[str, ...]
    roster: Tensor
    taking_part: Tensor
    shares: Tensor
    threshold: int


def form_cohort(clients: Sequence[str], ask: Ask, *, needed: Callable[[int], int]) -> Cohort:
    """Collect the clients' public keys, then their encrypted shares.

    needed  maps the number of clients to how many must help to open a sum
    """
    answers = ask({client: {STEP: ADVERTISE} for client in clients})
    names = tuple(client for client in clients if client in answers)
    _require_enough(len(names), max(needed(len(clients)), FEWEST), "sent their public keys")
    threshold = needed(len(names))
    roster = torch.stack([answers[name][PUBLIC] for name in names])
    dealt = ask({name: {STEP: DEAL, ROSTER: roster} for name in names})
    _require_enough(len(dealt), threshold, "sent shares of their keys")
    empty = torch.zeros_like(next(iter(dealt.values()))[SHARES])
    return Cohort(
        clients=names,
        roster=roster,
        taking_part=torch.tensor([name in dealt for name in names]),
        shares=torch.stack([dealt[name][SHARES] if name in dealt else empty for name in names]),
        threshold=threshold,
    )


def open_sum(cohort: Cohort, masked: dict[str, Whole], ask: Ask, *, round: int) -> Whole:
    """Compute the sum of the numbers of all clients that sent theirs.

    Of clients that sent, the private mask is removed; of dropped clients, the masks that they share with the
    others, which are in the others' numbers.
    """
    _require_enough(len(masked), cohort.threshold, "sent an update")
    survivors = torch.tensor([name in masked for name in cohort.clients])
    answers = ask(
        {
            name: _reveal_request(cohort, survivors, place)
            for place, name in enumerate(cohort.clients)
            if bool(survivors[place])
        }
    )
    _require_enough(len(answers), cohort.threshold, "helped to remove the masks")
    total: Whole = np.zeros_like(next(iter(masked.values())))
    for numbers in masked.values():
        total = total + numbers
    for place in cohort.taking_part.nonzero().flatten().tolist():
        secret = _secret_of(place, cohort, answers)
        if bool(survivors[place]):
            total = total - crypto.mask(secret, len(total))
        else:
            _require_matching_key(secret, place, cohort)
            for other in survivors.nonzero().flatten().tolist():
                seed = pair_seed(secret, cohort.roster, me=place, other=other, round=round)
                total = add_pair(total, seed, plus=place < other)
    return total


def _require_matching_key(private: bytes, lost: int, cohort: Cohort) -> None:
    if crypto.public_key(private) != tensor_to_bytes(cohort.roster[lost])[: crypto.KEY_BYTES]:
        raise UnseenError(f"the shares of {cohort.clients[lost]!r}'s mask key do not match its public key")


def _secret_of(place: int, cohort: Cohort, answers: dict[str, Message]) -> bytes:
    """Reconstruct a client's secret from the revealed shares: the seed of its own mask, or its mask key."""
    revealed = {
        cohort.clients.index(name) + 1: tensor_to_bytes(answer[REVEALED][place])
        for name, answer in answers.items()
    }
    helpers = dict(sorted(revealed.items())[: cohort.threshold])
    try:
        return shamir.join(helpers)
    except ValueError as error:
        raise UnseenError(f"the masks of {cohort.clients[place]!r} cannot be removed: {error}") from error


def _reveal_request(cohort: Cohort, survivors: Tensor, place: int) -> Message:
    return {
        STEP: REVEAL,
        ROSTER: cohort.roster,
        PART: cohort.taking_part,
        SURVIVORS: survivors,
        SHARES: cohort.shares[:, place].contiguous(),
    }


def _require_enough(found: int, threshold: int, what: str) -> None:
    if found < threshold:
        raise UnseenError(
            f"secure summation: {found} clients {what}, at least {threshold} are needed; nothing was read. "
            "Continue with --resume when more can be reached, or allow fewer with --protect-set threshold=N"
        )
