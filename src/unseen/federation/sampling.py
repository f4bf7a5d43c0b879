"""Client sampling: a new draw per round, the same on every engine."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from unseen.errors import UsageError
from unseen.federation.federation import Federation
from unseen.seeding import numpy_generator


def clients_per_round(clients: int, fraction: float) -> int:
    """How many clients take part in a round: ceil(fraction * clients), at least one."""
    if not 0 < fraction <= 1:
        raise UsageError(f"fraction of clients {fraction} is impossible; use a number above 0 up to 1")
    return max(1, math.ceil(fraction * clients - 1e-9))


def sample_clients(
    federation: Federation, *, fraction: float, round: int, seed: int
) -> npt.NDArray[np.int64]:
    """Draw the round's clients, as sorted positions."""
    count = clients_per_round(len(federation), fraction)
    drawn = numpy_generator(seed, "participation", round).choice(len(federation), size=count, replace=False)
    return np.sort(drawn).astype(np.int64)
