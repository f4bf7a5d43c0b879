"""A run begun before the redesign is resumed by this version, to the weights that the old one reaches.

The archive holds a run of SCAFFOLD (client and server state) on a small table, killed in round 2 of 5,
and the model of the same run left alone. Both were made with commit 8ef582c.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from unseen.runner.run import run
from unseen.runs.checkpoint import Checkpoint, StateStore
from unseen.runs.folder import RunFolder, resume_config
from unseen.runs.reader import read_run

ARCHIVE = Path(__file__).with_name("run_before_redesign.tar.xz")


@pytest.fixture
def old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def test_an_unfinished_run_of_the_version_before_is_resumed_to_the_same_weights(old_run: Path) -> None:
    result = run(resume_config(old_run, {}), out=old_run, resume=True, report=False)
    assert result.values["run_id"] == "2d9521f0fc18"
    found = load_file(RunFolder(old_run).model)
    expected = load_file(old_run.with_name("expected.safetensors"))
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6)
    assert [record["round"] for record in read_run(old_run).rounds] == [1, 2, 3, 4, 5]


def test_its_checkpoint_client_state_and_records_are_read_as_they_were(old_run: Path) -> None:
    folder = RunFolder(old_run)
    checkpoint = Checkpoint.load(folder.checkpoint)
    assert (checkpoint.run_id, checkpoint.round) == ("2d9521f0fc18", 1)
    assert checkpoint.client_states == {"north": 1, "south": 1}
    states = StateStore(folder.client_states, checkpoint.client_states)
    assert all(len(states.read(client)) for client in ("north", "south"))
    assert [record["event"] for record in read_run(old_run).records][:3] == ["start", "round", "evaluation"]
