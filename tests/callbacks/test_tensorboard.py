"""The TensorBoard tracker on a real run: its tags and steps, on resume too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tracked_runs import ROUNDS, StopInRound, recorded_points
from tracked_runs import train as train_tracked

import unseen
from unseen.callbacks.base import Callback, RunEnd, StopTrainingError, make_callbacks
from unseen.callbacks.tracking import replay
from unseen.errors import UsageError
from unseen.runs.folder import RunFolder
from unseen.runs.reader import read_run

pytest.importorskip("tensorboard")


def train(out: Path, *more: Callback, resume: bool = False) -> unseen.RunResult:
    return train_tracked(out, *make_callbacks(["tensorboard"], out), *more, resume=resume)


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


def test_afterwards_gives_the_same_curves_as_live(tmp_path: Path) -> None:
    train(tmp_path / "live")
    train_tracked(tmp_path / "later")
    run = read_run(tmp_path / "later")
    end = RunEnd(run.folder, run.result or {})
    for _ in range(2):
        replay(run, *make_callbacks(["tensorboard"], run.folder), end)
    live, later = (
        {tag: steps(folder, tag) for tag in read_log(folder).Tags()["scalars"]}
        for folder in (tmp_path / "live", run.folder)
    )
    assert live == later
    log = read_log(run.folder)
    for (name, step), value in recorded_points(run.folder).items():
        (found,) = [event.value for event in log.Scalars(name) if event.step == step]
        assert found == pytest.approx(value)


def test_a_log_of_an_older_version_is_replaced_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(StopTrainingError):
        train(tmp_path / "run", StopInRound(2))
    RunFolder(tmp_path / "run").tracking.unlink()
    train(tmp_path / "run", resume=True)
    assert steps(tmp_path / "run", "train/loss") == list(range(1, ROUNDS + 1))


def test_without_the_library_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"unseen\[track\]"):
        make_callbacks(["tensorboard"], tmp_path)
