"""Records to trackers: live, resumed, afterwards and after a failure, every value arrives once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from tracked_runs import ROUNDS, Memory, StopInRound, recorded_points, train

from unseen.callbacks.base import Callback, RunEnd, StopTrainingError
from unseen.callbacks.tracked_values import describe_run
from unseen.callbacks.tracking import Moment, Tracking, forget, replay
from unseen.errors import UnseenError
from unseen.runs.folder import RunFolder
from unseen.runs.reader import read_run


class Notes(Callback):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, note: str) -> None:
        self.notes.append(note)


class FailingServer(Memory):
    """A server that is gone from a round on."""

    fails_from = 2

    def log(self, values: Mapping[str, float], moment: Moment) -> None:
        if moment.round >= self.fails_from:
            raise ConnectionError("connection\nrefused")
        super().log(values, moment)


def points(server: dict[str, list[tuple[str, int, float, float]]]) -> dict[tuple[str, int], float]:
    """The points of the only tracked run, each of which may be there once."""
    (found,) = server.values()
    times = Counter((name, step) for name, step, *_ in found)
    assert set(times.values()) == {1}, [key for key, count in times.items() if count > 1]
    return {(name, step): value for name, step, value, _ in found}


def send(folder: Path, tracker: Memory) -> Tracking:
    tracking, run = Tracking(tracker, folder), read_run(folder)
    replay(run, tracking, RunEnd(folder, run.result) if run.result else None)
    return tracking


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Memory]:
    """A run that was tracked while it trained."""
    out, tracker = tmp_path_factory.mktemp("tracked") / "run", Memory({})
    train(out, Tracking(tracker, out))
    return out, tracker


def test_live_and_afterwards_give_the_same_values_at_the_same_times(
    finished: tuple[Path, Memory],
) -> None:
    out, live = finished
    later = Memory({})
    forget(out, "memory")
    send(out, later)
    assert list(live.servers.values()) == list(later.servers.values())
    assert live.runs == later.runs
    found = points(later.servers)
    assert {
        key: value for key, value in found.items() if not key[0].startswith("result/")
    } == recorded_points(out)
    run = read_run(out)
    assert run.result is not None and run.selected_round is not None
    target = run.result["metrics"]["target"]["accuracy"]
    assert found["result/target/accuracy", run.selected_round] == target
    assert found["accuracy/target/c", run.selected_round] == target
    moments = [time for *_, time in next(iter(live.servers.values())) if time]
    assert moments == sorted(moments) and moments[0] > describe_run(run).started


def test_a_run_is_sent_once_however_often_it_is_replayed(finished: tuple[Path, Memory]) -> None:
    out, _ = finished
    forget(out, "memory")
    servers: dict[str, list[tuple[str, int, float, float]]] = {}
    assert send(out, Memory(servers)).sent == 2 * ROUNDS
    again = Memory(servers)
    assert send(out, again).sent == 0 and not again.endings
    points(servers)
    forget(out, "memory")
    assert send(out, Memory(servers)).sent == 2 * ROUNDS
    assert len(servers) == 2


def test_a_tracked_run_that_is_gone_is_made_again(finished: tuple[Path, Memory]) -> None:
    out, _ = finished
    send(out, Memory({}))
    elsewhere = Memory({})
    assert send(out, elsewhere).sent == 2 * ROUNDS
    points(elsewhere.servers)


@pytest.mark.parametrize("crash", [1, 2, 3])
def test_a_resumed_run_continues_the_same_tracked_run(tmp_path: Path, crash: int) -> None:
    out, servers = tmp_path / "run", {}
    with pytest.raises(StopTrainingError):
        train(out, Tracking(Memory(servers), out), StopInRound(crash))
    assert ("train/loss", crash) in points(servers)
    train(out, Tracking(Memory(servers), out), resume=True)
    expected, found = recorded_points(out), points(servers)
    timeless = {key for key in expected if not key[0].startswith("time/")}
    assert {key: found[key] for key in timeless} == {key: expected[key] for key in timeless}
    assert expected.keys() <= found.keys()


def test_a_tracker_attached_late_gets_the_earlier_rounds_too(tmp_path: Path) -> None:
    out, tracker = tmp_path / "run", Memory({})
    with pytest.raises(StopTrainingError):
        train(out, StopInRound(2))
    assert send(out, Memory(tracker.servers)).sent == 3
    assert not tracker.endings
    train(out, Tracking(tracker, out), resume=True)
    assert points(tracker.servers).keys() >= recorded_points(out).keys()


def test_a_server_that_is_gone_changes_nothing_but_a_note(tmp_path: Path) -> None:
    plain = train(tmp_path / "plain")
    out, server, notes = tmp_path / "run", FailingServer({}), Notes()
    tracked = train(out, Tracking(server, out), notes)
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "plain/model.safetensors").read_bytes()
    assert tracked.metrics == plain.metrics
    (note,) = [note for note in notes.notes if "dropped" in note]
    assert "connection refused" in note and "\n" not in note and f"unseen track {out} --to memory" in note
    assert send(out, Memory(server.servers)).sent == 2 * (ROUNDS - 1)
    assert points(server.servers).keys() >= recorded_points(out).keys()


def test_images_of_the_held_out_domain_stay_on_this_machine(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(out)
    assert read_run(out).final["examples"]
    here, elsewhere = Memory({}), Memory({}, remote=True)
    send(out, here)
    forget(out, "memory")
    send(out, elsewhere)
    sent_here, sent_elsewhere = ({path.name for path in each.endings[0].files} for each in (here, elsewhere))
    assert sent_here - sent_elsewhere == {"report.html", "records.jsonl"}
    assert {"config.toml", "result.json"} <= sent_elsewhere


def test_a_damaged_list_of_tracked_runs_is_noticed(finished: tuple[Path, Memory]) -> None:
    out, _ = finished
    RunFolder(out).tracking.write_text('{"memory here": {"id"')
    try:
        with pytest.raises(UnseenError, match=r"tracking\.json is damaged .* delete it"):
            send(out, Memory({}))
    finally:
        RunFolder(out).tracking.unlink()
