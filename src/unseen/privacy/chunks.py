"""A vector as rows that fit into ciphertexts, brought to a size at which encryption loses nothing.

CKKS keeps about seven digits behind the point whatever a number's size, so that a small update must be
scaled up first. A client tells by which power of sixteen: the order of magnitude of its update, no more.
Every row begins with a one, by which whoever decrypts a sum sees whether all clients used the same key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from unseen.errors import UnseenError
from unseen.privacy.he.ckks import SLOTS, Real

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


def rows_needed(numbers: int) -> int:
    """How many ciphertexts hold a vector."""
    return -(-numbers // FILLED)


def magnitude_of(vector: Real) -> int:
    """The power of sixteen that brings a vector to a length of [32, 512)."""
    length = float(np.linalg.norm(vector))
    if length == 0:
        return LOWEST
    return max(math.floor(math.log(length / SMALLEST_NORM, BASE)), LOWEST)


def to_rows(vector: Real, magnitude: int) -> Real:
    """Scale, cut and lead every row with a one."""
    rows = np.zeros((rows_needed(len(vector)), SLOTS))
    rows[:, 0] = 1
    filled = np.zeros(len(rows) * FILLED)
    filled[: len(vector)] = vector / BASE**magnitude
    rows[:, 1:] = filled.reshape(len(rows), FILLED)
    return rows


def from_rows(rows: Sequence[Real], *, numbers: int, magnitude: int, leading: float) -> Real:
    """The vector that decrypted rows hold, digits within the noise rounded off.

    leading  what the weighted sum must have made of the ones
    """
    if len(rows) != rows_needed(numbers) or any(len(row) != SLOTS for row in rows):
        raise UnseenError(
            f"{len(rows)} ciphertexts came where {rows_needed(numbers)} of {SLOTS} numbers were expected; "
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
