"""Key exchange: all clients get one secret key, through a server that cannot read it.

The first client that answers creates the key and encrypts it for each of the others (X25519 and
ChaCha20-Poly1305). A client that joins later gets it from one that has it. The server keeps the public part
and a list of the key holders.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping, Sequence

import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.privacy import crypto
from unseen.privacy.context import Message, ServerContext, ask_in_turn
from unseen.privacy.he.ckks import KeyHolder
from unseen.privacy.serialization import bytes_to_tensor, tensor_to_bytes

STEP = "step"
INTRODUCE, MAKE, GIVE, TAKE = (torch.tensor([number]) for number in range(4))
PUBLIC, LOCKED, CONTEXT, KEY_ID = "public keys", "locked key", "public context", "number of the key"
ROSTER, PRODUCTS = "roster", "products"
_SECRET, _PRIVATE, _HOLDERS = "secret key", "private half of the public key", "holders"
_PURPOSE = "key of the encryption"


class KeyRing:
    """Client half of the key exchange: the keys in the client's own state, which is never sent."""

    def __init__(self, state: MutableMapping[str, Tensor]) -> None:
        self.state = state

    def answer(self, message: Message) -> Message:
        """Answer a step of the key exchange."""
        step = message[STEP]
        if torch.equal(step, INTRODUCE):
            return self.introduce()
        if torch.equal(step, MAKE):
            return self.make(message[ROSTER], products=bool(message[PRODUCTS]))
        if torch.equal(step, GIVE):
            return {LOCKED: self._lock_for(message[ROSTER])}
        if torch.equal(step, TAKE):
            return self.take(message[LOCKED], message[KEY_ID])
        raise UnseenError("the server asked for an unknown step of the key exchange")

    def introduce(self) -> Message:
        """Send a new public key."""
        private = crypto.new_secret()
        self.state[_PRIVATE] = bytes_to_tensor(private)
        return {PUBLIC: bytes_to_tensor(crypto.public_key(private))}

    def make(self, roster: Tensor, *, products: bool) -> Message:
        """Create the run's key, and encrypt it for the other clients."""
        holder = KeyHolder.make(products=products)
        self._keep(holder.secret, bytes_to_tensor(crypto.new_secret()))
        return {
            LOCKED: self._lock_for(roster),
            CONTEXT: bytes_to_tensor(holder.public(products=products)),
            KEY_ID: self.state[KEY_ID],
        }

    def take(self, box: Tensor, key_id: Tensor) -> Message:
        """Decrypt the key that another client created."""
        if _PRIVATE not in self.state:
            raise UnseenError("received a key that this client did not ask for")
        whole = tensor_to_bytes(box)
        shared = crypto.agree(tensor_to_bytes(self.state[_PRIVATE]), whole[: crypto.KEY_BYTES])
        lock = crypto.derive(shared, _PURPOSE, salt=tensor_to_bytes(key_id))
        try:
            secret = crypto.unlock(whole[crypto.KEY_BYTES :], lock)
        except UnseenError:
            raise UnseenError(
                "the encryption key was encrypted for another client or changed in transit"
            ) from None
        self._keep(KeyHolder.open(secret).secret, key_id)
        return {KEY_ID: key_id}

    def holder(self, key_id: Tensor | None = None) -> KeyHolder:
        """Load the key; with `key_id`, only if it is that one."""
        if _SECRET not in self.state:
            raise UnseenError("it has no encryption key")
        if key_id is not None and not torch.equal(self.state[KEY_ID], key_id):
            raise UnseenError("it has another encryption key than the round's")
        return KeyHolder.open(tensor_to_bytes(self.state[_SECRET]))

    def approval_key(self) -> bytes:
        """Derive the key with which clients authenticate approvals to one another."""
        if _SECRET not in self.state:
            raise UnseenError("it has no encryption key")
        return crypto.derive(tensor_to_bytes(self.state[_SECRET]), "approval of a sum")

    def _lock_for(self, roster: Tensor) -> Tensor:
        """Encrypt the key for every public key: a row is a one-time public key and the ciphertext."""
        secret = self.holder().secret
        rows = []
        for public in roster:
            private = crypto.new_secret()
            shared = crypto.agree(private, tensor_to_bytes(public))
            lock = crypto.derive(shared, _PURPOSE, salt=tensor_to_bytes(self.state[KEY_ID]))
            rows.append(bytes_to_tensor(crypto.public_key(private) + crypto.lock(secret, lock)))
        return torch.stack(rows) if rows else torch.empty(0, 0, dtype=torch.uint8)

    def _keep(self, secret: bytes, key_id: Tensor) -> None:
        self.state[_SECRET], self.state[KEY_ID] = bytes_to_tensor(secret), key_id
        self.state.pop(_PRIVATE, None)


def deliver_key(context: ServerContext, *, products: bool) -> None:
    """Ensure that every client of the round has the run's key (server half).

    Afterwards `context.state` has the key's number and public context, and the names of all key holders. A
    key that was made without products (before round 1, to start the head) is replaced if they are needed.
    """
    holders = _key_holders(context.state)
    if products and not bool(context.state.get(PRODUCTS, torch.tensor(True))):
        holders = []
    lacking = [client for client in context.clients if client not in holders]
    if not lacking:
        return
    known = [client for client in context.clients if client in holders]
    roster = _collect_public_keys(lacking, context)
    found = ask_in_turn(known, {STEP: GIVE, ROSTER: _stack(roster)}, context.ask) if known else None
    if found is None:
        roster |= _collect_public_keys(known, context)
        holders, found, roster = _make_key(roster, context, products=products)
    boxes = found[1][LOCKED]
    taken = context.ask(
        {
            client: {STEP: TAKE, LOCKED: box, KEY_ID: context.state[KEY_ID]}
            for client, box in zip(roster, boxes, strict=True)
        }
    )
    _save_holders(context.state, [*holders, *taken])


def _make_key(
    roster: dict[str, Tensor], context: ServerContext, *, products: bool
) -> tuple[list[str], tuple[str, Message], dict[str, Tensor]]:
    """Request a new key; return its first holder, the answer, and the other clients."""
    for client in roster:
        others = {name: public for name, public in roster.items() if name != client}
        question = {STEP: MAKE, ROSTER: _stack(others), PRODUCTS: torch.tensor(products)}
        found = ask_in_turn([client], question, context.ask)
        if found is not None:
            context.state[CONTEXT], context.state[KEY_ID] = found[1][CONTEXT], found[1][KEY_ID]
            context.state[PRODUCTS] = torch.tensor(products)
            return [client], found, others
    raise UnseenError("no client of the round could create an encryption key; the records list the reasons")


def _collect_public_keys(clients: Sequence[str], context: ServerContext) -> dict[str, Tensor]:
    answers = context.ask({client: {STEP: INTRODUCE} for client in clients}) if clients else {}
    return {client: answers[client][PUBLIC] for client in clients if client in answers}


def _stack(roster: dict[str, Tensor]) -> Tensor:
    return (
        torch.stack(list(roster.values())) if roster else torch.empty(0, crypto.KEY_BYTES, dtype=torch.uint8)
    )


def _key_holders(state: MutableMapping[str, Tensor]) -> list[str]:
    names: list[str] = json.loads(tensor_to_bytes(state[_HOLDERS])) if _HOLDERS in state else []
    return names


def _save_holders(state: MutableMapping[str, Tensor], holders: Sequence[str]) -> None:
    state[_HOLDERS] = bytes_to_tensor(json.dumps(list(holders)).encode())
