"""Coefficients from encrypted inner products: a key holder decrypts the K x K Gram matrix and decides.

The server never sees the matrix: it gets K coefficients, and how many conflicts and changes there were.
"""

from __future__ import annotations

import json
from itertools import combinations_with_replacement

import numpy as np
import torch
from torch import Tensor

from unseen.aggregation import SurgeryPlan
from unseen.errors import UnseenError
from unseen.privacy.asking import to_parts, to_tensor
from unseen.privacy.chunks import BASE, TOLERANCE
from unseen.privacy.facts import ClientSide, Message
from unseen.privacy.he.ckks import LARGEST, NOISE, NOISE_PER_ROW, KeyHolder, Real
from unseen.privacy.masking import as_bytes, as_tensor

GRAM, ROWS, NAMES, SIZES = "encrypted Gram matrix", "rows", "names", "magnitudes"
COEFFICIENTS, DECISIONS = "coefficients of the clients", "numbers of conflicts and of changes"
_DIGITS = 2.0**-24


def question(products: list[bytes], *, clients: tuple[str, ...], magnitudes: Tensor, rows: int) -> Message:
    """What the server sends to a key holder; all but the products is in the open."""
    return {
        GRAM: to_tensor(products),
        NAMES: as_tensor(json.dumps(clients).encode()),
        SIZES: magnitudes,
        ROWS: torch.tensor([rows]),
    }


def decide(message: Message, holder: KeyHolder, side: ClientSide) -> Message:
    """The key holder's answer: how much each client's update counts.

    Coefficients are rounded, because digits within the scheme's noise would tell of the key.
    """
    plan = side.method.surgery
    if plan is None:
        raise UnseenError(f"{side.method.name} needs no Gram matrix; it is not decrypted")
    names = tuple(json.loads(as_bytes(message[NAMES])))
    entries = np.array([holder.decrypt(part)[0] for part in to_parts(message[GRAM])])
    matrix = gram_matrix(entries, clients=len(names), rows=int(message[ROWS]), magnitudes=message[SIZES])
    return decisions(matrix, plan, names, side)


def decisions(matrix: Tensor, plan: SurgeryPlan, names: tuple[str, ...], side: ClientSide) -> Message:
    """Run the method's algorithm on the decrypted matrix."""
    outcome = plan.operate(matrix, names, seed=side.seed, round=side.round)
    coefficients = (plan.coefficients(outcome) / _DIGITS).round() * _DIGITS
    return {COEFFICIENTS: coefficients, DECISIONS: torch.tensor([outcome.conflicts, outcome.steps])}


def gram_matrix(entries: Real, *, clients: int, rows: int, magnitudes: Tensor) -> Tensor:
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
