"""Benches made up of numbers alone: a grid and results as finished jobs leave them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from unseen.bench.grid import Grid
from unseen.bench.results import JobResult
from unseen.randomness import numpy_generator

DOMAINS = ("0", "15", "30", "45")
LEVELS = {"fedavg": 0.80, "csac": 0.86, "deepall": 0.81}


def make_grid(**changes: Any) -> Grid:
    given: dict[str, Any] = {
        "common": {"data": "rotated-digits", "rounds": 6},
        "methods": {label: {} for label in LEVELS},
        "hold_out": DOMAINS,
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
                for seed in grid.seeds:
                    chance = float(numpy_generator(seed, "made up", label, held_out, model).normal(0, 0.004))
                    value = round(levels.get(label, 0.8) - 0.03 * place + 0.002 * seed + chance, 4)
                    results.append(make_result(label, held_out, seed, value, model=model, **changes))
    return results


@pytest.fixture
def grid_of() -> Callable[..., Grid]:
    return make_grid


@pytest.fixture
def result_of() -> Callable[..., JobResult]:
    return make_result


@pytest.fixture
def results_of() -> Callable[..., list[JobResult]]:
    return make_results
