"""The encrypted weighted sum: factors for the server, and the way back at a key holder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from unseen.privacy.asking import to_parts, to_tensor
from unseen.privacy.chunks import BASE, from_rows
from unseen.privacy.encrypted_update import Division
from unseen.privacy.facts import Message
from unseen.privacy.he.ckks import KeyHolder
from unseen.privacy.he.encrypted_server import counted

SUM, SIZES, LEADING = "encrypted sum", "magnitudes", "sums of factors"
MEAN = "mean of the updates and of the training loss"


class Factors(NamedTuple):
    """What the server multiplies each client's scaled rows by, and the sum's own order of magnitude."""

    of_clients: dict[str, float]
    magnitude: int

    @property
    def leading(self) -> float:
        """What becomes of the ones at the rows' beginnings."""
        return sum(counted(self.of_clients).values())


def factors(shares: Mapping[str, float], magnitudes: Mapping[str, int]) -> Factors:
    """Bring clients of different orders of magnitude to the largest one."""
    largest = max(magnitudes.values())
    return Factors(
        {client: share * BASE ** (magnitudes[client] - largest) for client, share in shares.items()}, largest
    )


def question(ciphertexts: list[bytes], *parts: Factors) -> Message:
    """What the server sends to a key holder."""
    return {
        SUM: to_tensor(ciphertexts),
        SIZES: torch.tensor([part.magnitude for part in parts]),
        LEADING: torch.tensor([part.leading for part in parts], dtype=torch.float64),
    }


def opened(message: Message, holder: KeyHolder, division: Division) -> Message:
    """The key holder's answer: the mean change of the parameters, of the statistics, and the loss."""
    rows = [holder.decrypt(part) for part in to_parts(message[SUM])]
    vectors = [
        from_rows(rows[place.start : place.stop], numbers=numbers, magnitude=magnitude, leading=leading)
        for place, numbers, magnitude, leading in zip(
            division.rows, division.sizes, message[SIZES].tolist(), message[LEADING].tolist(), strict=True
        )
    ]
    return {MEAN: torch.from_numpy(np.concatenate(vectors)).float()}
