"""Small trained runs, and held-out digits as image files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unseen.config import RunConfig
from unseen.data import DataRequest, DataSet, load_data
from unseen.runner.run import run


@pytest.fixture(scope="session")
def digits() -> DataSet:
    return load_data(DataRequest("rotated-digits"))


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grey image classifier, trained just enough to be no constant."""
    config = RunConfig(
        data="rotated-digits", hold_out=("75",), rounds=1, local_epochs=2, lr=0.05, batch_size=16
    )
    return run(config, out=tmp_path_factory.mktemp("runs") / "digits").folder


@pytest.fixture(scope="session")
def digit_files(tmp_path_factory: pytest.TempPathFactory, digits: DataSet) -> tuple[Path, dict[str, int]]:
    """Held-out digits as PNG files at different depths, and the row of the store each is."""
    folder = tmp_path_factory.mktemp("digits")
    rows = {}
    for place, row in enumerate(digits.indices("75")[::9].tolist()):
        name = f"{row}.png" if place % 3 == 0 else f"site [{place % 3}]/deeper/{row}.PNG"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.inputs[row, ..., 0]).save(folder / name, format="PNG")
        rows[name] = row
    return folder, rows


@pytest.fixture(scope="session")
def price_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run that learnt a price near 5000 from a table, and new rows without target, columns turned round."""
    folder = tmp_path_factory.mktemp("prices")
    generator = np.random.default_rng(0)
    lines = ["place,size,kind,price"]
    for number in range(180):
        size, kind = generator.normal(80, 20), ("flat", "house")[number % 2]
        price = 5000 + 10 * (size - 80) + 200 * (kind == "house") + generator.normal(0, 10)
        lines.append(f"{('north', 'south', 'west')[number % 3]},{size:.3f},{kind},{price:.2f}")
    table = folder / "prices.csv"
    table.write_text("\n".join(lines) + "\n")
    config = RunConfig(
        data=str(table),
        hold_out=("west",),
        target="price",
        domain_column="place",
        validation=0.2,
        rounds=3,
        local_epochs=5,
        lr=0.05,
        batch_size=8,
    )
    finished = run(config, out=folder / "run").folder
    new = folder / "new.csv"
    new.write_text("kind,size,remark\nhouse,130,a\nflat,30,b\ncastle,80,c\n,,d\n")
    return finished, new
