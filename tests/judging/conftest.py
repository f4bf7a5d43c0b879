"""Small trained runs: digits of several angles, and prices in a table with groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unseen.config import RunConfig
from unseen.runner.run import run


@pytest.fixture(scope="session")
def digit_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two classifiers of digits, of one and of three rounds."""
    folder = tmp_path_factory.mktemp("digits")
    runs = [
        run(
            RunConfig(
                data="rotated-digits", hold_out=("75",), rounds=rounds, lr=0.05, batch_size=16,
                batches_per_epoch=6,
            ),
            out=folder / f"run{rounds}",
        ).folder
        for rounds in (1, 3)
    ]  # fmt: skip
    return runs[0], runs[1]


@pytest.fixture(scope="session")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of prices near 5000 with domains, and groups of which one is small."""
    generator = np.random.default_rng(0)
    lines = ["place,size,kind,rooms,price"]
    for number in range(180):
        size, kind = generator.normal(80, 20), ("flat", "house")[number % 2]
        kind = "boat" if number in {3, 4, 5} else kind
        price = 5000 + 10 * (size - 80) + 200 * (kind == "house") + generator.normal(0, 50)
        place = ("north", "south", "west")[number % 3]
        lines.append(f"{place},{size:.3f},{kind},{number % 4},{price:.2f}")
    table = tmp_path_factory.mktemp("prices") / "prices.csv"
    table.write_text("\n".join(lines) + "\n")
    return table


@pytest.fixture(scope="session")
def price_runs(prices: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two regressors, of one and of three rounds."""
    folder = tmp_path_factory.mktemp("price-runs")
    runs = [
        run(
            RunConfig(
                data=str(prices), hold_out=("west",), target="price", domain_column="place", rounds=rounds,
                local_epochs=4, lr=0.05, batch_size=8,
            ),
            out=folder / f"run{rounds}",
        ).folder
        for rounds in (1, 3)
    ]  # fmt: skip
    return runs[0], runs[1]
