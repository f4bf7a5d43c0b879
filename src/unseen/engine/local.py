"""The in-process engine: clients work one after another in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from unseen.engine.allocator import keep_freed_memory
from unseen.engine.base import Reply
from unseen.engine.experiment import EvaluationSet, Experiment, Workspace
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

    def train(
        self,
        clients: Sequence[int],
        *,
        round: int,
        weights: Tensor,
        received: Mapping[str, Tensor],
        progress: Callable[[int], None],
    ) -> tuple[Tensor, list[Reply]]:
        """Let the clients work in turn."""
        if self._rows.shape != (len(clients), len(weights)):
            self._rows = torch.empty(len(clients), len(weights))
        names = self.workspace.experiment.federation.names
        replies = []
        for row, position in zip(self._rows, clients, strict=True):
            name = names[position]
            train = partial(
                self.workspace.train_client,
                position,
                round=round,
                weights=weights,
                received=received,
                progress=progress,
            )
            update = self.states.with_state(name, round=round, do=train)
            row.copy_(update.weights)
            replies.append(Reply(name, replace(update, weights=row)))
        return self._rows, replies

    def evaluate(self, weights: Tensor, sets: Sequence[EvaluationSet]) -> list[Tally]:
        """Evaluate on every set in turn."""
        self.workspace.flat.load(weights)
        return self.workspace.evaluate_all(sets)

    def close(self) -> None:
        """Nothing to let go of."""
