"""The TensorBoard tracker on a real run: its tags and steps, on resume too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unseen
from unseen.callbacks.base import Callback, StopTrainingError, make_callbacks
from unseen.data import DataSet
from unseen.errors import UsageError
from unseen.runs.folder import RunFolder
from unseen.runs.records import Record

pytest.importorskip("tensorboard")


class StopInRound(Callback):
    """Ends the run, as a crash would, once a round's record is written."""

    def __init__(self, round: int) -> None:
        self.round = round

    def on_record(self, record: Record) -> None:
        if record["event"] == "round" and record["round"] == self.round:
            raise StopTrainingError("enough")


def images() -> DataSet:
    rng, count = np.random.default_rng(0), 18
    pixels = rng.integers(0, 256, (3 * count, 8, 8), dtype=np.uint8)
    return unseen.from_arrays(pixels, np.arange(3 * count) % 3, np.repeat(["a", "b", "c"], count))


def train(out: Path, *more: Callback, resume: bool = False) -> unseen.RunResult:
    return unseen.train(
        images(),
        hold_out="c",
        out=out,
        rounds=3,
        batch_size=4,
        workers=1,
        resume=resume,
        callbacks=[*make_callbacks(["tensorboard"], out), *more],
    )


def read_log(out: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(RunFolder(out).tensorboard))
    log.Reload()
    return log


def steps(out: Path, tag: str) -> list[int]:
    return [event.step for event in read_log(out).Scalars(tag)]


def test_a_run_is_tracked_with_every_metric_per_domain_and_split(tmp_path: Path) -> None:
    result = train(tmp_path / "run")
    log = read_log(tmp_path / "run")
    tags = log.Tags()
    assert {"train/loss", "traffic/bytes_up", "time/round_seconds"} <= set(tags["scalars"])
    assert {"accuracy/target/c", "accuracy/validation/a", "loss/validation/b"} <= set(tags["scalars"])
    assert any(tag.startswith("distances/") for tag in tags["scalars"])
    assert tags["images"] == ["scores"]
    assert any("configuration" in tag for tag in tags["tensors"])
    assert steps(tmp_path / "run", "train/loss") == [1, 2, 3]
    chosen = result.values["selected_round"]
    tracked = {event.step: event.value for event in log.Scalars("accuracy/target/c")}
    assert tracked[chosen] == pytest.approx(result.metrics["target"]["accuracy"])


def test_a_resumed_run_repeats_no_step(tmp_path: Path) -> None:
    with pytest.raises(StopTrainingError):
        train(tmp_path / "run", StopInRound(2))
    assert steps(tmp_path / "run", "train/loss") == [1, 2]
    train(tmp_path / "run", resume=True)
    assert steps(tmp_path / "run", "train/loss") == [1, 2, 3]
    assert steps(tmp_path / "run", "accuracy/target/c") == [1, 2, 3]


def test_without_the_library_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"unseen\[track\]"):
        make_callbacks(["tensorboard"], tmp_path)
