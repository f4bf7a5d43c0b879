"""Fixed-point numbers modulo 2^64, so that masks hide them perfectly and sums are exact.

A number x becomes round(x * 2^bits). As long as the sum of all clients is within +-2^63 nothing wraps around;
every client checks its share of that range before it sends.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unseen.errors import UnseenError

Whole = npt.NDArray[np.uint64]
Real = npt.NDArray[np.float64]


class RangeError(UnseenError):
    """A number outside of the fixed-point range."""


def largest(*, bits: int, clients: int) -> float:
    """Return the largest magnitude that each client may send."""
    return float(2.0 ** (63 - bits) / max(clients, 1))


def encode(values: Real, *, bits: int, clients: int) -> Whole:
    """Encode numbers as integers modulo 2^64 with `bits` fractional binary digits."""
    room = largest(bits=bits, clients=clients)
    found = float(np.abs(values).max(initial=0.0))
    if not found < room:
        raise RangeError(
            f"a number of magnitude {found:.3g} does not fit into the fixed-point range of +-{room:.3g} that "
            f"{clients} clients have with {bits} binary digits behind the point: has training diverged? "
            "Otherwise use fewer with --protect-set bits=N"
        )
    return np.rint(values * 2.0**bits).astype(np.int64).view(np.uint64)


def decode(total: Whole, *, bits: int) -> Real:
    """Decode a sum of encoded numbers."""
    return total.view(np.int64).astype(np.float64) / 2.0**bits
