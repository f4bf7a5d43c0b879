"""One encrypted round: from ciphertexts to a decrypted combination of the updates.

The server forms encrypted inner products and weighted sums; key holders decrypt. For gradient surgery a key
holder decrypts the K x K Gram matrix and decides. The server never sees the matrix: it gets K coefficients,
and the numbers of conflicts and of changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unseen.aggregation import (
    CombinedUpdates,
    GradientSurgery,
    SummedUpdates,
    client_weights,
    largest_counters,
    normalize_weights,
)
from unseen.errors import UnseenError
from unseen.privacy.context import (
    ClientContext,
    Message,
    ReceivedUpdate,
    RoundUpdates,
    ServerContext,
    ask_in_turn,
)
from unseen.privacy.he.ciphertext_packing import (
    BASE,
    COUNTERS,
    MAGNITUDES,
    TOLERANCE,
    CiphertextLayout,
    check_ciphertexts,
    from_rows,
    statistics_weight,
)
from unseen.privacy.he.ckks import LARGEST, NOISE, NOISE_PER_ROW, KeyHolder, Real
from unseen.privacy.he.encrypted_sums import (
    ADDED,
    added_request,
    check_addends,
    count_addends,
    decrypt_added,
    find_contents,
    unpack_added,
)
from unseen.privacy.he.key_exchange import STEP
from unseen.privacy.he.server_process import EncryptedServer, ServerProcess, drop_negligible
from unseen.privacy.serialization import bytes_to_tensor, join_parts, split_parts, tensor_to_bytes

SUM, SIZES, LEADING = "encrypted sum", "magnitudes", "sums of factors"
MEAN = "mean of the updates and of the training loss"


class Factors(NamedTuple):
    """Factors of the clients' scaled rows, and the order of magnitude of the sum."""

    of_clients: dict[str, float]
    magnitude: int

    @property
    def leading(self) -> float:
        """Expected value of the leading ones in the sum."""
        return sum(drop_negligible(self.of_clients).values())


def rescale_factors(shares: Mapping[str, float], magnitudes: Mapping[str, int]) -> Factors:
    """Rescale clients of different orders of magnitude to the largest one."""
    largest = max(magnitudes.values())
    return Factors(
        {client: share * BASE ** (magnitudes[client] - largest) for client, share in shares.items()}, largest
    )


def sum_request(ciphertexts: list[bytes], *parts: Factors) -> Message:
    """Build the request to decrypt a sum, for a key holder."""
    return {
        SUM: join_parts(ciphertexts),
        SIZES: torch.tensor([part.magnitude for part in parts]),
        LEADING: torch.tensor([part.leading for part in parts], dtype=torch.float64),
    }


def decrypt_sum(message: Message, holder: KeyHolder, packing: CiphertextLayout) -> Message:
    """Decrypt the mean change of the parameters and of the statistics, the loss, and sums of extras."""
    rows = [holder.decrypt(part) for part in split_parts(message[SUM])]
    vectors = [
        from_rows(rows[place.start : place.stop], numbers=numbers, magnitude=magnitude, leading=leading)
        for place, numbers, magnitude, leading in zip(
            packing.rows, packing.sizes, message[SIZES].tolist(), message[LEADING].tolist(), strict=True
        )
    ]
    return {MEAN: torch.from_numpy(np.concatenate(vectors)).float(), **decrypt_added(message, holder)}


GRAM, ROWS, NAMES = "encrypted Gram matrix", "rows", "names"
COEFFICIENTS, DECISIONS = "coefficients of the clients", "numbers of conflicts and of changes"
_DIGITS = 2.0**-24


def gram_request(
    products: list[bytes], *, clients: tuple[str, ...], magnitudes: Tensor, rows: int
) -> Message:
    """Build the request to decide on a Gram matrix, for a key holder; only the products are encrypted."""
    return {
        GRAM: join_parts(products),
        NAMES: bytes_to_tensor(json.dumps(clients).encode()),
        SIZES: magnitudes,
        ROWS: torch.tensor([rows]),
    }


def decide_coefficients(message: Message, holder: KeyHolder, context: ClientContext) -> Message:
    """Decrypt the Gram matrix at a key holder, and return the coefficient of each client's update.

    Coefficients are rounded, because digits within the scheme's noise would leak information on the key.
    """
    surgery = context.method.surgery
    if surgery is None:
        raise UnseenError(f"{context.method.name} needs no Gram matrix; it is not decrypted")
    names = tuple(json.loads(tensor_to_bytes(message[NAMES])))
    entries = np.array([holder.decrypt(part)[0] for part in split_parts(message[GRAM])])
    matrix = decode_gram(entries, clients=len(names), rows=int(message[ROWS]), magnitudes=message[SIZES])
    return surgery_decisions(matrix, surgery, names, context)


def surgery_decisions(
    matrix: Tensor, surgery: GradientSurgery, names: tuple[str, ...], context: ClientContext
) -> Message:
    """Run the method's algorithm on the decrypted matrix."""
    result = surgery.run(matrix, names, seed=context.seed, round=context.round)
    coefficients = (surgery.coefficients(result) / _DIGITS).round() * _DIGITS
    return {COEFFICIENTS: coefficients, DECISIONS: torch.tensor([result.conflicts, result.steps])}


def decode_gram(entries: Real, *, clients: int, rows: int, magnitudes: Tensor) -> Tensor:
    """Compute the Gram matrix of the changes from decrypted products of scaled rows.

    Each row's leading one has added a one. Values within the noise are set to zero, so that no decision
    depends on them.
    """
    pairs = list(combinations_with_replacement(range(clients), 2))
    if len(entries) != len(pairs) or len(magnitudes) != clients:
        raise UnseenError(f"received {len(entries)} inner products for {clients} clients, not {len(pairs)}")
    scaled, noise = np.zeros((clients, clients)), NOISE + NOISE_PER_ROW * rows
    for (one, other), entry in zip(pairs, entries - rows, strict=True):
        scaled[one, other] = scaled[other, one] = entry if abs(entry) > noise else 0.0
    squares = np.maximum(scaled.diagonal(), 0)
    bound = np.sqrt(np.outer(squares, squares)) * (1 + TOLERANCE) + TOLERANCE
    if not bool((np.abs(scaled) <= bound).all()) or float(np.abs(entries).max()) > LARGEST:
        raise UnseenError(
            "the decrypted numbers are not inner products: a client used another key, or a ciphertext was "
            "changed in transit"
        )
    sizes = BASE ** magnitudes.numpy().astype(np.float64)
    return torch.from_numpy(scaled * np.outer(sizes, sizes))


DECIDE, OPEN = (torch.tensor([number]) for number in (4, 5))
"""Steps after those of the key exchange: decide on a Gram matrix, decrypt a sum."""


class EncryptedRound:
    """Server half of a round: passes bytes between the clients and the process that computes on them.

    approval  shows a key holder that the clients agree to decrypt the sum over `received`
    """

    def __init__(
        self,
        process: ServerProcess,
        context: ServerContext,
        received: Sequence[ReceivedUpdate],
        approval: Message,
    ) -> None:
        self.process, self.context, self.received, self.approval = process, context, received, approval
        self.packing = CiphertextLayout.of(context.layout)
        self.clients = tuple(client for client, _ in received)
        self.samples = torch.tensor([update.samples for _, update in received], dtype=torch.float64)

    def aggregate(self) -> RoundUpdates:
        """Combine the updates as the method does, and have only the result decrypted."""
        contents = find_contents(self.received)
        for client, update in self.received:
            parts = check_ciphertexts(client, update.extras, self.packing)
            addends = check_addends(client, update.extras, contents)
            self.process.run(EncryptedServer.take, client, parts + addends)
        sizes = torch.stack([update.extras[MAGNITUDES] for _, update in self.received])
        surgery, summary = self.context.method.surgery, dict[str, Any]()
        equal = normalize_weights(client_weights(self.samples, self.context.method.buffer_weighting))
        shares = equal if surgery is None else self._request_coefficients(surgery, sizes[:, 0], summary)
        both = [
            rescale_factors(self._by_client(share), self._by_client(size))
            for share, size in ((shares, sizes[:, 0]), (equal, sizes[:, 1]))
        ]
        ciphertexts = [
            ciphertext
            for rows, part in zip(self.packing.rows, both, strict=True)
            for ciphertext in self.process.run(EncryptedServer.weighted_sum, rows, part.of_clients)
        ]
        state_rows = self.packing.rows[-1].stop
        addend_rows = range(state_rows, state_rows + count_addends(contents))
        added = self.process.run(EncryptedServer.plain_sum, addend_rows)
        self.process.run(EncryptedServer.forget)
        question = sum_request(ciphertexts, *both) | added_request(added, contents, clients=len(self.clients))
        answer = self._ask({STEP: OPEN, **question}, "sum")
        return self._round_updates(answer[MEAN], self._extras(answer, contents), summary)

    def _extras(self, answer: Message, contents: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Return the extras merged over the clients."""
        if not contents:
            return {}
        method = self.context.method
        weight = float(client_weights(self.samples, method.weighting).sum())
        return unpack_added(answer[ADDED], contents, method=method, weight=weight)

    def _request_coefficients(
        self, surgery: GradientSurgery, sizes: Tensor, summary: dict[str, Any]
    ) -> Tensor:
        """Let a key holder compute coefficients of encrypted inner products; add its counts to `summary`."""
        rows = len(self.packing.rows[0])
        products = self.process.run(EncryptedServer.gram, rows)
        question = gram_request(products, clients=self.clients, magnitudes=sizes, rows=rows)
        answer = self._ask({STEP: DECIDE, **question}, "Gram matrix")
        conflicts, steps = answer[DECISIONS].tolist()
        summary |= {"conflicting_pairs": conflicts, surgery.steps: steps}
        return answer[COEFFICIENTS]

    def _ask(self, message: Message, what: str) -> Message:
        found = ask_in_turn(self.clients, message | self.approval, self.context.ask)
        if found is None:
            raise UnseenError(
                f"round {self.context.round}: no client could decrypt the {what}; the faults in the records "
                "list the reasons"
            )
        return found[1]

    def _by_client(self, values: Tensor) -> dict[str, Any]:
        return dict(zip(self.clients, values.tolist(), strict=True))

    def _round_updates(
        self, mean: Tensor, extras: Mapping[str, Tensor], summary: dict[str, Any]
    ) -> RoundUpdates:
        """Convert the decrypted mean to the input of the method's server half: one row."""
        context, packing, updates = self.context, self.packing, [update for _, update in self.received]
        parameters, _ = packing.sizes
        state = context.weights.detach().cpu().clone()
        state[packing.parameters] += mean[:parameters]
        state[packing.statistics] += mean[parameters:-1]
        if packing.counters.stop > packing.counters.start:
            sent = torch.stack([update.extras[COUNTERS] for update in updates])
            state[packing.counters] = largest_counters(sent)
        common: dict[str, Any] = {
            "clients": self.clients,
            "rows": state[None],
            "samples": self.samples.sum()[None],
            "steps": torch.tensor([sum(update.steps for update in updates)], dtype=torch.float64),
            "extras": (extras,),
            "layout": context.layout,
        }
        weight = sum(statistics_weight(update.samples, context.method) for update in updates)
        return RoundUpdates(
            updates=SummedUpdates(**common, uniform=context.method.weighting == "uniform")
            if context.method.surgery is None
            else CombinedUpdates(**common, summary=summary),
            loss=float(mean[-1]) * weight / float(self.samples.sum()),
            seen=sum(update.seen for update in updates),
        )
