"""A client's update as ciphertexts: the change of its parameters, and apart from it that of its statistics.

The two are weighted differently (gradient surgery combines parameters alone) and differ in size. The training
loss travels with the statistics. Batch counters travel in the open: their largest value is wanted, which
encryption cannot find, and they tell no more than the number of steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.models import Kind, Layout
from unseen.privacy.asking import to_parts, to_tensor
from unseen.privacy.chunks import magnitude_of, rows_needed, to_rows
from unseen.privacy.facts import MethodFacts
from unseen.privacy.he.ckks import KeyHolder, Real
from unseen.training import Update

CIPHERTEXTS, MAGNITUDES, COUNTERS = "ciphertexts", "order of magnitude of the update", "batch counters"
PARTS = 2
"""Parameters and statistics."""


@dataclass(frozen=True)
class Division:
    """Where in a state the parts lie, and how many ciphertexts each takes."""

    parameters: slice
    statistics: slice
    counters: slice

    @classmethod
    def of(cls, layout: Layout) -> Division:
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
        first, second = map(rows_needed, self.sizes)
        return range(first), range(first, first + second)


def own_weight(samples: int, method: MethodFacts) -> float:
    """By what a client's statistics count in their mean."""
    return float(samples) if method.surgery is None and method.weighting == "samples" else 1.0


def encrypted(
    update: Update, start: Tensor, holder: KeyHolder, *, method: MethodFacts, layout: Layout
) -> dict[str, Tensor]:
    """What a client sends in place of its state.

    The loss is multiplied so that the mean of the statistics gives the mean loss by samples.
    """
    division = Division.of(layout)
    weights = update.weights.detach().cpu()
    change: Real = (weights.double() - start.detach().cpu().double()).numpy()
    loss = update.loss * update.samples / own_weight(update.samples, method)
    vectors = change[division.parameters], np.append(change[division.statistics], loss)
    magnitudes = [magnitude_of(vector) for vector in vectors]
    rows = [row for vector, size in zip(vectors, magnitudes, strict=True) for row in to_rows(vector, size)]
    sent = {
        CIPHERTEXTS: to_tensor([holder.encrypt(row) for row in rows]),
        MAGNITUDES: torch.tensor(magnitudes),
    }
    counters = weights[division.counters]
    return sent | ({COUNTERS: counters.clone()} if len(counters) else {})


def ciphertexts_of(client: str, extras: Mapping[str, Tensor], division: Division) -> list[bytes]:
    """What a client sent, after a look at its size, which is all that can be looked at."""
    expected, counters = sum(map(len, division.rows)), division.counters
    try:
        parts = to_parts(extras[CIPHERTEXTS])
    except UnseenError as error:
        raise UnseenError(f"client {client!r}: {error}") from error
    told = len(extras.get(COUNTERS, ()))
    if len(parts) != expected or len(extras[MAGNITUDES]) != PARTS or told != counters.stop - counters.start:
        raise UnseenError(
            f"client {client!r} sent {len(parts)} ciphertexts and {told} counters, expected were {expected} "
            f"and {counters.stop - counters.start}: does it train the same model?"
        )
    return parts
