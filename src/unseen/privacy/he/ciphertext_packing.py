"""A vector as rows that fit into ciphertexts, brought to a size at which encryption loses nothing.

CKKS keeps about seven digits behind the point whatever a number's size, so that a small update must be
scaled up first. A client tells by which power of sixteen: the order of magnitude of its update, no more.
Every row begins with a one, by which whoever decrypts a sum sees whether all clients used the same key.
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
"""Scaled vectors have a length from here to below `BASE` times that, whose square a ciphertext can hold."""
LOWEST = -20
"""The order of magnitude of a vector of zeros, and of all that are next to nothing."""
GRID = 2.0**-20
"""Decrypted numbers are rounded to this: finer digits are the scheme's noise, which tells of the key."""
TOLERANCE = 1e-4
"""By how much the leading one may be off."""


def count_rows(numbers: int) -> int:
    """How many ciphertexts hold a vector."""
    return -(-numbers // FILLED)


def find_magnitude(vector: Real) -> int:
    """The power of sixteen that brings a vector to a length of [32, 512)."""
    length = float(np.linalg.norm(vector))
    if length == 0:
        return LOWEST
    return max(math.floor(math.log(length / SMALLEST_NORM, BASE)), LOWEST)


def to_rows(vector: Real, magnitude: int) -> Real:
    """Scale, cut and lead every row with a one."""
    rows = np.zeros((count_rows(len(vector)), SLOTS))
    rows[:, 0] = 1
    filled = np.zeros(len(rows) * FILLED)
    filled[: len(vector)] = vector / BASE**magnitude
    rows[:, 1:] = filled.reshape(len(rows), FILLED)
    return rows


def from_rows(rows: Sequence[Real], *, numbers: int, magnitude: int, leading: float) -> Real:
    """The vector that decrypted rows hold, digits within the noise rounded off.

    leading  what the weighted sum must have made of the ones
    """
    if len(rows) != count_rows(numbers) or any(len(row) != SLOTS for row in rows):
        raise UnseenError(
            f"{len(rows)} ciphertexts came where {count_rows(numbers)} of {SLOTS} numbers were expected; "
            "is it the same model?"
        )
    whole = np.stack(rows)
    if not bool((np.abs(whole[:, 0] - leading) <= TOLERANCE * max(1.0, abs(leading))).all()):
        raise UnseenError(
            "what was decrypted is not what the clients encrypted: one of them used another key, or a "
            "ciphertext was changed on its way"
        )
    rounded: Real = np.rint(whole[:, 1:].reshape(-1)[:numbers] / GRID) * (GRID * BASE**magnitude)
    return rounded


CIPHERTEXTS, MAGNITUDES, COUNTERS = "ciphertexts", "order of magnitude of the update", "batch counters"
PARTS = 2
"""Parameters and statistics."""


@dataclass(frozen=True)
class CiphertextLayout:
    """Where in a state the parts lie, and how many ciphertexts each takes."""

    parameters: slice
    statistics: slice
    counters: slice

    @classmethod
    def of(cls, layout: Layout) -> CiphertextLayout:
        """Divide by kind."""
        return cls(*(layout.extent(kind) for kind in Kind))

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers in the two parts; the statistics end with the loss."""
        parameters, statistics = (place.stop - place.start for place in (self.parameters, self.statistics))
        return parameters, statistics + 1

    @property
    def rows(self) -> tuple[range, range]:
        """Which ciphertexts hold which part."""
        first, second = map(count_rows, self.sizes)
        return range(first), range(first, first + second)


def statistics_weight(samples: int, method: MethodTraits) -> float:
    """By what a client's statistics count in their mean."""
    return float(samples) if method.buffer_weighting == "samples" else 1.0


def encrypt_update(
    update: Update, start: Tensor, holder: KeyHolder, *, method: MethodTraits, layout: Layout
) -> dict[str, Tensor]:
    """What a client sends in place of its state.

    The loss is multiplied so that the mean of the statistics gives the mean loss by samples.
    """
    division = CiphertextLayout.of(layout)
    weights = update.weights.detach().cpu()
    change: Real = (weights.double() - start.detach().cpu().double()).numpy()
    loss = update.loss * update.samples / statistics_weight(update.samples, method)
    vectors = change[division.parameters], np.append(change[division.statistics], loss)
    magnitudes = [find_magnitude(vector) for vector in vectors]
    rows = [row for vector, size in zip(vectors, magnitudes, strict=True) for row in to_rows(vector, size)]
    sent = {
        CIPHERTEXTS: join_parts([holder.encrypt(row) for row in rows]),
        MAGNITUDES: torch.tensor(magnitudes),
    }
    counters = weights[division.counters]
    return sent | ({COUNTERS: counters.clone()} if len(counters) else {})


def check_ciphertexts(client: str, extras: Mapping[str, Tensor], division: CiphertextLayout) -> list[bytes]:
    """What a client sent, after a look at its size, which is all that can be looked at."""
    expected, counters = sum(map(len, division.rows)), division.counters
    try:
        parts = split_parts(extras[CIPHERTEXTS])
    except UnseenError as error:
        raise UnseenError(f"client {client!r}: {error}") from error
    told = len(extras.get(COUNTERS, ()))
    if len(parts) != expected or len(extras[MAGNITUDES]) != PARTS or told != counters.stop - counters.start:
        raise UnseenError(
            f"client {client!r} sent {len(parts)} ciphertexts and {told} counters, expected were {expected} "
            f"and {counters.stop - counters.start}: does it train the same model?"
        )
    return parts
