"""Who wants to follow a run while it goes: the base class hears everything and says nothing."""

from __future__ import annotations

from unseen.runs.records import Record


class Listener:
    """Override what is of interest; the command line draws its progress from these calls."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Hear of slow preparation, such as decoding images."""

    def noted(self, note: str) -> None:
        """Hear what a user should know before the run starts, such as what a protection costs."""

    def training_starts(self, *, first_round: int, rounds: int, samples: int) -> None:
        """Hear that rounds begin, and how many samples a full round trains on."""

    def samples_done(self, count: int) -> None:
        """Hear that a client trained on so many samples."""

    def recorded(self, record: Record) -> None:
        """Hear of an event as it is written to the records."""
