"""The live page of a coordinator that really runs, and of a run on real sites."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from real_pages import PATIENCE, address, is_gone, news, started, until

from unseen.deploy.coordinator.coordinator import RoundPolicy
from unseen.deploy.coordinator.submit import run_on_flower
from unseen.deploy.flower.processes import free_port
from unseen.deploy.testing import LocalFederation
from unseen.live.federation_source import FederationSource

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))
from tiny_sites import make_images, tiny_job

pytestmark = pytest.mark.deployment


def test_a_coordinator_brings_its_page(tmp_path: Path) -> None:
    with started(tmp_path, "up", "--port", free_port(), "--live") as process:
        url = address(process)
        found = news(url)
        assert found["state"] == "running"
        assert "0 sites, 0 runs" in str(found["parts"])
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        until(lambda: is_gone(url))


def test_the_page_shows_what_real_sites_did(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images")
    with LocalFederation(images, tmp_path / "federation").start(("a", "b", "held")) as federation:
        config = tiny_job(images, sources=("a", "b"), rounds=2)
        terms = RoundPolicy(deadline=600.0)
        run_on_flower(config, coordinator=federation.coordinator, out=tmp_path / "run", terms=terms)
        assert federation.coordinator.home is not None
        source = FederationSource(federation.coordinator.home)
        source.look()
        view = source.view()
    tables = view.parts["tables"]
    for site in ("a", "b", "held"):
        assert f">{site}</th>" in tables
    assert "no longer admitted" not in tables
    assert ">finished<" in tables
    assert "chart-scores-1" in view.charts
    assert 'href="report"' in view.parts["result"]
