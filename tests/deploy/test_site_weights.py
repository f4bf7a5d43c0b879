"""Sites find frozen pretrained weights themselves, and refuse others than the coordinator's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_sites import LoopbackGrid, tiny_job

from unseen.callbacks.base import Callback
from unseen.config import RunConfig
from unseen.deploy.coordinator import coordinator
from unseen.deploy.coordinator.coordinator import RoundPolicy, coordinate
from unseen.errors import UnseenError
from unseen.models import InputSpec, build_model
from unseen.runner.run import RunResult, run
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.folder import RunFolder

FILE = "mnist-cnn_imagenet.safetensors"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "SETTLED_SECONDS", 0.0)


def save_weights(root: Path, *, seed: int) -> Path:
    path = root / "weights" / FILE
    path.parent.mkdir(parents=True)
    network = build_model("mnist-cnn", InputSpec((3, 8, 8), 9), seed=seed)
    save_file(dict(network.state_dict()), path)
    return path


def go(grid: LoopbackGrid, config: RunConfig, out: Path) -> RunResult:
    terms = RoundPolicy(deadline=30.0)
    return coordinate(grid, config, out=out, resume=False, terms=terms, callbacks=Callback())  # type: ignore[arg-type]


def state(out: Path) -> torch.Tensor:
    return Checkpoint.load(RunFolder(out).checkpoint).weights


@pytest.mark.parametrize("by_file", [False, True])
def test_a_frozen_part_is_found_at_every_site(grid, images, tmp_path, monkeypatch, by_file):
    file = save_weights(tmp_path / "there", seed=5)
    save_weights(tmp_path / "sites_root", seed=5)
    monkeypatch.setenv("UNSEEN_DATA", str(tmp_path / "sites_root"))
    config = tiny_job(
        images,
        train="head.*",
        weights=str(file) if by_file else "auto",
        data_root=str(tmp_path / "there"),
    )
    there = go(grid, config, tmp_path / "flower")
    here = run(config, out=tmp_path / "here", report=False)
    assert torch.equal(state(tmp_path / "flower"), state(tmp_path / "here"))
    assert there.values["metrics"] == here.values["metrics"]
    jobs = [question.header["job"] for _, question, _ in grid.log if "job" in question.header]
    assert {job["config"]["weights"] for job in jobs} == {FILE if by_file else "imagenet"}
    assert not any(str(tmp_path / "there") in str(job) for job in jobs)


def test_other_weights_are_refused_by_name_and_checksum(grid, images, tmp_path, monkeypatch):
    save_weights(tmp_path / "there", seed=5)
    save_weights(tmp_path / "sites_root", seed=6)
    monkeypatch.setenv("UNSEEN_DATA", str(tmp_path / "sites_root"))
    config = tiny_job(images, train="head.*", weights="imagenet", data_root=str(tmp_path / "there"))
    with pytest.raises(UnseenError, match="has other weights for mnist-cnn than the coordinator"):
        go(grid, config, tmp_path / "flower")


def test_sites_need_no_weights_where_the_whole_network_is_sent(grid, images, tmp_path, monkeypatch):
    save_weights(tmp_path / "there", seed=5)
    monkeypatch.delenv("UNSEEN_DATA", raising=False)
    assert "UNSEEN_DATA" not in os.environ
    config = tiny_job(images, weights="imagenet", data_root=str(tmp_path / "there"))
    go(grid, config, tmp_path / "flower")
    run(config, out=tmp_path / "here", report=False)
    assert torch.equal(state(tmp_path / "flower"), state(tmp_path / "here"))
