"""W&B offline and trackio's database, read back: every value once, live, resumed and afterwards."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tracked_runs import StopInRound, recorded_points, train

from unseen.callbacks.base import RunEnd, StopTrainingError, make_callbacks
from unseen.callbacks.tracking import forget, read_trails, replay
from unseen.errors import UsageError
from unseen.runs.folder import RunFolder
from unseen.runs.reader import read_run

Rows = list[tuple[int, dict[str, Any]]]
_OWN = ("round", "_", "scores/")
"""Beginnings of what the libraries add to a row: steps, times, and the sizes of images."""
_HEADER, _BLOCK, _PIECE = 7, 1 << 15, struct.Struct("<IHB")


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no settings of the user, and keep what the libraries store by themselves in the test's folder."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "TRACKIO_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))


def wandb_rows(out: Path) -> Rows:
    """Read the rows of all offline folders of a run, once W&B has completed its files."""
    rows: Rows = []
    for path in sorted(out.glob("wandb/offline-run-*/run-*.wandb")):
        ends = time.monotonic() + 60
        while not (records := list(wandb_records(path.read_bytes()))) or not records[-1].HasField("exit"):
            assert time.monotonic() < ends, f"W&B did not complete {path}"
            time.sleep(0.1)
        for record in records:
            if record.WhichOneof("record_type") == "history":
                items = {item.key or "/".join(item.nested_key): item for item in record.history.item}
                row = {key: json.loads(item.value_json) for key, item in items.items()}
                rows.append((record.history.step.num, row))
    return rows


def wandb_records(content: bytes) -> Iterator[Any]:
    """Read W&B's log: pieces of records in blocks, as in LevelDB."""
    from wandb.proto import wandb_internal_pb2

    at, whole = _HEADER, b""
    while at + _PIECE.size <= len(content):
        if (left := _BLOCK - at % _BLOCK) < _PIECE.size:
            at += left
            continue
        _, length, kind = _PIECE.unpack_from(content, at)
        at += _PIECE.size + length
        whole += content[at - length : at]
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def points(rows: Rows) -> dict[tuple[str, int], float]:
    """Name and round -> value; each may be there once."""
    found: dict[tuple[str, int], float] = {}
    for _, row in rows:
        for key, value in row.items():
            if isinstance(value, int | float) and not key.startswith(_OWN):
                assert (key, row["round"]) not in found
                found[key, row["round"]] = value
    return found


def without_result(found: dict[tuple[str, int], float]) -> dict[tuple[str, int], float]:
    return {key: value for key, value in found.items() if not key[0].startswith("result/")}


def send(out: Path, to: str) -> None:
    run = read_run(out)
    replay(run, *make_callbacks([to], out), RunEnd(out, run.result or {}))


def tracked_id(out: Path) -> str:
    (trail,) = read_trails(RunFolder(out).tracking).values()
    return trail.id


def test_wandb_writes_offline_into_the_run_folder_what_the_records_say(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    out = tmp_path / "run"
    plain = train(tmp_path / "plain")
    train(out, *make_callbacks(["wandb"], out))
    live = wandb_rows(out)
    assert without_result(points(live)) == recorded_points(out)
    steps = [step for step, _ in live]
    assert steps == sorted(set(steps)), "W&B drops rows whose step is not above the last"
    chosen = plain.values["selected_round"]
    assert points(live)["result/target/accuracy", chosen] == plain.metrics["target"]["accuracy"]
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "plain/model.safetensors").read_bytes()
    send(plain.folder, "wandb")
    timeless = {key: value for key, value in points(live).items() if "seconds" not in key[0]}
    later = {key: value for key, value in points(wandb_rows(plain.folder)).items() if "seconds" not in key[0]}
    assert later == timeless


def test_a_resumed_run_has_the_same_wandb_id_and_no_row_twice(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    out = tmp_path / "run"
    with pytest.raises(StopTrainingError):
        train(out, *make_callbacks(["wandb"], out), StopInRound(2))
    first = tracked_id(out)
    train(out, *make_callbacks(["wandb"], out), resume=True)
    assert tracked_id(out) == first
    assert len(list(out.glob(f"wandb/offline-run-*-{first}*"))) == 2
    rows = wandb_rows(out)
    assert points(rows).keys() >= recorded_points(out).keys()
    steps = [step for step, _ in rows]
    assert steps == sorted(set(steps))


def test_wandb_says_nothing_about_this_machine(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    out = tmp_path / "run"
    train(out, *make_callbacks(["wandb"], out))
    (path,) = out.glob("wandb/offline-run-*/run-*.wandb")
    content = path.read_bytes()
    for secret in (str(tmp_path), sys.executable, str(Path(__file__).parent)):
        assert secret.encode() not in content
    assert not list(out.glob("wandb/offline-run-*/files/requirements.txt"))
    assert not list(out.glob("wandb/offline-run-*/files/wandb-metadata.json"))


@pytest.mark.parametrize("variable", ["WANDB_MODE=online", "WANDB_BASE_URL=https://wandb.example.org"])
def test_wandb_elsewhere_is_refused_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("UNSEEN_OFFLINE", "1")
    monkeypatch.setenv(*variable.split("="))
    with pytest.raises(UsageError, match="UNSEEN_OFFLINE is set, which forbids to track with wandb at https"):
        make_callbacks(["wandb"], tmp_path)


def test_wandb_can_be_disabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    out = tmp_path / "run"
    train(out, *make_callbacks(["wandb"], out))
    assert not wandb_rows(out)


TRACKIO = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from tracked_runs import StopInRound, train
from unseen.callbacks.base import StopTrainingError, make_callbacks
out = Path({out!r})
try:
    train(out, *make_callbacks(["trackio"], out), StopInRound(2))
except StopTrainingError:
    pass
"""


def trackio_rows(folder: Path, id: str) -> Rows:
    with sqlite3.connect(folder / "unseen.db") as database:
        found = database.execute("select step, metrics from metrics where run_name = ? order by id", (id,))
        return [(step, {**json.loads(metrics), "round": step}) for step, metrics in found]


def test_trackio_has_every_value_once_live_resumed_and_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is chosen when it is imported, so a process of its own starts the run."""
    pytest.importorskip("trackio", reason="trackio wants an older Pillow: pip install 'unseen[trackio]'")
    out, folder = tmp_path / "run", tmp_path / "trackio"
    script = TRACKIO.format(tests=str(Path(__file__).parent), out=str(out))
    environment = {**os.environ, "TRACKIO_DIR": str(folder)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    first = tracked_id(out)
    assert {step for step, _ in trackio_rows(folder, first)} == {1, 2}
    resumed = script.replace("StopInRound(2))", "resume=True)")
    subprocess.run([sys.executable, "-c", resumed], env=environment, check=True)
    assert tracked_id(out) == first
    live = points(trackio_rows(folder, first))
    assert live.keys() >= recorded_points(out).keys()
    forget(out, "trackio")
    command = [sys.executable, "-m", "unseen", "track", str(out), "--to", "trackio", "--json"]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert json.loads(printed)[0]["records"] == 6
    later = points(trackio_rows(folder, tracked_id(out)))
    assert without_result(later) == recorded_points(out) and later.keys() == live.keys()


@pytest.mark.parametrize(
    "variable", ["TRACKIO_SPACE_ID=me/space", "TRACKIO_SERVER_URL=https://x.example.org?write_token=secret"]
)
def test_trackio_elsewhere_is_refused_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("UNSEEN_OFFLINE", "1")
    monkeypatch.setenv(*variable.split("=", 1))
    with pytest.raises(
        UsageError, match="UNSEEN_OFFLINE is set, which forbids to track with trackio"
    ) as refused:
        make_callbacks(["trackio"], tmp_path)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_without_the_library_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=rf"unseen\[{name}\]"):
        make_callbacks([name], tmp_path)
