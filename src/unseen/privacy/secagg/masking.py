"""Client half of secure aggregation (Bonawitz et al. 2017, with double masking).

A client adds to its numbers one mask per other client, which cancels in the sum, and a private mask. If it
drops out, the others help to remove its shared masks; if not, its private one. No client helps with both or
twice: otherwise a server could declare a slow client lost, have its shared masks removed, and read its update
when it arrives. Nor does it help to open a round again over other clients: the difference of the two sums
would be the update of those that are in one of them only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.privacy import crypto
from unseen.privacy.context import ClientContext, Message
from unseen.privacy.secagg import shamir
from unseen.privacy.secagg.message_forms import (
    COMMITMENTS,
    PROOF,
    PUBLIC,
    REVEALED,
    SHARES,
    UNUSABLE,
)
from unseen.privacy.secagg.packing import Whole
from unseen.privacy.serialization import bytes_to_tensor, join_parts, tensor_to_bytes
from unseen.privacy.survivors import FEWEST, admit_survivors

SECRET, ROUND = "secret of the round", "round of the secret"
DEALT, SENT = "roster of the round", "sent in the round"


class MaskingSession:
    """One client in one round; its only state is a secret, which its last answer deletes.

    Positions of clients are those in the roster, a table of the clients' two public keys.
    """

    def __init__(self, context: ClientContext) -> None:
        self.context, self.state, self.round = context, context.state, context.round

    def advertise(self) -> Message:
        """Draw a fresh secret and send two public keys, for masks and for encrypting shares; sign them."""
        self.state[SECRET] = bytes_to_tensor(crypto.new_secret())
        self.state[ROUND] = torch.tensor([self.round])
        for former in (DEALT, SENT):
            self.state.pop(former, None)
        keys, identity = self._public_keys(), self.context.identity
        if identity is None:
            return {PUBLIC: bytes_to_tensor(keys)}
        proof = identity.sign(client=self.context.client, round=self.round, keys=keys)
        return {PUBLIC: bytes_to_tensor(keys), PROOF: join_parts(proof)}

    def deal(
        self, roster: Tensor, names: Sequence[str], proofs: Sequence[Sequence[bytes]], *, threshold: int
    ) -> Message:
        """Secret-share the mask key and the private mask's seed, each share encrypted for its receiver.

        names   the clients of the roster, in its order
        proofs  their signatures of their keys; empty where a client has no key to sign with
        """
        if DEALT in self.state:
            raise UnseenError("shares of this round were already sent; a second roster is refused")
        if len(roster) < max(threshold, FEWEST):
            raise UnseenError(f"a roster of {len(roster)} clients hides no update: {threshold} must help")
        me, digest = self._place(roster), roster_digest(roster, names)
        if len(set(names)) != len(roster) or names[me] != self.context.client:
            raise UnseenError("the roster does not name every client once, this one by its own name")
        self._require_signed(roster, names, proofs)
        self.state[DEALT] = bytes_to_tensor(digest)
        own, shared = (
            shamir.split(
                self._key(name),
                threshold=threshold,
                shares=len(roster),
                random=partial(crypto.stream, self._key(f"coefficients: {name}")),
            )
            for name in ("own mask", "mask")
        )
        boxes = [
            crypto.lock(one + other, self._box_key(roster, me, place))
            for place, (one, other) in enumerate(zip(own, shared, strict=True))
        ]
        digests = [share_digest(one) + share_digest(other) for one, other in zip(own, shared, strict=True)]
        return {
            SHARES: torch.stack([bytes_to_tensor(box) for box in boxes]),
            COMMITMENTS: torch.stack([bytes_to_tensor(both) for both in digests]),
        }

    def check(
        self, roster: Tensor, names: Sequence[str], *, shares: Tensor, commitments: Tensor, dealt: Tensor
    ) -> Message:
        """Say which clients sent this one shares that cannot be opened or are not those they announced.

        shares, commitments  what the others encrypted for this client, and the digests they announced
        dealt                which clients sent shares at all
        """
        me = self._require_same(roster, names)
        unusable = torch.zeros(len(roster), dtype=torch.bool)
        for other in dealt.nonzero().flatten().tolist():
            unusable[other] = self._open(roster, other, me, shares[other], commitments[other]) is None
        return {UNUSABLE: unusable}

    def mask(
        self, numbers: Whole, roster: Tensor, names: Sequence[str], taking_part: Tensor, *, threshold: int
    ) -> Whole:
        """Mask numbers with the client's own mask and those shared with every participant.

        Only once, and for one list of participants: the difference of two rows with the same masks would be
        readable, and so would a row for which the list names nobody else.
        """
        me = self._require_same(roster, names)
        if len(taking_part) != len(roster) or not bool(taking_part[me]):
            raise UnseenError("this client is not among those that take part in the sum")
        found, needed = int(taking_part.sum()), max(threshold, FEWEST)
        if found < needed:
            raise UnseenError(
                f"{found} of {len(roster)} clients take part, at least {needed} must, so that the sum hides "
                "each of them; nothing was sent"
            )
        if SENT in self.state:
            raise UnseenError("an update was already sent in this round; masks must be used only once")
        self._admit_once(f"mask {roster_digest(roster, names).hex()}")
        self.state[SENT] = bytes_to_tensor(roster_digest(roster, names, taking_part))
        hidden = numbers + crypto.mask(self._key("own mask"), len(numbers))
        for other in taking_part.nonzero().flatten().tolist():
            if other != me:
                seed = pair_seed(self._key("mask"), roster, me=me, other=other, round=self.round)
                hidden = add_pair(hidden, seed, plus=me < other)
        return hidden

    def reveal(
        self,
        roster: Tensor,
        names: Sequence[str],
        survivors: Tensor,
        *,
        taking_part: Tensor,
        shares: Tensor,
        commitments: Tensor,
        threshold: int,
    ) -> Message:
        """Reveal shares for unmasking: of senders, those of the own mask; of dropped clients, the mask key's.

        The row of a client whose share for this one is unusable stays zero.
        """
        me = self._require_same(roster, names)
        if SENT not in self.state:
            raise UnseenError("this client sent no update in this round, so it helps to open no sum")
        if tensor_to_bytes(self.state[SENT]) != roster_digest(roster, names, taking_part):
            raise UnseenError("the update was masked for another list of clients that take part")
        if not bool(survivors[me]) or bool((survivors & ~taking_part).any()):
            raise UnseenError("the list of clients that sent something is invalid")
        found, needed = int(survivors.sum()), max(threshold, FEWEST)
        if found < needed:
            raise UnseenError(f"{found} clients sent something, {needed} are needed")
        helped = [name for name, sent in zip(names, survivors.tolist(), strict=True) if sent]
        admit_survivors(helped, self.context)
        revealed = torch.zeros(len(roster), shamir.SHARE_BYTES, dtype=torch.uint8)
        for other in taking_part.nonzero().flatten().tolist():
            both = self._open(roster, other, me, shares[other], commitments[other])
            if both is not None:
                revealed[other] = bytes_to_tensor(both[0] if bool(survivors[other]) else both[1])
        for spent in (SECRET, ROUND, DEALT, SENT):
            self.state.pop(spent, None)
        return {REVEALED: revealed}

    def _admit_once(self, purpose: str) -> None:
        """Record that this was done, whatever version of the client's state the server names later."""
        try:
            self._admit(purpose, crypto.new_secret())
        except UnseenError as error:
            raise UnseenError(
                f"an update was already sent in this round; masks must be used only once ({error})"
            ) from None

    def _admit(self, purpose: str, digest: bytes) -> None:
        self.context.journal.admit(
            client=self.context.client, round=self.round, purpose=purpose, digest=digest
        )

    def _require_signed(
        self, roster: Tensor, names: Sequence[str], proofs: Sequence[Sequence[bytes]]
    ) -> None:
        """Check the signatures of the round's keys, where this client knows keys to check them with."""
        identity = self.context.identity
        if identity is None:
            return
        for keys, name, proof in zip(roster, names, proofs, strict=True):
            reason = identity.objection(
                client=name, round=self.round, keys=tensor_to_bytes(keys), proof=proof
            )
            if reason:
                raise UnseenError(reason)

    def _public_keys(self) -> bytes:
        return crypto.public_key(self._key("mask")) + crypto.public_key(self._key("box"))

    def _key(self, purpose: str) -> bytes:
        if SECRET not in self.state:
            raise UnseenError("this client has no secret for the round: it has helped already or never began")
        if int(self.state[ROUND]) != self.round:
            raise UnseenError("this client's secret belongs to another round; keys serve one round only")
        return crypto.derive(tensor_to_bytes(self.state[SECRET]), purpose)

    def _place(self, roster: Tensor) -> int:
        mine = self._public_keys()
        places = [place for place, both in enumerate(roster) if tensor_to_bytes(both) == mine]
        if len(places) != 1:
            raise UnseenError("this client's keys are not in the roster, or not once")
        return places[0]

    def _require_same(self, roster: Tensor, names: Sequence[str]) -> int:
        place = self._place(roster)
        if DEALT not in self.state or tensor_to_bytes(self.state[DEALT]) != roster_digest(roster, names):
            raise UnseenError("the roster differs from the one for which shares were sent")
        return place

    def _open(
        self, roster: Tensor, sender: int, me: int, box: Tensor, announced: Tensor
    ) -> tuple[bytes, bytes] | None:
        """Open the two shares that another client sent; None if they are not those it announced."""
        try:
            both = crypto.unlock(tensor_to_bytes(box), self._box_key(roster, sender, me))
        except UnseenError:
            return None
        own, shared = both[: shamir.SHARE_BYTES], both[shamir.SHARE_BYTES :]
        return (
            (own, shared) if tensor_to_bytes(announced) == share_digest(own) + share_digest(shared) else None
        )

    def _box_key(self, roster: Tensor, sender: int, receiver: int) -> bytes:
        """Derive the key of the share that one client sends to another, one of which is this one."""
        own = self._key("box")
        mine = crypto.public_key(own)
        there = receiver if tensor_to_bytes(roster[sender])[crypto.KEY_BYTES :] == mine else sender
        secret = crypto.agree(own, tensor_to_bytes(roster[there])[crypto.KEY_BYTES :])
        return crypto.derive(
            secret, f"share {sender} to {receiver}, round {self.round}", salt=_key_digest(roster)
        )


def pair_seed(private: bytes, roster: Tensor, *, me: int, other: int, round: int) -> bytes:
    """Derive the seed of the mask that two clients share in this round."""
    secret = crypto.agree(private, tensor_to_bytes(roster[other])[: crypto.KEY_BYTES])
    low, high = sorted((me, other))
    return crypto.derive(secret, f"mask {low} and {high}, round {round}", salt=_key_digest(roster))


def add_pair(numbers: Whole, seed: bytes, *, plus: bool) -> Whole:
    """Add a shared mask: the client that comes first in the roster adds it, the other subtracts it."""
    drawn = crypto.mask(seed, len(numbers))
    return numbers + drawn if plus else numbers - drawn


def share_digest(share: bytes) -> bytes:
    """Digest a share, so that everyone can check it later; shares are too random to be guessed from it."""
    return hashlib.sha256(b"unseen share: " + share).digest()


def roster_digest(roster: Tensor, names: Sequence[str], taking_part: Tensor | None = None) -> bytes:
    """Digest the clients' keys and names and, if given, of the list of those that take part."""
    part = b"" if taking_part is None else bytes(taking_part.to(torch.uint8).tolist())
    return hashlib.sha256(_key_digest(roster) + "\x1f".join(names).encode() + b"\x1e" + part).digest()


def _key_digest(roster: Tensor) -> bytes:
    return hashlib.sha256(tensor_to_bytes(roster)).digest()
