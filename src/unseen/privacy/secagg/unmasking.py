"""The server's half of secure summation: it passes messages on, adds up, and takes masks off the sum."""

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
from unseen.privacy.secagg.fixed_point import Whole
from unseen.privacy.secagg.masking import FEWEST, PUBLIC, REVEALED, SHARES, add_pair, pair_seed
from unseen.privacy.serialization import tensor_to_bytes

STEP = "step"
ADVERTISE, DEAL, REVEAL = (torch.tensor([number]) for number in range(3))
ROSTER, PART, SURVIVORS = "roster", "taking part", "survivors"


@dataclass(frozen=True)
class Cohort:
    """Those who agreed on keys in a round, in the order of the roster.

    taking_part  who also dealt out shares, so that masks can be taken off without them
    shares       what they dealt: the sender's row has a locked box for every receiver
    """

    clients: tuple[str, ...]
    roster: Tensor
    taking_part: Tensor
    shares: Tensor
    threshold: int


def form_cohort(clients: Sequence[str], ask: Ask, *, needed: Callable[[int], int]) -> Cohort:
    """Collect everyone's public keys, then everyone's locked shares.

    needed  how many of so many must help to open a sum
    """
    answers = ask({client: {STEP: ADVERTISE} for client in clients})
    names = tuple(client for client in clients if client in answers)
    _require_enough(len(names), max(needed(len(clients)), FEWEST), "told their public keys")
    threshold = needed(len(names))
    roster = torch.stack([answers[name][PUBLIC] for name in names])
    dealt = ask({name: {STEP: DEAL, ROSTER: roster} for name in names})
    _require_enough(len(dealt), threshold, "dealt out shares of their keys")
    empty = torch.zeros_like(next(iter(dealt.values()))[SHARES])
    return Cohort(
        clients=names,
        roster=roster,
        taking_part=torch.tensor([name in dealt for name in names]),
        shares=torch.stack([dealt[name][SHARES] if name in dealt else empty for name in names]),
        threshold=threshold,
    )


def open_sum(circle: Cohort, masked: dict[str, Whole], ask: Ask, *, round: int) -> Whole:
    """The sum of the numbers of all who sent theirs.

    Of those who sent, their own mask is taken off; of those who fell out, the masks that they share with the
    others, which the others' numbers hold.
    """
    _require_enough(len(masked), circle.threshold, "sent an update")
    survivors = torch.tensor([name in masked for name in circle.clients])
    answers = ask(
        {
            name: _question(circle, survivors, place)
            for place, name in enumerate(circle.clients)
            if bool(survivors[place])
        }
    )
    _require_enough(len(answers), circle.threshold, "helped to take the masks off")
    total: Whole = np.zeros_like(next(iter(masked.values())))
    for numbers in masked.values():
        total = total + numbers
    for place in circle.taking_part.nonzero().flatten().tolist():
        secret = _secret_of(place, circle, answers)
        if bool(survivors[place]):
            total = total - crypto.mask(secret, len(total))
        else:
            _require_fitting(secret, place, circle)
            for other in survivors.nonzero().flatten().tolist():
                seed = pair_seed(secret, circle.roster, me=place, other=other, round=round)
                total = add_pair(total, seed, plus=place < other)
    return total


def _require_fitting(private: bytes, lost: int, circle: Cohort) -> None:
    if crypto.public_key(private) != tensor_to_bytes(circle.roster[lost])[: crypto.KEY_BYTES]:
        raise UnseenError(f"the shares of {circle.clients[lost]!r}'s mask key do not fit its public key")


def _secret_of(place: int, circle: Cohort, answers: dict[str, Message]) -> bytes:
    """Put together what the helpers revealed of a client: its own mask's seed, or its mask key."""
    revealed = {
        circle.clients.index(name) + 1: tensor_to_bytes(answer[REVEALED][place])
        for name, answer in answers.items()
    }
    helpers = dict(sorted(revealed.items())[: circle.threshold])
    try:
        return shamir.join(helpers)
    except ValueError as error:
        raise UnseenError(f"the masks of {circle.clients[place]!r} cannot be taken off: {error}") from error


def _question(circle: Cohort, survivors: Tensor, place: int) -> Message:
    return {
        STEP: REVEAL,
        ROSTER: circle.roster,
        PART: circle.taking_part,
        SURVIVORS: survivors,
        SHARES: circle.shares[:, place].contiguous(),
    }


def _require_enough(found: int, threshold: int, what: str) -> None:
    if found < threshold:
        raise UnseenError(
            f"secure summation: {found} clients {what}, at least {threshold} are needed; nothing was read. "
            "Go on with --resume when more can be reached, or allow fewer with --protect-set threshold=N"
        )
