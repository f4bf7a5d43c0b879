"""The `Engine` protocol: only engines know where clients run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from unseen.calibration import Measurement
from unseen.engine.experiment import EvaluationSet, RoundStart, Workspace
from unseen.privacy import Message
from unseen.runs.records import Record
from unseen.tasks.accumulators import MetricAccumulator
from unseen.training import Update


@dataclass(frozen=True)
class Reply:
    """A client's answer in a round.

    reason  why there is no update, or why the received one cannot be used; empty where it can
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
    """Reason why a site's answer is missing, in place of the answer."""

    reason: str


class Engine(Protocol):
    """Sends weights to clients and returns their updates.

    workspace   this process's own copy of the module
    holds_data  whether this process has the samples, so that a report may show some
    initial_disclosures  disclosures that this engine needs before the first round, as in the records
    notes       remarks for the user on where data is stored
    """

    workspace: Workspace
    holds_data: bool
    initial_disclosures: Sequence[Record]

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the records."""

    def train(self, clients: Sequence[int], start: RoundStart) -> tuple[Tensor, list[Reply]]:
        """Train the clients at these positions; return their states as rows, and their replies.

        Row i is the `weights` of reply i (left as it was where those are sealed or withheld); the matrix is
        reused in the next round.
        """

    def consult(self, clients: Sequence[int], messages: Sequence[Message], *, round: int) -> list[Answer]:
        """Send each client its message of the protection's server half; return the answers."""

    def evaluate(
        self, weights: Tensor, sets: Sequence[EvaluationSet], measurement: Measurement | None = None
    ) -> Sequence[MetricAccumulator | NoAnswer]:
        """Evaluate the deployed network on every (domain, split).

        measurement  what to sum beyond the plain metrics; the answers are `DetailAccumulator`s then
        """

    def close(self) -> None:
        """Free processes and memory."""
