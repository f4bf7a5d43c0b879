"""What an engine does: it is the only code that knows where clients live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from unseen.engine.experiment import EvaluationSet, RoundStart, Workspace
from unseen.privacy import Message
from unseen.runs.records import Record
from unseen.tasks.accumulators import MetricAccumulator
from unseen.training import Update


@dataclass(frozen=True)
class Reply:
    """A client's answer in a round.

    reason  why there is no update, or why the one that came cannot be used; empty where it can
    """

    client: str
    update: Update | None
    reason: str = ""


@dataclass(frozen=True)
class Answer:
    """A client's answer to a message of the protection, or the reason why there is none."""

    client: str
    message: Message | None
    reason: str = ""


@dataclass(frozen=True)
class NoAnswer:
    """In place of what a site should have sent: why it did not come."""

    reason: str


class Engine(Protocol):
    """Carries weights to clients and updates back.

    workspace   this process's own copy of the module
    holds_data  whether the samples themselves lie in this process, so that a report may show some
    beforehand  what left clients for this engine's own needs before the first round, as records tell it
    notes       what a user should know of where things are held
    """

    workspace: Workspace
    holds_data: bool
    beforehand: Sequence[Record]

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the records."""

    def train(self, clients: Sequence[int], start: RoundStart) -> tuple[Tensor, list[Reply]]:
        """Let the clients at these positions work; return their states as rows, and their replies.

        Row i is the `weights` of reply i (left as it was where those are sealed or withheld); the matrix is
        reused in the next round.
        """

    def consult(self, clients: Sequence[int], messages: Sequence[Message], *, round: int) -> list[Answer]:
        """Hand each client its message of the protection's server half; return what they answer."""

    def evaluate(
        self, weights: Tensor, sets: Sequence[EvaluationSet]
    ) -> Sequence[MetricAccumulator | NoAnswer]:
        """Evaluate the deployed network on every (domain, split)."""

    def close(self) -> None:
        """Free processes and memory."""
