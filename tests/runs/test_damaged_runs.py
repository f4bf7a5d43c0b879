"""A damaged, short or missing file of a run is refused in one line, and the folder stays as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from unseen.callbacks.base import Callback
from unseen.checksums import CHECKSUMS
from unseen.config import RunConfig
from unseen.data import DataSet
from unseen.errors import UnseenError
from unseen.runner.run import run
from unseen.runs.checkpoint import Checkpoint, StateStore
from unseen.runs.folder import RunFolder, resume_config
from unseen.runs.reader import read_run

OPTIONS = {"hold_out": "held", "rounds": 3, "batch_size": 4, "workers": 1, "method": "scaffold", "lr": 0.05}


class StopAfterTwo(Callback):
    def on_record(self, record):
        if record["event"] == "evaluation" and record["round"] == 3:
            raise KeyboardInterrupt


class Notes(Callback):
    def __init__(self):
        self.notes = []

    def on_note(self, note):
        self.notes.append(note)


def go_on(folder: Path, data: DataSet, **options):
    config = RunConfig.from_mapping({"data": "tiny", **OPTIONS})
    return run(config, out=folder, resume=True, data=data, report=False, **options)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, make_tiny_data) -> tuple[Path, DataSet]:
    """A run of a method with client state, stopped after the second of three rounds."""
    folder, data = tmp_path_factory.mktemp("runs") / "stopped", make_tiny_data()
    with pytest.raises(KeyboardInterrupt):
        go_on(folder, data, callbacks=[StopAfterTwo()])
    assert Checkpoint.load(RunFolder(folder).checkpoint).round == 2
    return folder, data


@pytest.fixture
def folder(stopped, tmp_path) -> RunFolder:
    shutil.copytree(stopped[0], tmp_path / "run")
    return RunFolder(tmp_path / "run")


def contents(folder: RunFolder, kept: int | None = None) -> dict[str, bytes]:
    """Every file; of the records the first `kept` bytes, since what follows the checkpoint is run again."""
    found = {
        str(path.relative_to(folder.path)): path.read_bytes()
        for path in folder.path.rglob("*")
        if path.is_file() and path.name != "lock"
    }
    if folder.records.name in found:
        found[folder.records.name] = found[folder.records.name][:kept]
    return found


def flip(path: Path, place: int) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 0x40
    path.write_bytes(damaged)


def rewrite(path: Path, change: Callable[[dict], None], tensors: dict | None = None) -> None:
    """Write a checkpoint with other facts, without a checksum, as an older version would."""
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["checkpoint"])
        kept = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
    change(facts)
    save_file(kept | (tensors or {}), path, {"checkpoint": json.dumps(facts)})


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:700])


def client_file(folder: RunFolder) -> Path:
    return sorted(folder.client_states.iterdir())[0]


DAMAGES = {
    "R3: bytes of the weights": (lambda f: flip(f.checkpoint, -40), "checksum differs"),
    "R3: bytes of the checkpoint's header": (lambda f: flip(f.checkpoint, 60), "not a usable checkpoint"),
    "R3: a checkpoint cut short": (lambda f: cut(f.checkpoint), "not a usable checkpoint"),
    "R3: bytes of a client's state": (lambda f: flip(client_file(f), -3), "state of client"),
    "R3: a client's state is missing": (lambda f: client_file(f).unlink(), "state of client"),
    "R1: records cut short": (lambda f: cut(f.records), "has 700 bytes"),
    "R2: records deleted": (lambda f: f.records.unlink(), "is missing"),
    "R2: checkpoint deleted": (lambda f: f.checkpoint.unlink(), "records of 3 rounds but no checkpoint"),
    "R3: a digit of the records": (lambda f: flip(f.records, 500), "records.jsonl"),
    "R5: records that are not UTF-8": (lambda f: f.records.write_bytes(b"\x84" * 99999), "is damaged"),
    "R5: a field of a newer version": (
        lambda f: rewrite(f.checkpoint, lambda facts: facts.update(new_field=1)),
        "newer version",
    ),
    "R5: a round beyond the last": (
        lambda f: rewrite(f.checkpoint, lambda facts: facts.update(round=10**9)),
        "round 1000000000 is done",
    ),
    "R5: a negative length of records": (
        lambda f: rewrite(f.checkpoint, lambda facts: facts.update(records_bytes=-5)),
        "records_bytes = -5",
    ),
    "R5: a round that is text": (
        lambda f: rewrite(f.checkpoint, lambda facts: facts.update(round="2")),
        "expected a whole number",
    ),
    "R5: facts that are a list": (
        lambda f: save_file({"weights": torch.zeros(1)}, f.checkpoint, {"checkpoint": "[]"}),
        "not a usable checkpoint",
    ),
    "R5: weights of another length": (
        lambda f: rewrite(f.checkpoint, lambda facts: None, {"weights": torch.zeros(10)}),
        "shape (10,)",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_in_one_line_and_changes_nothing(stopped, folder, damage):
    """R1, R2, R3, R5: none of these may train on, erase records or end in a traceback."""
    harm, words = DAMAGES[damage]
    kept = Checkpoint.load(folder.checkpoint).records_bytes
    harm(folder)
    before = contents(folder, kept)
    with pytest.raises(UnseenError) as refused:
        go_on(folder.path, stopped[1])
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert contents(folder, kept) == before


def test_an_undamaged_run_goes_on_to_the_same_weights(stopped, folder, tmp_path):
    go_on(folder.path, stopped[1])
    go_on(tmp_path / "whole", stopped[1])
    one, two = (Checkpoint.load(RunFolder(tmp_path / name).checkpoint) for name in ("run", "whole"))
    assert torch.equal(one.weights, two.weights) and one.round == two.round == 3


def test_a_checkpoint_without_checksum_loads_and_says_so_once(stopped, folder):
    """Files of older versions stay usable."""
    rewrite(folder.checkpoint, lambda facts: facts.pop("records_sum"))
    seen = Notes()
    go_on(folder.path, stopped[1], callbacks=[seen])
    assert sum("without a checksum" in note for note in seen.notes) == 1


def test_a_run_killed_in_its_first_round_starts_again(stopped, folder, tmp_path):
    """R2: without a checkpoint, records of the first round alone are no loss."""
    first = folder.records.read_bytes().split(b"\n")[:2]
    folder.records.write_bytes(b"\n".join(first))
    folder.checkpoint.unlink()
    assert go_on(folder.path, stopped[1]).values["selected_round"] >= 1


def test_a_finished_run_whose_checkpoint_was_removed_keeps_its_records(stopped, folder):
    """R2: the job of a bench has no checkpoint; resuming it must not erase it."""
    go_on(folder.path, stopped[1])
    folder.checkpoint.unlink()
    before = contents(folder)
    with pytest.raises(UnseenError, match="finished run without its checkpoint"):
        go_on(folder.path, stopped[1])
    assert contents(folder) == before


def test_client_state_of_an_older_version_is_read(tmp_path):
    store = StateStore(tmp_path, {"a": 1})
    save_file({"x": torch.ones(2)}, store.path("a", 1))
    assert store.read("a")["x"].tolist() == [1, 1]


def test_a_changed_configuration_of_a_run_is_refused(folder):
    """R3, R5: rounds = 'many' ended in a traceback; another number would have been another run."""
    text = folder.config.read_text()
    folder.config.write_text(text.replace("rounds = 3", "rounds = 5"))
    with pytest.raises(UnseenError, match=r"config\.toml was changed or damaged.*delete the last line"):
        resume_config(folder.path, {})
    without_sum = text.replace("rounds = 3", "rounds = 'many'").rsplit("# checksum", 1)[0]
    folder.config.write_text(without_sum)
    with pytest.raises(UnseenError, match=r"rounds = 'many': expected a whole number"):
        resume_config(folder.path, {})
    folder.config.write_text(text.rsplit("# checksum", 1)[0])
    assert resume_config(folder.path, {}).rounds == 3, "files of older versions have no checksum"


def test_an_edited_configuration_is_still_a_job_file(folder):
    folder.config.write_text(folder.config.read_text().replace("rounds = 3", "rounds = 5"))
    assert RunConfig.load(folder.config).rounds == 5


@pytest.mark.parametrize("name", ["records.jsonl", "result.json"])
def test_a_finished_run_whose_files_were_changed_is_not_reported(stopped, folder, name):
    """R3: the numbers of a report come from these files."""
    go_on(folder.path, stopped[1])
    assert read_run(folder.path).finished
    flip(folder.path / name, 300)
    with pytest.raises(UnseenError, match="its checksum differs"):
        read_run(folder.path)
    (folder.path / CHECKSUMS).unlink()
    folder.checkpoint.unlink()
    flip(folder.path / name, 300)
    assert read_run(folder.path).finished, "runs of older versions have no checksums"


def test_the_records_of_an_unfinished_run_are_compared_with_its_checkpoint(folder):
    """R3: a report of a run that is still training."""
    assert len(read_run(folder.path).rounds) == 3
    flip(folder.records, 200)
    with pytest.raises(UnseenError, match="is damaged"):
        read_run(folder.path)
