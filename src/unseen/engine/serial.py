"""The in-process engine: clients train one after another in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from unseen.calibration import Measurement
from unseen.engine.base import Answer, Reply
from unseen.engine.experiment import EvaluationSet, Experiment, RoundStart, Workspace
from unseen.engine.resources import keep_freed_memory
from unseen.errors import UnseenError
from unseen.privacy import Message
from unseen.runs.checkpoint import StateStore, protection_key
from unseen.runs.records import Record
from unseen.tasks.accumulators import MetricAccumulator


class SerialEngine:
    """Runs every client here, on one reused module."""

    holds_data = True
    initial_disclosures: Sequence[Record] = ()
    notes: tuple[str, ...] = ()

    def __init__(self, experiment: Experiment, states: StateStore) -> None:
        keep_freed_memory()
        self.workspace = Workspace(experiment)
        self.states = states
        self._rows = torch.empty(0)

    def train(self, clients: Sequence[int], start: RoundStart) -> tuple[Tensor, list[Reply]]:
        """Train the clients in turn."""
        shape = (len(clients), len(start.weights))
        if self._rows.shape != shape:
            self._rows = torch.empty(shape)
        experiment = self.workspace.experiment
        names, protected = experiment.federation.names, experiment.protected
        replies = []
        for place, (row, position) in enumerate(zip(self._rows, clients, strict=True)):
            name = names[position]
            with self.states.open_states(name, round=start.round, protected=protected) as states:
                update = self.workspace.train_client(position, states[0], start.of(place), states[1])
            reason = self.workspace.reason_against(update)
            if len(update.weights):
                row.copy_(update.weights)
                update = replace(update, weights=row)
            replies.append(Reply(name, update, reason))
        return self._rows, replies

    def consult(self, clients: Sequence[int], messages: Sequence[Message], *, round: int) -> list[Answer]:
        """Collect the clients' answers in turn."""
        answers = []
        for position, message in zip(clients, messages, strict=True):
            name = self.workspace.experiment.federation.names[position]
            reply = partial(self.workspace.answer, name, message=message, round=round)
            try:
                answers.append(
                    Answer(name, self.states.with_state(protection_key(name), round=round, do=reply))
                )
            except UnseenError as error:
                answers.append(Answer(name, None, str(error)))
        return answers

    def evaluate(
        self, weights: Tensor, sets: Sequence[EvaluationSet], measurement: Measurement | None = None
    ) -> list[MetricAccumulator]:
        """Evaluate on every set in turn."""
        self.workspace.flat.load(weights)
        return self.workspace.evaluate_all(sets, measurement)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""
