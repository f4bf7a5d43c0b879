"""Pack an update into one row of fixed-point numbers that can be summed over clients; unpack the sum.

A number x becomes round(x * 2^bits) modulo 2^64, so that masks hide it perfectly and sums are exact. As long
as the sum of all clients is within +-2^63 nothing wraps around; every client checks its part of that range
before it sends. Every client multiplies by its weight first, so that the sum over clients divided by the sum
of weights is the weighted mean. A float64 tensor of the extras takes a second number per value, with the
binary digits that the first leaves out, so that its sum is as exact as in float64. The layout of the row is
not secret; the numbers are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unseen.aggregation import SummedUpdates, mean_from_sum, scale_for_sum
from unseen.errors import UnseenError
from unseen.models import Layout
from unseen.privacy.context import MethodTraits, RoundUpdates
from unseen.training import Update

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


HEAD = 5
"""Numbers before the state: one, the client's weight, its weighted loss, samples seen, steps."""


FINER = 28
"""Further binary digits of float64 values; what is left of them is below 2^-53."""


def split_digits(values: Real, *, bits: int) -> list[Real]:
    """Split numbers into what `bits` digits hold and the rest, multiplied by 2^FINER."""
    coarse = np.rint(values * 2.0**bits) / 2.0**bits
    return [coarse, (values - coarse) * 2.0**FINER]


def pack_update(
    update: Update, method: MethodTraits, layout: Layout, *, bits: int
) -> tuple[Real, list[dict[str, Any]]]:
    """Pack an update into numbers that can be summed; also return what follows the state in them."""
    weight = float(update.samples) if method.weighting == "samples" else 1.0
    plain = update.weights.detach().cpu().double().numpy()
    state = scale_for_sum(plain, weight, layout=layout)
    parts = [np.array([1.0, weight, weight * update.loss, update.seen, update.steps]), state]
    contents = []
    for kind, value in update.extras.items():
        merge = method.merges[kind]
        numbers = value.detach().cpu().double().flatten().numpy()
        numbers = numbers * weight if merge == "mean" else numbers
        parts += split_digits(numbers, bits=bits) if value.dtype is torch.float64 else [numbers]
        contents.append(
            {"kind": kind, "shape": list(value.shape), "type": str(value.dtype).removeprefix("torch.")}
        )
    return np.concatenate(parts), contents


def unpack_sum(
    total: Real,
    contents: list[dict[str, Any]],
    *,
    clients: tuple[str, ...],
    method: MethodTraits,
    layout: Layout,
) -> RoundUpdates:
    """Unpack the sum over clients into the weighted mean of their states and the reduced extras.

    Integer buffers (batch counters) become the rounded mean: a sum does not contain their largest value.
    """
    count, weight, loss, seen, steps = total[:HEAD]
    state = mean_from_sum(total[HEAD : HEAD + layout.size], weight=weight, clients=count, layout=layout)
    extras, place = {}, HEAD + layout.size
    for entry in contents:
        kind, dtype = entry["kind"], getattr(torch, entry["type"])
        size = packed_size(entry)
        numbers = total[place : place + size]
        if dtype is torch.float64:
            coarse, finer = numbers.reshape(2, -1)
            numbers = coarse + finer / 2.0**FINER
        value = torch.from_numpy(numbers / weight if method.merges[kind] == "mean" else numbers.copy())
        value = value if dtype.is_floating_point else value.round()
        extras[kind] = value.to(dtype).reshape(entry["shape"])
        place += size
    return RoundUpdates(
        updates=SummedUpdates(
            clients=clients,
            rows=torch.from_numpy(state).float()[None],
            samples=torch.tensor([weight], dtype=torch.float64),
            steps=torch.tensor([steps], dtype=torch.float64),
            extras=(extras,),
            layout=layout,
            uniform=method.weighting == "uniform",
        ),
        loss=float(loss / weight),
        seen=round(float(seen)),
    )


def packed_size(entry: dict[str, Any]) -> int:
    """Count the numbers that an entry of the contents takes in a row."""
    size = int(np.prod(entry["shape"], dtype=np.int64))
    return 2 * size if entry["type"] == "float64" else size
