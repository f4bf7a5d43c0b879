"""The encrypted weighted sum: factors for the server, and the way back at a key holder."""

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
from unseen.privacy.he.key_exchange import STEP
from unseen.privacy.he.server_process import EncryptedServer, ServerProcess, drop_negligible
from unseen.privacy.serialization import bytes_to_tensor, join_parts, split_parts, tensor_to_bytes

SUM, SIZES, LEADING = "encrypted sum", "magnitudes", "sums of factors"
MEAN = "mean of the updates and of the training loss"


class Factors(NamedTuple):
    """What the server multiplies each client's scaled rows by, and the sum's own order of magnitude."""

    of_clients: dict[str, float]
    magnitude: int

    @property
    def leading(self) -> float:
        """What becomes of the ones at the rows' beginnings."""
        return sum(drop_negligible(self.of_clients).values())


def rescale_factors(shares: Mapping[str, float], magnitudes: Mapping[str, int]) -> Factors:
    """Bring clients of different orders of magnitude to the largest one."""
    largest = max(magnitudes.values())
    return Factors(
        {client: share * BASE ** (magnitudes[client] - largest) for client, share in shares.items()}, largest
    )


def sum_request(ciphertexts: list[bytes], *parts: Factors) -> Message:
    """What the server sends to a key holder."""
    return {
        SUM: join_parts(ciphertexts),
        SIZES: torch.tensor([part.magnitude for part in parts]),
        LEADING: torch.tensor([part.leading for part in parts], dtype=torch.float64),
    }


def decrypt_sum(message: Message, holder: KeyHolder, division: CiphertextLayout) -> Message:
    """The key holder's answer: the mean change of the parameters, of the statistics, and the loss."""
    rows = [holder.decrypt(part) for part in split_parts(message[SUM])]
    vectors = [
        from_rows(rows[place.start : place.stop], numbers=numbers, magnitude=magnitude, leading=leading)
        for place, numbers, magnitude, leading in zip(
            division.rows, division.sizes, message[SIZES].tolist(), message[LEADING].tolist(), strict=True
        )
    ]
    return {MEAN: torch.from_numpy(np.concatenate(vectors)).float()}


GRAM, ROWS, NAMES = "encrypted Gram matrix", "rows", "names"
COEFFICIENTS, DECISIONS = "coefficients of the clients", "numbers of conflicts and of changes"
_DIGITS = 2.0**-24


def gram_request(
    products: list[bytes], *, clients: tuple[str, ...], magnitudes: Tensor, rows: int
) -> Message:
    """What the server sends to a key holder; all but the products is in the open."""
    return {
        GRAM: join_parts(products),
        NAMES: bytes_to_tensor(json.dumps(clients).encode()),
        SIZES: magnitudes,
        ROWS: torch.tensor([rows]),
    }


def decide_coefficients(message: Message, holder: KeyHolder, side: ClientContext) -> Message:
    """The key holder's answer: how much each client's update counts.

    Coefficients are rounded, because digits within the scheme's noise would tell of the key.
    """
    plan = side.method.surgery
    if plan is None:
        raise UnseenError(f"{side.method.name} needs no Gram matrix; it is not decrypted")
    names = tuple(json.loads(tensor_to_bytes(message[NAMES])))
    entries = np.array([holder.decrypt(part)[0] for part in split_parts(message[GRAM])])
    matrix = decode_gram(entries, clients=len(names), rows=int(message[ROWS]), magnitudes=message[SIZES])
    return surgery_decisions(matrix, plan, names, side)


def surgery_decisions(
    matrix: Tensor, plan: GradientSurgery, names: tuple[str, ...], side: ClientContext
) -> Message:
    """Run the method's algorithm on the decrypted matrix."""
    outcome = plan.run(matrix, names, seed=side.seed, round=side.round)
    coefficients = (plan.coefficients(outcome) / _DIGITS).round() * _DIGITS
    return {COEFFICIENTS: coefficients, DECISIONS: torch.tensor([outcome.conflicts, outcome.steps])}


def decode_gram(entries: Real, *, clients: int, rows: int, magnitudes: Tensor) -> Tensor:
    """The Gram matrix of the changes, from decrypted products of scaled rows.

    Each of the rows that lead with a one has added a one. What is within the noise is taken for zero: no
    decision hangs on it.
    """
    pairs = list(combinations_with_replacement(range(clients), 2))
    if len(entries) != len(pairs) or len(magnitudes) != clients:
        raise UnseenError(f"{len(entries)} inner products came for {clients} clients: {len(pairs)} expected")
    scaled, noise = np.zeros((clients, clients)), NOISE + NOISE_PER_ROW * rows
    for (one, other), entry in zip(pairs, entries - rows, strict=True):
        scaled[one, other] = scaled[other, one] = entry if abs(entry) > noise else 0.0
    squares = np.maximum(scaled.diagonal(), 0)
    bound = np.sqrt(np.outer(squares, squares)) * (1 + TOLERANCE) + TOLERANCE
    if not bool((np.abs(scaled) <= bound).all()) or float(np.abs(entries).max()) > LARGEST:
        raise UnseenError(
            "the decrypted numbers are no inner products: a client used another key, or a ciphertext was "
            "changed on its way"
        )
    sizes = BASE ** magnitudes.numpy().astype(np.float64)
    return torch.from_numpy(scaled * np.outer(sizes, sizes))


DECIDE, OPEN = (torch.tensor([number]) for number in (4, 5))
"""Steps after those of delivering the key: decide on a Gram matrix, open a sum."""


class EncryptedRound:
    """Passes bytes between the clients and the process that computes on them."""

    def __init__(
        self, process: ServerProcess, side: ServerContext, received: Sequence[ReceivedUpdate]
    ) -> None:
        self.process, self.side, self.received = process, side, received
        self.division = CiphertextLayout.of(side.layout)
        self.clients = tuple(client for client, _ in received)
        self.samples = torch.tensor([update.samples for _, update in received], dtype=torch.float64)

    def merged(self) -> RoundUpdates:
        """Combine the updates as the method does, and have only the outcome decrypted."""
        for client, update in self.received:
            parts = check_ciphertexts(client, update.extras, self.division)
            self.process.run(EncryptedServer.take, client, parts)
        sizes = torch.stack([update.extras[MAGNITUDES] for _, update in self.received])
        plan, told = self.side.method.surgery, dict[str, Any]()
        equal = normalize_weights(client_weights(self.samples, self.side.method.buffer_weighting))
        shares = equal if plan is None else self._decided(plan, sizes[:, 0], told)
        both = [
            rescale_factors(self._by_client(share), self._by_client(size))
            for share, size in ((shares, sizes[:, 0]), (equal, sizes[:, 1]))
        ]
        ciphertexts = [
            ciphertext
            for rows, part in zip(self.division.rows, both, strict=True)
            for ciphertext in self.process.run(EncryptedServer.weighted_sum, rows, part.of_clients)
        ]
        self.process.run(EncryptedServer.forget)
        answer = self._asked({STEP: OPEN, **sum_request(ciphertexts, *both)}, "sum")
        return self._opened(answer[MEAN], told)

    def _decided(self, plan: GradientSurgery, sizes: Tensor, told: dict[str, Any]) -> Tensor:
        """Have a key holder turn encrypted inner products into coefficients; `told` gets its counts."""
        rows = len(self.division.rows[0])
        products = self.process.run(EncryptedServer.gram, rows)
        question = gram_request(products, clients=self.clients, magnitudes=sizes, rows=rows)
        answer = self._asked({STEP: DECIDE, **question}, "Gram matrix")
        conflicts, steps = answer[DECISIONS].tolist()
        told |= {"conflicting_pairs": conflicts, plan.steps: steps}
        return answer[COEFFICIENTS]

    def _asked(self, message: Message, what: str) -> Message:
        found = ask_in_turn(self.clients, message, self.side.ask)
        if found is None:
            raise UnseenError(
                f"round {self.side.round}: no client could decrypt the {what}; the faults in the records say "
                "why"
            )
        return found[1]

    def _by_client(self, values: Tensor) -> dict[str, Any]:
        return dict(zip(self.clients, values.tolist(), strict=True))

    def _opened(self, mean: Tensor, told: dict[str, Any]) -> RoundUpdates:
        """The decrypted mean as what the method's server half gets: one row."""
        side, division, updates = self.side, self.division, [update for _, update in self.received]
        parameters, _ = division.sizes
        state = side.weights.detach().cpu().clone()
        state[division.parameters] += mean[:parameters]
        state[division.statistics] += mean[parameters:-1]
        if division.counters.stop > division.counters.start:
            sent = torch.stack([update.extras[COUNTERS] for update in updates])
            state[division.counters] = largest_counters(sent)
        common: dict[str, Any] = {
            "clients": self.clients,
            "rows": state[None],
            "samples": self.samples.sum()[None],
            "steps": torch.tensor([sum(update.steps for update in updates)], dtype=torch.float64),
            "extras": ({},),
            "layout": side.layout,
        }
        weight = sum(statistics_weight(update.samples, side.method) for update in updates)
        return RoundUpdates(
            updates=SummedUpdates(**common, uniform=side.method.weighting == "uniform")
            if side.method.surgery is None
            else CombinedUpdates(**common, summary=told),
            loss=float(mean[-1]) * weight / float(self.samples.sum()),
            seen=sum(update.seen for update in updates),
        )
