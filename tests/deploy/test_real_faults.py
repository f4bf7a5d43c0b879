"""Real Flower processes are killed in the middle of runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_sites import tiny_job

from unseen.callbacks.base import Callback
from unseen.config import RunConfig
from unseen.deploy.coordinator.coordinator import RoundPolicy
from unseen.deploy.coordinator.submit import run_on_flower
from unseen.deploy.testing import LocalFederation
from unseen.errors import UnseenError
from unseen.runner.run import run
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.folder import RunFolder
from unseen.runs.records import Record, read_records

pytestmark = pytest.mark.deployment
TERMS = RoundPolicy(deadline=1200.0)


class Once(Callback):
    """Does something when a kind of record comes for the first time, without holding up who follows."""

    def __init__(self, **on: Callable[[], None]) -> None:
        self.on = on
        self.threads: list[threading.Thread] = []

    def on_record(self, record: Record) -> None:
        if do := self.on.pop(record["event"], None):
            self.threads.append(threading.Thread(target=do))
            self.threads[-1].start()


def weights(out: Path) -> torch.Tensor:
    return Checkpoint.load(RunFolder(out).checkpoint).weights


def killed_superlink_is_continued(federation: LocalFederation, config: RunConfig, out: Path) -> None:
    killing = Once(round=lambda: federation.kill("superlink"))
    with pytest.raises(UnseenError, match=r"ended without a message.*--resume"):
        run_on_flower(config, coordinator=federation.coordinator, out=out, terms=TERMS, callbacks=killing)
    federation.start_superlink()
    run_on_flower(config, coordinator=federation.coordinator, out=out, resume=True, terms=TERMS)


def killed_site_comes_back(federation: LocalFederation, config: RunConfig, out: Path) -> None:
    changes = Once(round=lambda: federation.kill("b"), fault=lambda: federation.start_site("b"))
    run_on_flower(config, coordinator=federation.coordinator, out=out, terms=TERMS, callbacks=changes)


def test_killed_processes_cost_rounds_but_not_the_run(images: Path, tmp_path: Path) -> None:
    config = tiny_job(images, method="scaffold", sources=("a", "b"), evaluate_every=9)
    long = tiny_job(images, method="scaffold", sources=("a", "b"), rounds=8, evaluate_every=8)
    here = run(config, out=tmp_path / "here")
    with LocalFederation(images, tmp_path / "federation", secure=False).start(
        ("a", "b", "c", "held")
    ) as federation:
        killed_superlink_is_continued(federation, config, tmp_path / "superlink")
        killed_site_comes_back(federation, long, tmp_path / "site")
    assert torch.equal(weights(tmp_path / "superlink"), weights(here.folder))
    records = read_records(RunFolder(tmp_path / "site").records)
    lost = [record for record in records if record["event"] == "fault"]
    assert {fault["client"] for fault in lost} == {"b"}
    taken_part = [record["clients"] for record in records if record["event"] == "round"]
    assert taken_part[0] == ["a", "b"]
    assert ["a"] in taken_part
    assert taken_part[-1] == ["a", "b"]
