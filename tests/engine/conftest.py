"""Experiments that overfit soon, crashes at a chosen place, and records without their times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from unseen.callbacks.base import Callback
from unseen.data import DataSet
from unseen.engine import Experiment
from unseen.runs.records import Record
from unseen.training import LocalTrainingConfig

PLAN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.2, momentum=0.5)


@pytest.fixture
def make_noisy(
    make_experiment: Callable[..., Experiment], make_tiny_data: Callable[..., DataSet]
) -> Callable[..., Experiment]:
    """Experiments with labels of which half are random: the validation loss falls, then rises."""

    def make(method: str = "fedavg", *, other_target: bool = False) -> Experiment:
        data, rng = make_tiny_data(), np.random.default_rng(0)
        random = rng.random(len(data.targets)) < 0.5
        data.targets[random] = rng.integers(0, 3, random.sum())
        if other_target:
            rows = data.indices("held")
            data.inputs[rows] = 255 - data.inputs[rows]
            data.targets[rows] = (data.targets[rows] + 1) % 3
        return make_experiment(method, data=data, plan=PLAN)

    return make


class _Crashing(Callback):
    """Ends the process after a record of one kind in one round, before the round's checkpoint."""

    def __init__(self, event: str, round: int) -> None:
        self.place = event, round

    def on_record(self, record: Record) -> None:
        """Interrupt at the place."""
        if (record["event"], record.get("round")) == self.place:
            raise KeyboardInterrupt


@pytest.fixture
def crash_at() -> Callable[[str, int], Callback]:
    return _Crashing


@pytest.fixture
def without_times() -> Callable[[list[Record]], list[dict[str, Any]]]:
    return lambda entries: [{key: value for key, value in one.items() if key != "seconds"} for one in entries]
