"""Quick grids, benches that were run once for several tests, and benches made up of numbers alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unseen.bench.bench_folder import BenchFolder
from unseen.bench.grid import Grid
from unseen.bench.results import JobResult
from unseen.bench.runner import BenchOutcome, run_bench
from unseen.seeding import numpy_generator

DOMAINS = ("0", "15", "30", "45", "60", "75")
QUICK = {"data": "rotated-digits", "rounds": 2, "batches_per_epoch": 2, "lr": 0.05}


def quick_grid(**changes: Any) -> Grid:
    """Two methods on one held-out angle with one seed, two rounds of two batches."""
    values: dict[str, Any] = {"methods": {"fedavg": {}, "ppdg": {}}, "hold_out": ("75",), "domains": DOMAINS}
    return Grid(**{"common": QUICK, **values, **changes})


@pytest.fixture
def make_grid() -> Callable[..., Grid]:
    return quick_grid


@pytest.fixture
def make_table_grid(tmp_path: Path) -> Callable[..., Grid]:
    """Grids on a table of three domains, whose jobs are faster still."""
    lines = [
        f"{domain},{label},{numpy_generator(row, 'table row', domain).normal(row % 2):.3f}"
        for domain in ("north", "south", "west")
        for row in range(40)
        for label in ("yes" if row % 2 else "no",)
    ]
    (tmp_path / "table.csv").write_text("\n".join(["domain,target,x", *lines]))
    common = {"data": str(tmp_path / "table.csv"), "rounds": 2, "batches_per_epoch": 1, "batch_size": 8}

    def make(*, rounds: int = 2, **changes: Any) -> Grid:
        given = {"common": {**common, "rounds": rounds}, "hold_out": ("west",)}
        return quick_grid(**{**given, "domains": ("north", "south", "west"), **changes})

    return make


@pytest.fixture(scope="session")
def finished_bench(tmp_path_factory: pytest.TempPathFactory) -> tuple[Grid, Path, BenchOutcome]:
    """Two methods, two angles, two seeds, all finished. Tests must leave the folder as it is."""
    grid = quick_grid(hold_out=("75", "0"), seeds=(0, 1))
    folder = tmp_path_factory.mktemp("bench")
    return grid, folder, run_bench(grid, BenchFolder(folder), workers=1)


ANGLES = ("0", "15", "30", "45")
LEVELS = {"fedavg": 0.80, "csac": 0.86, "deepall": 0.81}


def made_up_grid(**changes: Any) -> Grid:
    given: dict[str, Any] = {
        "common": {"data": "rotated-digits", "rounds": 6},
        "methods": {label: {} for label in LEVELS},
        "hold_out": ANGLES,
        "seeds": (0, 1, 2),
        "title": "Made up",
        "baseline": "fedavg",
    }
    return Grid(**{**given, **changes})


def make_result(label: str, held_out: str, seed: int, accuracy: float, **changes: Any) -> JobResult:
    given: dict[str, Any] = {
        "label": label,
        "held_out": held_out,
        "seed": seed,
        "model": "",
        "accuracy": {"source-validation": accuracy, "last": accuracy - 0.01, "oracle": accuracy + 0.01},
        "in_domain": 0.95,
        "curve": [accuracy * share for share in (0.5, 0.7, 0.8, 0.9, 1.01, 1.0)],
        "seconds": 12.5,
        "bytes_up": 1_000_000,
        "bytes_down": 2_000_000,
        "metric": "accuracy",
        "job": f"{label}-{held_out}-{seed}",
    }
    return JobResult(**{**given, **changes})


def make_results(grid: Grid, *, levels: dict[str, float] | None = None, **changes: Any) -> list[JobResult]:
    """A result for every cell of a grid: the label's level, the domain's and a little chance."""
    levels, results = levels or LEVELS, []
    for model in grid.models or ("",):
        for label in grid.methods:
            for place, held_out in enumerate(grid.hold_out):
                for seed in grid.seeds_for(held_out):
                    chance = float(numpy_generator(seed, "made up", label, held_out, model).normal(0, 0.004))
                    value = round(levels.get(label, 0.8) - 0.03 * place + 0.002 * seed + chance, 4)
                    results.append(make_result(label, held_out, seed, value, model=model, **changes))
    return results


@pytest.fixture
def grid_of() -> Callable[..., Grid]:
    return made_up_grid


@pytest.fixture
def result_of() -> Callable[..., JobResult]:
    return make_result


@pytest.fixture
def results_of() -> Callable[..., list[JobResult]]:
    return make_results
