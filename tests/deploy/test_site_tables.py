"""Tables at the sites: the whole protocol, with Flower's transport replaced by calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from table_sites import make_tables, table_job
from tiny_sites import LoopbackGrid

from unseen.config import RunConfig
from unseen.deploy import coordinator
from unseen.deploy.coordinator import RoundPolicy, coordinate
from unseen.runner.run import RunResult, run
from unseen.runs.folder import RunFolder


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "SETTLED_SECONDS", 0.0)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return make_tables(tmp_path / "tables")


def at_sites(folder: Path, home: Path) -> LoopbackGrid:
    return LoopbackGrid(folder, home, suffix=".csv")


def go(grid: LoopbackGrid, config: RunConfig, out: Path, **more: Any) -> RunResult:
    return coordinate(
        grid,  # type: ignore[arg-type]
        config,
        out=out,
        terms=RoundPolicy(deadline=30.0),
        **{"resume": False, **more},
    )


def model(out: Path) -> dict[str, torch.Tensor]:
    return load_file(RunFolder(out).model)


def same_as_on_one_machine(folder: Path, config: RunConfig, tmp_path: Path) -> LoopbackGrid:
    grid = at_sites(folder, tmp_path / "sites")
    there = go(grid, config, tmp_path / "there")
    here = run(config, out=tmp_path / "here")
    sent, own = model(there.folder), model(here.folder)
    assert sent.keys() == own.keys()
    assert all(torch.equal(sent[name], own[name]) for name in own)
    assert there.values["metrics"] == here.values["metrics"]
    assert there.model.card.encoding == here.model.card.encoding
    return grid


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"target": "score"},
        {"table_statistics": "local"},
        {"method": "ridge"},
        {"partition": "iid", "clients_per_domain": 2, "batch_size": 4},
        {"hold_out": ("held", "b"), "validate_on": ("c",)},
    ],
    ids=str,
)
def test_tables_at_sites_give_the_weights_of_one_machine(changes: dict[str, Any], tmp_path: Path) -> None:
    """Build 7: the coordinator combines the sites' column sums into the encoding of one process."""
    folder = make_tables(tmp_path / "tables", target=changes.get("target", "target"))
    same_as_on_one_machine(folder, table_job(folder, **changes), tmp_path)
