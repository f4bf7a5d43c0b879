"""How long the rounds of each method take, from those that have run: the time left of a bench follows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


class RoundTimes:
    """Rounds and seconds measured so far, per label."""

    def __init__(self) -> None:
        self._rounds: dict[str, int] = defaultdict(int)
        self._seconds: dict[str, float] = defaultdict(float)

    def add(self, label: str, *, rounds: int, seconds: float) -> None:
        """Add rounds that have run."""
        self._rounds[label] += rounds
        self._seconds[label] += seconds

    def copy(self) -> RoundTimes:
        """Return an independent copy."""
        other = RoundTimes()
        for label, rounds in self._rounds.items():
            other.add(label, rounds=rounds, seconds=self._seconds[label])
        return other

    def knows(self, label: str) -> bool:
        """Return whether rounds of this label have run."""
        return self._rounds.get(label, 0) > 0

    def seconds_per_round(self, label: str) -> float | None:
        """Return a label's mean; for a new label, the mean of the others; None before any round has run."""
        if self.knows(label):
            return self._seconds[label] / self._rounds[label]
        rounds = sum(self._rounds.values())
        return sum(self._seconds.values()) / rounds if rounds else None

    def seconds_left(self, left: Iterable[tuple[str, int]], *, workers: int) -> float | None:
        """Estimate the time for (label, rounds) pairs on `workers` workers; None before any round has run.

        No job is split, so it takes at least as long as the longest of them.
        """
        each = [(rounds, self.seconds_per_round(label)) for label, rounds in left]
        known = [rounds * seconds for rounds, seconds in each if seconds is not None]
        if len(known) < len(each):
            return None
        return max(sum(known) / workers, max(known, default=0.0))
