"""The ledger of what left a site."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_sites import LoopbackGrid, tiny_job

from unseen.callbacks.base import Callback
from unseen.deploy import coordinator
from unseen.deploy.coordinator import RoundPolicy, coordinate
from unseen.deploy.ledger import Ledger, append_entry, describe_entry


def test_the_ledger_names_every_kind_of_value_that_left(
    grid: LoopbackGrid, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "SETTLED_SECONDS", 0.0)
    coordinate(
        grid,  # type: ignore[arg-type]
        tiny_job(images, method="scaffold", rounds=1),
        out=tmp_path / "run",
        resume=False,
        terms=RoundPolicy(deadline=30.0),
        callbacks=Callback(),
    )
    ledger = Ledger(tmp_path)
    for site, question, answer in grid.log:
        if site == "a":
            append_entry(tmp_path, question, answer)
    lines = ledger.new()
    assert ledger.new() == []
    assert [line["ask"] for line in lines][:3] == ["census", "train", "evaluate"]
    (trained,) = [line for line in lines if line["ask"] == "train"]
    (update,) = [
        answer for site, question, answer in grid.log if site == "a" and question.header["ask"] == "train"
    ]
    assert trained["values"]["model weights"] == update.arrays["a/weights"].nbytes
    assert len(trained["values"]) == 3, "weights, the control variate, numbers"
    assert trained["bytes"] == update.nbytes == sum(trained["values"].values())
    assert trained["round"] == 1
    (sentence,) = describe_entry(trained)
    assert sentence.startswith("round 1: trained; sent model weights")


def test_errors_and_notices_are_told() -> None:
    line = {"ask": "train", "round": 2, "values": {}, "error": "disk full", "notice": "round 1: set aside"}
    assert list(describe_entry(line)) == [
        "the coordinator says: round 1: set aside",
        "request failed: disk full",
    ]
