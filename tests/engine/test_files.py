"""Records, checkpoints, client memory and folders: what is on disk survives what happens to processes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest
import torch

from unseen.errors import UnseenError, UsageError
from unseen.fileio import write_text
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.client_state import StateStore
from unseen.runs.folder import RunFolder
from unseen.runs.records import Records, read_records


def test_records_survive_a_torn_line(tmp_path):
    path = tmp_path / "records.jsonl"
    records = Records(path)
    records.append("round", round=1, loss=float("nan"), weights=torch.tensor([1.0, 2.0]))
    with path.open("ab") as file:
        file.write(b'{"event": "rou')
    assert read_records(path) == [{"event": "round", "round": 1, "loss": None, "weights": [1.0, 2.0]}]


def test_records_behind_the_checkpoint_are_dropped(tmp_path):
    path = tmp_path / "records.jsonl"
    records = Records(path)
    records.append("round", round=1)
    kept = records.bytes
    records.append("round", round=2)
    again = Records(path, keep_bytes=kept)
    again.append("round", round=2, second=True)
    assert [entry.get("second", False) for entry in read_records(path)] == [False, True]
    assert again.bytes == path.stat().st_size


def test_checkpoints_round_trip(tmp_path):
    point = Checkpoint("id", round=3, weights=torch.randn(5), selected=torch.randn(5), seconds=1.5)
    point.server, point.client_states, point.records_bytes = {"momentum": torch.ones(2)}, {"a/b": 2}, 77
    point.save(tmp_path / "c.safetensors")
    found = Checkpoint.load(tmp_path / "c.safetensors")
    assert torch.equal(found.weights, point.weights) and torch.equal(found.selected, point.selected)
    assert torch.equal(found.server["momentum"], torch.ones(2))
    assert (found.round, found.client_states, found.records_bytes, found.seconds) == (3, {"a/b": 2}, 77, 1.5)


def test_a_broken_checkpoint_is_named(tmp_path):
    (tmp_path / "c.safetensors").write_bytes(b"rubbish")
    with pytest.raises(UnseenError, match="not a usable checkpoint"):
        Checkpoint.load(tmp_path / "c.safetensors")


def test_client_memory_keeps_the_version_of_the_checkpoint(tmp_path):
    store = StateStore(tmp_path / "clients")
    state = store.read("site/1")
    assert dict(state) == {}
    state["model"] = torch.ones(3)
    store.write("site/1", state, round=1)
    committed = dict(store.versions)
    later = store.read("site/1")
    later["model"] = torch.zeros(3)
    store.write("site/1", later, round=2)
    after_crash = StateStore(tmp_path / "clients", committed)
    assert after_crash.read("site/1")["model"].tolist() == [1, 1, 1]
    after_crash.forget_old()
    assert len(list((tmp_path / "clients").iterdir())) == 1


def test_unchanged_client_memory_is_not_written_again(tmp_path):
    store = StateStore(tmp_path / "clients")
    state = store.read("a")
    state["x"] = torch.ones(1)
    store.write("a", state, round=1)
    store.write("a", store.read("a"), round=2)
    assert store.versions == {"a": 1}


def test_a_full_disk_keeps_the_old_file_and_names_the_new_one(tmp_path):
    """A limit on file sizes is the nearest thing to a full disk that a test can have."""
    target = tmp_path / "result.json"
    write_text(target, "old")
    code = (
        "import resource, signal, sys, pathlib\n"
        "from unseen.fileio import write_text\n"
        "from unseen.errors import UnseenError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "try:\n    write_text(pathlib.Path(sys.argv[1]), 'new' * 100)\n"
        "except UnseenError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=True
    )
    assert "could not write" in done.stdout and "result.json" in done.stdout
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 10


def test_a_folder_with_a_run_is_refused(tmp_path):
    folder = RunFolder(tmp_path)
    folder.require_free()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        folder.require_free()
    folder.config.write_text("")
    with pytest.raises(UsageError, match=r"unfinished run.*--resume"):
        folder.require_free()
    folder.result.write_text(json.dumps({}))
    with pytest.raises(UsageError, match="a finished run"):
        folder.require_free()


def test_two_processes_cannot_share_a_folder(tmp_path):
    first, second = RunFolder(tmp_path).locked(), RunFolder(tmp_path).locked()
    with first, pytest.raises(UnseenError, match="another process"), second:
        pass
    with RunFolder(tmp_path).locked():
        pass
