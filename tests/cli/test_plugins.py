"""`--plugin FILE`: names of a file outside the package work in `list`, `train` and the workers of `bench`."""

from __future__ import annotations

import json

import pytest

PLUGIN = '''
import torch

from unseen.callbacks.base import CALLBACKS, Callback
from unseen.training.optimizers import OPTIMIZERS, Optimizer

OPTIMIZERS.register("nadam")(Optimizer(torch.optim.NAdam, "Adam with Nesterov momentum"))


@CALLBACKS.register("event-file")
class EventFile(Callback):
    """Writes the name of every event into events.txt of the run folder."""

    def __init__(self, folder):
        self.path = folder / "events.txt"

    def on_record(self, record):
        with self.path.open("a") as file:
            file.write(record["event"] + "\\n")
'''
SHORT = ("--rounds", "1", "--batch-size", "16", "--batches-per-epoch", "1", "--optimizer", "nadam")


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "my_plugin.py"
    path.write_text(PLUGIN)
    return path


def run(start_unseen, *arguments):
    """Run a command as a process, since a plugin's names stay registered in the process that loads it."""
    process = start_unseen(*arguments)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.mark.parametrize("before", [True, False], ids=["before the command", "after it"])
def test_a_plugin_is_listed(start_unseen, plugin, before):
    option = ("--plugin", plugin)
    words = ("list", "optimizers", "--json")
    code, out, err = run(start_unseen, *(option + words if before else words + option))
    assert code == 0, err
    found = {row["optimizer"]: row["what it is"] for row in json.loads(out)}
    assert found["nadam"] == "Adam with Nesterov momentum" and "sgd" in found


def test_a_run_uses_what_a_plugin_registers_and_is_tracked(start_unseen, plugin, tmp_path):
    words = ("train", "rotated-digits", "--hold-out", "75", *SHORT, "--plugin", plugin, "--out", "run")
    code, _, err = run(start_unseen, *words, "--track", "event-file", "--json")
    assert code == 0, err
    events = (tmp_path / "run/events.txt").read_text().split()
    assert {"start", "round", "evaluation"} <= set(events)
    recorded = (tmp_path / "run/config.toml").read_text()
    assert 'optimiser = "nadam"' in recorded and "event-file" not in recorded, "no part of the run's identity"


def test_the_workers_of_a_bench_know_a_plugin(start_unseen, plugin):
    words = ("bench", "rotated-digits", "--methods", "fedavg", "--hold-out", "75", "--seeds", "1", *SHORT)
    code, out, err = run(start_unseen, *words, "--plugin", plugin, "--out", "bench", "--json")
    assert code == 0, err
    assert len(json.loads(out)["results"]) == 1


def test_a_wrong_plugin_and_a_wrong_tracker_are_one_line(unseen, tmp_path):
    answer = unseen("list", "methods", "--plugin", "nowhere.py")
    assert answer.code == 2 and answer.err.startswith("error: --plugin nowhere.py is not a file")
    words = ("train", "rotated-digits", "--hold-out", "75", "--track", "tensorbord", "--out", "run")
    answer = unseen(*words)
    assert answer.code == 2 and "unknown callback 'tensorbord'" in answer.err
    assert not (tmp_path / "run").exists()
