"""What the parts of a loss came to over a client's round, for the records."""

from __future__ import annotations

import torch
from torch import Tensor


class RunningMeans:
    """Means of named values over samples; values stay on their device until the end."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, value: Tensor, *, samples: int) -> None:
        """Count a value that is a batch's mean over `samples`."""
        part = value.detach().double() * samples
        self._sums[name] = self._sums.get(name, torch.zeros_like(part)) + part
        self._counts[name] = self._counts.get(name, 0) + samples

    def result(self) -> dict[str, float]:
        """All means so far; names that never came up are not there."""
        return {name: float(total) / self._counts[name] for name, total in self._sums.items()}
