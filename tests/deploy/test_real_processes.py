"""Real Flower processes on loopback, with TLS and keys: few tests, since starting takes most of the time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tiny_sites import QUICK, SITES, tiny_job

from unseen.deploy.coordinator import RoundPolicy
from unseen.deploy.submit import run_on_flower
from unseen.deploy.testing import LocalFederation
from unseen.runner.run import RunResult, run
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.folder import RunFolder

pytestmark = pytest.mark.deployment
METHODS = ("fedavg", "csac", "ppdg", "fedadg", "mdfl")


def weights(out: Path) -> torch.Tensor:
    return Checkpoint.load(RunFolder(out).checkpoint).weights


def test_five_methods_give_the_weights_of_one_machine(images: Path, tmp_path: Path) -> None:
    configs = {
        method: tiny_job(images, method=method, settings=QUICK.get(method, {}), evaluate_every=3)
        for method in METHODS
    }
    with LocalFederation(images, tmp_path / "federation").start(SITES) as federation:

        def train(method: str) -> RunResult:
            return run_on_flower(
                configs[method],
                coordinator=federation.coordinator,
                out=tmp_path / method,
                terms=RoundPolicy(deadline=1200.0, min_sites=3),
            )

        with ThreadPoolExecutor(2) as pool:
            there = dict(zip(METHODS, pool.map(train, METHODS), strict=True))
    for method in METHODS:
        here = run(configs[method], out=tmp_path / f"{method}-here")
        assert torch.equal(weights(tmp_path / method), weights(here.folder)), method
        assert there[method].values["metrics"] == here.values["metrics"], method
        assert (tmp_path / method / "report.html").exists()
