"""How long it will take: seconds a round, learnt from the rounds that were run, method by method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


class RoundTimes:
    """Sums of rounds and seconds for every label."""

    def __init__(self) -> None:
        self._rounds: dict[str, int] = defaultdict(int)
        self._seconds: dict[str, float] = defaultdict(float)

    def add(self, label: str, *, rounds: int, seconds: float) -> None:
        """Learn from rounds that were run."""
        self._rounds[label] += rounds
        self._seconds[label] += seconds

    def copy(self) -> RoundTimes:
        """Another one that knows the same and learns by itself."""
        other = RoundTimes()
        for label, rounds in self._rounds.items():
            other.add(label, rounds=rounds, seconds=self._seconds[label])
        return other

    def knows(self, label: str) -> bool:
        """Whether rounds of this label were run."""
        return self._rounds.get(label, 0) > 0

    def seconds_a_round(self, label: str) -> float | None:
        """What is known of a label; of a new one, the mean of the others; None when nothing is known."""
        if self.knows(label):
            return self._seconds[label] / self._rounds[label]
        rounds = sum(self._rounds.values())
        return sum(self._seconds.values()) / rounds if rounds else None

    def seconds_left(self, left: Iterable[tuple[str, int]], *, workers: int) -> float | None:
        """Estimate the time for (label, rounds) pairs on so many workers; None when nothing is known.

        No job is split, so it takes at least as long as the longest of them.
        """
        each = [(rounds, self.seconds_a_round(label)) for label, rounds in left]
        known = [rounds * seconds for rounds, seconds in each if seconds is not None]
        if len(known) < len(each):
            return None
        return max(sum(known) / workers, max(known, default=0.0))


def in_words(seconds: float) -> str:
    """A duration for people: 42 s, 7 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
