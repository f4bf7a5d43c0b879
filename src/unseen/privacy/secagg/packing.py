"""Packing an update into one row of numbers that can be summed over clients, and unpacking the sum.

Every client multiplies by its weight before it sends, so that the sum over clients divided by the sum of
weights is the weighted mean. The layout of the row is not secret; the numbers are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from unseen.aggregation import SummedUpdates, mean_from_sum, scale_for_sum
from unseen.models import Layout
from unseen.privacy.context import MethodTraits, RoundUpdates
from unseen.privacy.secagg.fixed_point import Real
from unseen.training import Update

HEAD = 5
"""Numbers before the state: one, the client's weight, its weighted loss, samples seen, steps."""


def pack_update(update: Update, method: MethodTraits, layout: Layout) -> tuple[Real, list[dict[str, Any]]]:
    """Pack an update into numbers that can be summed; also return what follows the state in them."""
    weight = float(update.samples) if method.weighting == "samples" else 1.0
    plain = update.weights.detach().cpu().double().numpy()
    state = scale_for_sum(plain, weight, layout=layout)
    parts = [np.array([1.0, weight, weight * update.loss, update.seen, update.steps]), state]
    contents = []
    for kind, value in update.extras.items():
        merge = method.merges[kind]
        numbers = value.detach().cpu().double().flatten().numpy()
        parts.append(numbers * weight if merge == "mean" else numbers)
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

    Integer buffers (batch counters) become the rounded mean: a sum does not tell their largest value.
    """
    count, weight, loss, seen, steps = total[:HEAD]
    state = mean_from_sum(total[HEAD : HEAD + layout.size], weight=weight, clients=count, layout=layout)
    extras, place = {}, HEAD + layout.size
    for entry in contents:
        size = int(np.prod(entry["shape"], dtype=np.int64))
        numbers = total[place : place + size]
        kind, dtype = entry["kind"], getattr(torch, entry["type"])
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
