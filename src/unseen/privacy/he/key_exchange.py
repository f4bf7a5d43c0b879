"""How all clients come to hold one secret key that the server, who carries it, cannot read.

The first client that is asked makes the key and locks it for each of the others (X25519 and
ChaCha20-Poly1305). Who joins in a later round gets it from one who has it. The server keeps the public part
and a list of who holds the key.
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
    """A client's half: the keys in its own memory, which is never sent."""

    def __init__(self, memory: MutableMapping[str, Tensor]) -> None:
        self.memory = memory

    def answer(self, message: Message) -> Message:
        """Reply to a step of the delivery."""
        step = message[STEP]
        if torch.equal(step, INTRODUCE):
            return self.introduce()
        if torch.equal(step, MAKE):
            return self.make(message[ROSTER], products=bool(message[PRODUCTS]))
        if torch.equal(step, GIVE):
            return {LOCKED: self._locked_for(message[ROSTER])}
        if torch.equal(step, TAKE):
            return self.take(message[LOCKED], message[KEY_ID])
        raise UnseenError("the server asked for a step that delivering keys does not have")

    def introduce(self) -> Message:
        """Tell a fresh public key."""
        private = crypto.new_secret()
        self.memory[_PRIVATE] = bytes_to_tensor(private)
        return {PUBLIC: bytes_to_tensor(crypto.public_key(private))}

    def make(self, roster: Tensor, *, products: bool) -> Message:
        """Make the key of the run, and lock it for the others."""
        holder = KeyHolder.make(products=products)
        self._keep(holder.secret, bytes_to_tensor(crypto.new_secret()))
        return {
            LOCKED: self._locked_for(roster),
            CONTEXT: bytes_to_tensor(holder.public(products=products)),
            KEY_ID: self.memory[KEY_ID],
        }

    def take(self, box: Tensor, key_id: Tensor) -> Message:
        """Unlock the key that another client made."""
        if _PRIVATE not in self.memory:
            raise UnseenError("a key came that this client did not ask for")
        whole = tensor_to_bytes(box)
        shared = crypto.agree(tensor_to_bytes(self.memory[_PRIVATE]), whole[: crypto.KEY_BYTES])
        lock = crypto.derive(shared, _PURPOSE, salt=tensor_to_bytes(key_id))
        try:
            secret = crypto.unlock(whole[crypto.KEY_BYTES :], lock)
        except UnseenError:
            raise UnseenError(
                "the key of the encryption was locked for another client or changed on its way"
            ) from None
        self._keep(KeyHolder.open(secret).secret, key_id)
        return {KEY_ID: key_id}

    def holder(self, key_id: Tensor | None = None) -> KeyHolder:
        """Take up the key; with `key_id`, only if it is that one."""
        if _SECRET not in self.memory:
            raise UnseenError("it holds no key of the encryption")
        if key_id is not None and not torch.equal(self.memory[KEY_ID], key_id):
            raise UnseenError("it holds another key of the encryption than the round's")
        return KeyHolder.open(tensor_to_bytes(self.memory[_SECRET]))

    def _locked_for(self, roster: Tensor) -> Tensor:
        """The key, locked once for every public key: a row is a one-time public key and the box."""
        secret = self.holder().secret
        rows = []
        for public in roster:
            private = crypto.new_secret()
            shared = crypto.agree(private, tensor_to_bytes(public))
            lock = crypto.derive(shared, _PURPOSE, salt=tensor_to_bytes(self.memory[KEY_ID]))
            rows.append(bytes_to_tensor(crypto.public_key(private) + crypto.lock(secret, lock)))
        return torch.stack(rows) if rows else torch.empty(0, 0, dtype=torch.uint8)

    def _keep(self, secret: bytes, key_id: Tensor) -> None:
        self.memory[_SECRET], self.memory[KEY_ID] = bytes_to_tensor(secret), key_id
        self.memory.pop(_PRIVATE, None)


def deliver_key(side: ServerContext, *, products: bool) -> None:
    """The server's half: see to it that every client of the round holds the run's key.

    Afterwards `side.state` has the key's number and public context, and names all who hold it.
    """
    holders = _names(side.state)
    lacking = [client for client in side.clients if client not in holders]
    if not lacking:
        return
    known = [client for client in side.clients if client in holders]
    roster = _introduced(lacking, side)
    found = ask_in_turn(known, {STEP: GIVE, ROSTER: _stacked(roster)}, side.ask) if known else None
    if found is None:
        roster |= _introduced(known, side)
        holders, found, roster = _made(roster, side, products=products)
    boxes = found[1][LOCKED]
    taken = side.ask(
        {
            client: {STEP: TAKE, LOCKED: box, KEY_ID: side.state[KEY_ID]}
            for client, box in zip(roster, boxes, strict=True)
        }
    )
    _remember(side.state, [*holders, *taken])


def _made(
    roster: dict[str, Tensor], side: ServerContext, *, products: bool
) -> tuple[list[str], tuple[str, Message], dict[str, Tensor]]:
    """Have a new key made: its first holder, the answer, and the others."""
    for client in roster:
        others = {name: public for name, public in roster.items() if name != client}
        question = {STEP: MAKE, ROSTER: _stacked(others), PRODUCTS: torch.tensor(products)}
        found = ask_in_turn([client], question, side.ask)
        if found is not None:
            side.state[CONTEXT], side.state[KEY_ID] = found[1][CONTEXT], found[1][KEY_ID]
            return [client], found, others
    raise UnseenError("no client of the round could make a key for the encryption; the records say why")


def _introduced(clients: Sequence[str], side: ServerContext) -> dict[str, Tensor]:
    answers = side.ask({client: {STEP: INTRODUCE} for client in clients}) if clients else {}
    return {client: answers[client][PUBLIC] for client in clients if client in answers}


def _stacked(roster: dict[str, Tensor]) -> Tensor:
    return (
        torch.stack(list(roster.values())) if roster else torch.empty(0, crypto.KEY_BYTES, dtype=torch.uint8)
    )


def _names(state: MutableMapping[str, Tensor]) -> list[str]:
    names: list[str] = json.loads(tensor_to_bytes(state[_HOLDERS])) if _HOLDERS in state else []
    return names


def _remember(state: MutableMapping[str, Tensor], holders: Sequence[str]) -> None:
    state[_HOLDERS] = bytes_to_tensor(json.dumps(list(holders)).encode())
