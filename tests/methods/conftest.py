"""Parts that tests of several methods need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from unseen.data import DataSet
from unseen.engine import Experiment
from unseen.models.network import StagedNetwork
from unseen.runs.records import Records
from unseen.seeding import global_torch_seed


@pytest.fixture
def make_normed_network() -> Callable[[], StagedNetwork]:
    """Makes a small network with batch norm (for tiny data), the same one every time."""

    def make() -> StagedNetwork:
        with global_torch_seed(3, "test network"):
            stages = {
                "conv": nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
                "hidden": nn.Sequential(nn.Flatten(), nn.Linear(6 * 9, 12), nn.ReLU()),
            }
            return StagedNetwork(stages, head=nn.Linear(12, 3))

    return make


@pytest.fixture
def make_uneven_experiment(
    make_experiment: Callable[..., Experiment],
    make_tiny_data: Callable[..., DataSet],
    make_normed_network: Callable[[], StagedNetwork],
) -> Callable[..., Experiment]:
    """Makes experiments with batch norm in which client b holds fewer samples, so takes fewer steps."""

    def make(method: str, *, settings: dict[str, Any] | None = None, **options: Any) -> Experiment:
        data = make_tiny_data(missing=("b", 1))
        return replace(
            make_experiment(method, data=data, settings=settings, **options), network=make_normed_network()
        )

    return make


@pytest.fixture
def tiny_regression(make_tiny_data: Callable[..., DataSet]) -> DataSet:
    """Tiny data whose target is the number of the bright row."""
    data = make_tiny_data()
    targets = data.targets.astype("float32")
    return replace(data, task="regression", targets=targets, classes=(), fingerprint="")


@pytest.fixture
def rounds_of() -> Callable[[Records], list[dict[str, Any]]]:
    """Picks the records of rounds, evaluations left out."""
    return lambda records: [record for record in records.entries if record["event"] == "round"]
