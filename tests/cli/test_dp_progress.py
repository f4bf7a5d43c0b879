"""The progress line tells the epsilon spent, and no loss where none left the clients."""

from __future__ import annotations

import io

from rich.console import Console

from unseen.cli.progress import LiveProgress


def line_after(**record) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    with LiveProgress(console, label="fedavg") as progress:
        progress.on_train_start(first_round=1, rounds=3, samples=10)
        progress.on_record({"event": "round", "round": 1, **record})
        (task,) = progress._progress.tasks
        return str(task.fields["note"])


def test_epsilon_stands_in_the_line():
    line = line_after(loss=0.25, protection={"epsilon": 2.3456, "delta": 1e-5})
    assert "loss 0.250" in line and "epsilon 2.35" in line


def test_a_loss_that_did_not_leave_is_left_out():
    assert "loss" not in line_after(loss=None, protection={"epsilon": 1.0})
    assert "epsilon" not in line_after(loss=1.0)
