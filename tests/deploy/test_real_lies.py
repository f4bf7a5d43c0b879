"""A lying site among real Flower processes: its answers are faults, and the run completes with the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_sites import tiny_job

from unseen.deploy.coordinator.coordinator import RoundPolicy
from unseen.deploy.coordinator.submit import run_on_flower
from unseen.deploy.testing import LocalFederation
from unseen.registry import PLUGINS_VARIABLE
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.folder import RunFolder
from unseen.runs.records import read_records

pytestmark = pytest.mark.deployment
LIE = """
from unseen.deploy.site import site

honest = site._numbers
site._numbers = lambda update: {**honest(update), "samples": 10**18, "diagnostics": {"x\\n": "y"}}
"""


def test_a_lying_site_costs_its_own_part_of_every_round(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D4, D5: with samples=1e18 one site owned the model, and diagnostics of another kind ended the run."""
    (tmp_path / "lie.py").write_text(LIE, encoding="utf-8")
    config = tiny_job(images, rounds=2, evaluate_every=2, sources=("a", "b", "c"))
    with LocalFederation(images, tmp_path / "federation", secure=False).start(
        ("b", "c", "held")
    ) as federation:
        monkeypatch.setenv(PLUGINS_VARIABLE, str(tmp_path / "lie.py"))
        federation.start_site("a")
        monkeypatch.delenv(PLUGINS_VARIABLE)
        run_on_flower(
            config,
            coordinator=federation.coordinator,
            out=tmp_path / "run",
            terms=RoundPolicy(deadline=1200.0, min_sites=2),
        )
    records = read_records(RunFolder(tmp_path / "run").records)
    faults = [(each["round"], each["client"]) for each in records if each["event"] == "fault"]
    assert faults == [(1, "a"), (2, "a")]
    assert [each["clients"] for each in records if each["event"] == "round"] == [["b", "c"], ["b", "c"]]
    assert torch.isfinite(Checkpoint.load(RunFolder(tmp_path / "run").checkpoint).weights).all()
