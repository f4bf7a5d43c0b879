"""Grids whose jobs take a fraction of a second, and benches that were run once for several tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unseen.bench.folder import BenchFolder
from unseen.bench.grid import Grid
from unseen.bench.runner import Outcome, run_bench

DOMAINS = ("0", "15", "30", "45", "60", "75")
QUICK = {"data": "rotated-digits", "rounds": 2, "batches_per_epoch": 2, "lr": 0.05}


def quick_grid(**changes: Any) -> Grid:
    """Two methods on one held-out angle with one seed, two rounds of two batches."""
    values: dict[str, Any] = {"methods": {"fedavg": {}, "ppdg": {}}, "hold_out": ("75",), "domains": DOMAINS}
    return Grid(**{"common": QUICK, **values, **changes})


@pytest.fixture
def make_grid() -> Callable[..., Grid]:
    return quick_grid


@pytest.fixture(scope="session")
def finished_bench(tmp_path_factory: pytest.TempPathFactory) -> tuple[Grid, Path, Outcome]:
    """Two methods, two angles, two seeds, all finished. Tests must leave the folder as it is."""
    grid = quick_grid(hold_out=("75", "0"), seeds=(0, 1))
    folder = tmp_path_factory.mktemp("bench")
    return grid, folder, run_bench(grid, BenchFolder(folder), workers=1)
