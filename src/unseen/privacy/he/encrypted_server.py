"""The server's arithmetic on ciphertexts: all it ever gets are bytes that it cannot read.

It needs neither torch nor a model, and runs in a process of its own (see `server_process`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any

from unseen.errors import UnseenError
from unseen.privacy.he.ckks import open_ciphertext, open_context

NEXT_TO_NOTHING = 1e-9
"""A smaller factor would become zero in the encryption."""


class EncryptedServer:
    """Holds the public context and one round's ciphertexts, a list for every client.

    What one list holds at a place belongs to the same numbers as what the others hold there.
    """

    def __init__(self) -> None:
        self.context: Any = None
        self.received: dict[str, Sequence[bytes]] = {}

    def open(self, public: bytes) -> None:
        """Take the public context; refuse one that could decrypt."""
        context = open_context(public)
        if context.is_private():
            raise UnseenError("the server was handed the secret key of the encryption; it must not have it")
        self.context, self.received = context, {}

    def take(self, client: str, ciphertexts: Sequence[bytes]) -> None:
        """Keep what a client sent."""
        self.received[client] = ciphertexts

    def forget(self) -> None:
        """Drop the round's ciphertexts."""
        self.received = {}

    def gram(self, rows: int) -> list[bytes]:
        """The encrypted inner products of all pairs of clients over their first rows.

        Pairs come in the order (0, 0), (0, 1) ... (1, 1), (1, 2) ... The slots of every product are summed
        up here, so that whoever decrypts learns the inner product and nothing of what it is made of.
        """
        pairs = list(combinations_with_replacement(range(len(self.received)), 2))
        sums: list[Any] = [None] * len(pairs)
        for row in range(rows):
            vectors = self._vectors(row)
            for place, (one, other) in enumerate(pairs):
                product = vectors[one] * vectors[other]
                sums[place] = product if sums[place] is None else sums[place] + product
        return [bytes(total.sum().serialize()) for total in sums]

    def weighted_sum(self, rows: range, factors: Mapping[str, float]) -> list[bytes]:
        """The encrypted sum of the clients' rows, each times its client's factor; see `counted`."""
        used = counted(factors)
        summed = []
        for row in rows:
            total: Any = None
            for client, vector in zip(self.received, self._vectors(row), strict=True):
                if client in used:
                    part = vector * used[client]
                    total = part if total is None else total + part
            summed.append(bytes(total.serialize()))
        return summed

    def _vectors(self, row: int) -> list[Any]:
        return [open_ciphertext(self.context, sent[row]) for sent in self.received.values()]


def counted(factors: Mapping[str, float]) -> dict[str, float]:
    """The factors that are not next to nothing; if all are, the first client's, as small as may be."""
    used = {client: factor for client, factor in factors.items() if abs(factor) > NEXT_TO_NOTHING}
    return used or {next(iter(factors)): NEXT_TO_NOTHING}
