"""The in-process engine: clients work one after another in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from unseen.engine.allocator import keep_freed_memory
from unseen.engine.base import Reply
from unseen.engine.experiment import EvaluationSet, Experiment, RoundStart, Workspace
from unseen.engine.states import StateStore
from unseen.evaluation import Tally


class LocalEngine:
    """Runs every client here, on one reused module."""

    notes: tuple[str, ...] = ()

    def __init__(self, experiment: Experiment, states: StateStore) -> None:
        keep_freed_memory()
        self.workspace = Workspace(experiment)
        self.states = states
        self._rows = torch.empty(0)

    def train(self, clients: Sequence[int], start: RoundStart) -> tuple[Tensor, list[Reply]]:
        """Let the clients work in turn."""
        shape = (len(clients), len(start.weights))
        if self._rows.shape != shape:
            self._rows = torch.empty(shape)
        names = self.workspace.experiment.federation.names
        replies = []
        for row, position in zip(self._rows, clients, strict=True):
            train = partial(self.workspace.train_client, position, start=start)
            update = self.states.with_state(names[position], round=start.round, do=train)
            row.copy_(update.weights)
            replies.append(Reply(names[position], replace(update, weights=row)))
        return self._rows, replies

    def evaluate(self, weights: Tensor, sets: Sequence[EvaluationSet]) -> list[Tally]:
        """Evaluate on every set in turn."""
        self.workspace.flat.load(weights)
        return self.workspace.evaluate_all(sets)

    def close(self) -> None:
        """Nothing to let go of."""
