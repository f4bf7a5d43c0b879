"""Client half of secure aggregation (Bonawitz et al. 2017, with double masking).

A client adds to its numbers one mask per other client, which cancels in the sum, and a private mask. If it
drops out, the others help to remove its shared masks; if not, its private one. No client helps with both or
twice: otherwise a server could declare a slow client lost, have its shared masks removed, and read its update
when it arrives.
"""

from __future__ import annotations

import hashlib
from collections.abc import MutableMapping
from functools import partial

import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.privacy import crypto
from unseen.privacy.context import Message
from unseen.privacy.secagg import shamir
from unseen.privacy.secagg.packing import Whole
from unseen.privacy.serialization import bytes_to_tensor, tensor_to_bytes

SECRET, DEALT, SENT = "secret of the round", "roster of the round", "sent in the round"
PUBLIC, SHARES, REVEALED = "public keys", "encrypted shares", "revealed shares"
FEWEST = 3
"""With two clients, each could subtract its own part from the sum."""


class MaskingSession:
    """One client in one round; its only state is a secret, which its last answer deletes.

    Positions of clients are those in the roster, a table of the clients' two public keys.
    """

    def __init__(self, state: MutableMapping[str, Tensor], round: int) -> None:
        self.state, self.round = state, round

    def advertise(self) -> Message:
        """Draw a fresh secret and send two public keys, for masks and for encrypting shares."""
        self.state[SECRET] = bytes_to_tensor(crypto.new_secret())
        for former in (DEALT, SENT):
            self.state.pop(former, None)
        both = crypto.public_key(self._key("mask")) + crypto.public_key(self._key("box"))
        return {PUBLIC: bytes_to_tensor(both)}

    def deal(self, roster: Tensor, *, threshold: int) -> Message:
        """Secret-share the mask key and the private mask's seed, each share encrypted for its receiver."""
        if DEALT in self.state:
            raise UnseenError("shares of this round were already sent; a second roster is refused")
        if len(roster) < max(threshold, FEWEST):
            raise UnseenError(f"a roster of {len(roster)} clients hides no update: {threshold} must help")
        me, digest = self._place(roster), _digest(roster)
        self.state[DEALT] = bytes_to_tensor(digest)
        dealt = [
            shamir.split(
                self._key(name),
                threshold=threshold,
                shares=len(roster),
                random=partial(crypto.stream, self._key(f"coefficients: {name}")),
            )
            for name in ("own mask", "mask")
        ]
        boxes = [
            crypto.lock(own + shared, self._box_key(roster, me, other))
            for other, (own, shared) in enumerate(zip(*dealt, strict=True))
        ]
        return {SHARES: torch.stack([bytes_to_tensor(box) for box in boxes])}

    def mask(self, numbers: Whole, roster: Tensor, taking_part: Tensor) -> Whole:
        """Mask numbers with the client's own mask and those shared with every participant.

        Only once: the difference of two rows with the same masks would be readable.
        """
        me = self._require_same(roster)
        if SENT in self.state:
            raise UnseenError("an update was already sent in this round; masks must be used only once")
        self.state[SENT] = torch.ones(1)
        hidden = numbers + crypto.mask(self._key("own mask"), len(numbers))
        for other in taking_part.nonzero().flatten().tolist():
            if other != me:
                seed = pair_seed(self._key("mask"), roster, me=me, other=other, round=self.round)
                hidden = add_pair(hidden, seed, plus=me < other)
        return hidden

    def reveal(
        self, roster: Tensor, survivors: Tensor, *, taking_part: Tensor, shares: Tensor, threshold: int
    ) -> Message:
        """Reveal shares for unmasking: of senders, those of the own mask; of dropped clients, the mask key's.

        shares  what the others encrypted for this client
        """
        me = self._require_same(roster)
        if not bool(survivors[me]) or bool((survivors & ~taking_part).any()):
            raise UnseenError("the list of clients that sent something is invalid")
        if int(survivors.sum()) < threshold:
            raise UnseenError(f"{int(survivors.sum())} clients sent something, {threshold} are needed")
        revealed = torch.zeros(len(roster), shamir.SHARE_BYTES, dtype=torch.uint8)
        for other in taking_part.nonzero().flatten().tolist():
            both = crypto.unlock(tensor_to_bytes(shares[other]), self._box_key(roster, other, me))
            half = slice(0, shamir.SHARE_BYTES) if bool(survivors[other]) else slice(shamir.SHARE_BYTES, None)
            revealed[other] = bytes_to_tensor(both[half])
        for spent in (SECRET, DEALT, SENT):
            self.state.pop(spent, None)
        return {REVEALED: revealed}

    def _key(self, purpose: str) -> bytes:
        if SECRET not in self.state:
            raise UnseenError("this client has no secret for the round: it has helped already or never began")
        return crypto.derive(tensor_to_bytes(self.state[SECRET]), purpose)

    def _place(self, roster: Tensor) -> int:
        mine = crypto.public_key(self._key("mask")) + crypto.public_key(self._key("box"))
        places = [place for place, both in enumerate(roster) if tensor_to_bytes(both) == mine]
        if len(places) != 1:
            raise UnseenError("this client's keys are not in the roster, or not once")
        return places[0]

    def _require_same(self, roster: Tensor) -> int:
        place = self._place(roster)
        if DEALT not in self.state or tensor_to_bytes(self.state[DEALT]) != _digest(roster):
            raise UnseenError("the roster differs from the one for which shares were sent")
        return place

    def _box_key(self, roster: Tensor, sender: int, receiver: int) -> bytes:
        """Derive the key of the share that one client sends to another, one of which is this one."""
        own = self._key("box")
        mine = crypto.public_key(own)
        there = receiver if tensor_to_bytes(roster[sender])[crypto.KEY_BYTES :] == mine else sender
        secret = crypto.agree(own, tensor_to_bytes(roster[there])[crypto.KEY_BYTES :])
        return crypto.derive(
            secret, f"share {sender} to {receiver}, round {self.round}", salt=_digest(roster)
        )


def pair_seed(private: bytes, roster: Tensor, *, me: int, other: int, round: int) -> bytes:
    """Derive the seed of the mask that two clients share in this round."""
    secret = crypto.agree(private, tensor_to_bytes(roster[other])[: crypto.KEY_BYTES])
    low, high = sorted((me, other))
    return crypto.derive(secret, f"mask {low} and {high}, round {round}", salt=_digest(roster))


def add_pair(numbers: Whole, seed: bytes, *, plus: bool) -> Whole:
    """Add a shared mask: the client that comes first in the roster adds it, the other subtracts it."""
    drawn = crypto.mask(seed, len(numbers))
    return numbers + drawn if plus else numbers - drawn


def _digest(roster: Tensor) -> bytes:
    return hashlib.sha256(tensor_to_bytes(roster)).digest()
