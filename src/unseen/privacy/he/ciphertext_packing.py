"""Packing a client's update into ciphertexts: scaled rows of its parameters and of its statistics.

CKKS keeps about seven decimal places whatever a number's size, so a small update must be scaled up first. A
client discloses the power of sixteen: the order of magnitude of its update. Every row begins with a one,
which shows after decryption of a sum whether all clients used the same key.

Parameters and statistics are weighted differently (gradient surgery combines only parameters) and differ in
size. The training loss is sent with the statistics. Batch counters are not encrypted: encryption cannot find
their largest value, and they disclose no more than the number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.models import Kind, Layout
from unseen.privacy.context import MethodTraits
from unseen.privacy.he.ckks import SLOTS, KeyHolder, Real
from unseen.privacy.serialization import join_parts, split_parts
from unseen.training import Update

FILLED = SLOTS - 1
BASE = 16.0
SMALLEST_NORM = 32.0
"""Scaled vectors have a norm from here to below `BASE` times that, whose square fits into a ciphertext."""
LOWEST = -20
"""Order of magnitude of a vector of zeros, and the smallest of any vector."""
GRID = 2.0**-20
"""Decrypted numbers are rounded to this: finer digits are the scheme's noise, which depends on the key."""
TOLERANCE = 1e-4
"""Tolerance of the leading one."""
ENCODING = 1e-13
"""Bound on the error of encoding in double precision, relative to the largest number in a row."""


def count_rows(numbers: int) -> int:
    """Count the ciphertexts that a vector needs."""
    return -(-numbers // FILLED)


def find_magnitude(vector: Real) -> int:
    """Find the power of sixteen that scales a vector to a norm in [32, 512)."""
    length = float(np.linalg.norm(vector))
    if length == 0:
        return LOWEST
    return max(math.floor(math.log(length / SMALLEST_NORM, BASE)), LOWEST)


def to_rows(vector: Real, magnitude: int) -> Real:
    """Scale a vector and split it into rows, each with a leading one."""
    rows = np.zeros((count_rows(len(vector)), SLOTS))
    rows[:, 0] = 1
    filled = np.zeros(len(rows) * FILLED)
    filled[: len(vector)] = vector / BASE**magnitude
    rows[:, 1:] = filled.reshape(len(rows), FILLED)
    return rows


def from_rows(rows: Sequence[Real], *, numbers: int, magnitude: int, leading: float) -> Real:
    """Join decrypted rows into the vector, with digits within the noise rounded off.

    leading  expected value of the leading ones in the weighted sum
    """
    if len(rows) != count_rows(numbers) or any(len(row) != SLOTS for row in rows):
        raise UnseenError(
            f"received {len(rows)} ciphertexts where {count_rows(numbers)} of {SLOTS} numbers were expected; "
            "is it the same model?"
        )
    whole = np.stack(rows)
    tolerance = TOLERANCE * max(1.0, abs(leading)) + ENCODING * np.abs(whole).max(axis=1)
    if not bool((np.abs(whole[:, 0] - leading) <= tolerance).all()):
        raise UnseenError(
            "what was decrypted is not what the clients encrypted: one of them used another key, or a "
            "ciphertext was changed in transit"
        )
    rounded: Real = np.rint(whole[:, 1:].reshape(-1)[:numbers] / GRID) * (GRID * BASE**magnitude)
    return rounded


CIPHERTEXTS, MAGNITUDES, COUNTERS = "ciphertexts", "order of magnitude of the update", "batch counters"
PARTS = 2
"""Parameters and statistics."""


@dataclass(frozen=True)
class CiphertextLayout:
    """Parts of a state, and the ciphertexts of each."""

    parameters: slice
    statistics: slice
    counters: slice

    @classmethod
    def of(cls, layout: Layout) -> CiphertextLayout:
        """Split a state by kind of tensor."""
        return cls(*(layout.extent(kind) for kind in Kind))

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of values in the two parts; the statistics end with the loss."""
        parameters, statistics = (place.stop - place.start for place in (self.parameters, self.statistics))
        return parameters, statistics + 1

    @property
    def rows(self) -> tuple[range, range]:
        """Ciphertexts of the two parts."""
        first, second = map(count_rows, self.sizes)
        return range(first), range(first, first + second)


def statistics_weight(samples: int, method: MethodTraits) -> float:
    """Return a client's weight in the mean of the statistics."""
    return float(samples) if method.buffer_weighting == "samples" else 1.0


def encrypt_update(
    update: Update, start: Tensor, holder: KeyHolder, *, method: MethodTraits, layout: Layout
) -> dict[str, Tensor]:
    """Encrypt a client's update, which it sends instead of its state.

    The loss is multiplied so that the mean of the statistics gives the mean loss by samples.
    """
    packing = CiphertextLayout.of(layout)
    weights = update.weights.detach().cpu()
    change: Real = (weights.double() - start.detach().cpu().double()).numpy()
    loss = update.loss * update.samples / statistics_weight(update.samples, method)
    vectors = change[packing.parameters], np.append(change[packing.statistics], loss)
    magnitudes = [find_magnitude(vector) for vector in vectors]
    rows = [row for vector, size in zip(vectors, magnitudes, strict=True) for row in to_rows(vector, size)]
    sent = {
        CIPHERTEXTS: join_parts([holder.encrypt(row) for row in rows]),
        MAGNITUDES: torch.tensor(magnitudes),
    }
    counters = weights[packing.counters]
    return sent | ({COUNTERS: counters.clone()} if len(counters) else {})


def check_ciphertexts(client: str, extras: Mapping[str, Tensor], packing: CiphertextLayout) -> list[bytes]:
    """Check the sizes of what a client sent, and return its ciphertexts."""
    expected, counters = sum(map(len, packing.rows)), packing.counters
    try:
        parts = split_parts(extras[CIPHERTEXTS])
    except UnseenError as error:
        raise UnseenError(f"client {client!r}: {error}") from error
    counted = len(extras.get(COUNTERS, ()))
    if (
        len(parts) != expected
        or len(extras[MAGNITUDES]) != PARTS
        or counted != counters.stop - counters.start
    ):
        raise UnseenError(
            f"client {client!r} sent {len(parts)} ciphertexts and {counted} counters, expected were "
            f"{expected} and {counters.stop - counters.start}: does it train the same model?"
        )
    return parts
