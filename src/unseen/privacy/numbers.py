"""An update as one row of numbers that may be added up over clients, and the way back from the sum.

Every client multiplies by its own weight before it sends, so that the sum over clients, divided by the sum
of weights, is the weighted mean. What stands where is told in the open; the numbers are not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.aggregation import Updates
from unseen.models import Kind, Layout
from unseen.privacy.facts import MethodFacts, Opened
from unseen.privacy.fixed_point import Real
from unseen.training import Update

HEAD = 5
"""One, the client's weight, its weighted loss, samples seen, steps: before the state."""


@dataclass(frozen=True)
class SummedUpdates(Updates):
    """Only the weighted mean of the clients' states is known: it stands as the one row.

    `samples` is the sum over the clients, `extras` their mean or sum, as the method declares.
    """

    uniform: bool = False

    def mean(self, weights: Tensor) -> Tensor:
        """The mean; it was taken with the weights that the method declared, and no others can be had."""
        expected = torch.ones_like(self.samples) if self.uniform else self.samples
        if not torch.equal(weights, expected):
            raise ValueError(
                "only the sum over clients is known, so the server half can ask for no other mean than the "
                f"one by {'equal weights' if self.uniform else 'samples'} that its method declares"
            )
        return self.rows[0].clone()


def packed(update: Update, method: MethodFacts, layout: Layout) -> tuple[Real, list[dict[str, Any]]]:
    """An update's numbers ready to be added up, and what stands behind the state among them."""
    weight = float(update.samples) if method.weighting == "samples" else 1.0
    plain = update.weights.detach().cpu().double().numpy()
    state, counters = plain * weight, layout.extent(Kind.INTEGER_BUFFER)
    state[counters] = plain[counters]
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


def unpacked(
    total: Real,
    contents: list[dict[str, Any]],
    *,
    clients: tuple[str, ...],
    method: MethodFacts,
    layout: Layout,
) -> Opened:
    """What the sum over clients tells: the weighted mean of their states, and of what went with them.

    Integer buffers (batch counters) become the rounded mean: their largest value no sum can tell.
    """
    count, weight, loss, seen, steps = total[:HEAD]
    state = total[HEAD : HEAD + layout.size] / weight
    counters = layout.extent(Kind.INTEGER_BUFFER)
    state[counters] = np.rint(state[counters] * weight / count)
    extras, place = {}, HEAD + layout.size
    for entry in contents:
        size = int(np.prod(entry["shape"], dtype=np.int64))
        numbers = total[place : place + size]
        kind, dtype = entry["kind"], getattr(torch, entry["type"])
        value = torch.from_numpy(numbers / weight if method.merges[kind] == "mean" else numbers.copy())
        value = value if dtype.is_floating_point else value.round()
        extras[kind] = value.to(dtype).reshape(entry["shape"])
        place += size
    return Opened(
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


def to_tensor(contents: list[dict[str, Any]]) -> Tensor:
    """Contents in the form in which messages travel."""
    return torch.frombuffer(bytearray(json.dumps(contents).encode()), dtype=torch.uint8)


def from_tensor(value: Tensor) -> list[dict[str, Any]]:
    """The way back."""
    contents: list[dict[str, Any]] = json.loads(bytes(value.tolist()))
    return contents
