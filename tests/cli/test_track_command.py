"""`unseen track` as users type it: runs and benches after the fact, and one line for every mistake."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("tensorboard")
TABLE = "domain,target,x\n" + "\n".join(
    f"{domain},{'yes' if row % 2 else 'no'},{row % 2 + row % 7 / 10}"
    for domain in ("north", "south", "west")
    for row in range(40)
)
GRID = """
hold_out = ["west"]
[common]
data = "table.csv"
rounds = 1
batches_per_epoch = 1
batch_size = 8
[methods]
plain = { method = "fedavg" }
near = { method = "fedprox" }
"""
PLUGIN = """
from unseen.callbacks.base import CALLBACKS, Callback

@CALLBACKS.register("counts")
class Counts(Callback):
    def __init__(self, folder):
        self.folder, self.events = folder, []

    def on_record(self, record):
        self.events.append(record["event"])

    def on_train_end(self, end):
        (self.folder / "counts").write_text(" ".join(self.events) + f" {len(end.figures())}")
"""


@pytest.fixture
def run(unseen, tmp_path):
    """A finished run in the folder `run`."""
    (tmp_path / "table.csv").write_text(TABLE)
    answer = unseen("train", "table.csv", "--hold-out", "west", "--rounds", "2", "--out", "run")
    assert answer.code == 0, answer.err
    return tmp_path / "run"


def test_a_finished_run_is_sent_once(unseen, run):
    first = unseen("track", "run", "--to", "tensorboard", "--json")
    assert first.code == 0, first.err
    sent = json.loads(first.out)
    assert sent == [
        {"folder": "run", "name": "fedavg/west/0", "records": 4, "state": "finished", "place": "here"}
    ]
    assert list((run / "tensorboard").glob("events.*"))
    assert json.loads(unseen("track", "run", "--to", "tensorboard", "--json").out)[0]["records"] == 0
    again = unseen("track", "run", "--to", "tensorboard", "--new", "--json")
    assert json.loads(again.out)[0]["records"] == 4
    table = unseen("track", "run", "run", "--to", "tensorboard")
    assert table.out.count("fedavg/west/0") == 2


def test_the_jobs_of_a_bench_are_named_by_method_held_out_domain_and_seed(unseen, tmp_path):
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "grid.toml").write_text(GRID)
    assert unseen("bench", "grid.toml", "--workers", "1", "--out", "b").code == 0
    sent = json.loads(unseen("track", "b", "--to", "tensorboard", "--json").out)
    assert {row["name"] for row in sent} == {"plain/west/0", "near/west/0"}
    assert all(row["records"] == 2 for row in sent)


def test_a_plugin_is_called_as_by_the_run(unseen, run, tmp_path):
    (tmp_path / "counts.py").write_text(PLUGIN)
    answer = unseen("track", "run", "--to", "counts", "--plugin", "counts.py")
    assert answer.code == 0, answer.err
    assert (run / "counts").read_text() == "start round evaluation round evaluation final 1"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("nowhere", "--to", "tensorboard"), "nowhere is not a folder"),
        ((".", "--to", "tensorboard"), "is not a run folder"),
        ((".", "--to", "tensorbord"), "Did you mean 'tensorboard'?"),
        ((".", "--to", "tensorboard", "--server", "x"), "--server is for mlflow, wandb, trackio, not for"),
    ],
)
def test_wrong_use_is_one_line(unseen, arguments, line):
    answer = unseen("track", *arguments)
    assert answer.code != 0 and answer.out == ""
    assert line in answer.err and answer.err.count("\n") == 1


def test_a_server_elsewhere_is_refused_offline(unseen, run, monkeypatch):
    monkeypatch.setenv("UNSEEN_OFFLINE", "1")
    for tracker, variable in (("mlflow", "MLFLOW_TRACKING_URI"), ("wandb", "WANDB_BASE_URL")):
        monkeypatch.setenv(variable, "")
        monkeypatch.setenv("WANDB_MODE", "")
        answer = unseen("track", "run", "--to", tracker, "--server", "https://t.example.org")
        assert answer.code == 2 and answer.err.count("\n") == 1
        assert "UNSEEN_OFFLINE is set, which forbids to track with" in answer.err
    assert not (run / "tracking.json").exists()
