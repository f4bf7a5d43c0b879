"""Run ids of recorded configurations stay what commit 8ef582c, before the redesign, computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import unseen
from unseen.config import RunConfig
from unseen.data import DataSet
from unseen.models import InputSpec, build_model
from unseen.runner.prepare import prepare_run

COMMON = {"rounds": 3, "batch_size": 4, "seed": 1}
ON_TABLE = {"data": "wells.csv", "hold_out": "west", "domain_column": "field", "target": "yield"}
ON_IMAGES = {"data": "squares", "hold_out": "d", "model": "mnist-cnn"}


def images() -> DataSet:
    """Images of 8 x 8 noise in four domains."""
    rng, count = np.random.default_rng(5), 24
    pixels = rng.integers(0, 256, (4 * count, 8, 8), dtype=np.uint8)
    classes = np.tile(np.arange(3), 4 * count // 3)
    return unseen.from_arrays(pixels, classes, np.repeat(["a", "b", "c", "d"], count), name="squares")


def write_table(path: Path) -> None:
    """A small table with numbers, levels and three domains."""
    rows = ["depth,flow,rock,field,yield"]
    for number in range(60):
        domain, rock = ("north", "south", "west")[number % 3], ("chalk", "sand", "clay")[number % 7 % 3]
        label = "high" if number % 5 < 2 else "low"
        rows.append(f"{(number * 37 % 100) / 10},{(number * 53 % 90) / 9:.3f},{rock},{domain},{label}")
    path.write_text("\n".join(rows) + "\n")


def write_weights(path: Path) -> None:
    """Weights of zeros, so that the file is the same everywhere."""
    network = build_model("mnist-cnn", InputSpec((1, 8, 8), 3), seed=0)
    save_file({name: torch.zeros_like(value) for name, value in network.state_dict().items()}, path)


CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "table": ("4355db767115", {**ON_TABLE, "table_statistics": "local"}),
    "protection": (
        "6958ec5811a7",
        {**ON_IMAGES, "protect": "dp-clients", "protect_settings": {"epsilon": 8.0, "noise_seed": "run"}},
    ),
    "validation domain": (
        "e5240be92b27",
        {
            **ON_IMAGES,
            "model": None,
            "validate_on": ["c"],
            "selection": "validation-domains",
            "method": "csac",
        },
    ),
    "weights": ("aeb4394534bc", {**ON_IMAGES, "weights": "start.safetensors", "method": "moon"}),
    "update dtype": (
        "b20e88b0458a",
        {
            **ON_IMAGES,
            "hold_out": ["c", "d"],
            "update_dtype": "bfloat16",
            "method": "fedprox",
            "optimiser": "adam",
            "momentum": 0.0,
        },
    ),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_run_ids_are_those_of_the_version_before(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "wells.csv")
    write_weights(tmp_path / "start.safetensors")
    expected, values = CONFIGURATIONS[name]
    config = RunConfig.from_mapping({**COMMON, **values})
    assert prepare_run(config, data=images() if config.data == "squares" else None).run_id == expected
