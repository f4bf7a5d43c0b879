"""Progress of Python calls: silent where nobody watches, one line elsewhere, functions as callbacks."""

from __future__ import annotations

import io
import sys

import pytest

import unseen
from unseen.callbacks.base import Callback, CallbackList
from unseen.callbacks.html_display import TerminalDisplay, find_display
from unseen.callbacks.run_status import DisplayProgress, RunStatus
from unseen.errors import UsageError

EVENTS = (
    {"event": "round", "round": 1, "loss": 0.5},
    {
        "event": "evaluation",
        "round": 1,
        "scores": [{"domain": "a", "split": "validation", "count": 4, "metrics": {"accuracy": 0.75}}],
    },
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_functions_are_callbacks_and_a_failing_one_is_named():
    seen = []

    def broken(record):
        raise ValueError("no room")

    callbacks = CallbackList([seen.append, broken])
    with pytest.warns(UserWarning, match=r"broken failed and is dropped; .*no room"):
        CallbackList(broken).on_record({"event": "round"})
    callbacks.on_record({"event": "round"})
    callbacks.on_record({"event": "evaluation"})
    assert [record["event"] for record in seen] == ["round", "evaluation"]


@pytest.mark.parametrize(
    ("given", "hint"), [("tensorboard", "not 'tensorboard'"), ([Callback], "call the class")]
)
def test_other_things_are_refused(given, hint):
    with pytest.raises(UsageError, match=f"callbacks takes Callback objects and functions.*{hint}"):
        CallbackList(given)


def test_a_terminal_gets_one_line_that_disappears(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    display = find_display(None)
    assert isinstance(display, TerminalDisplay) and find_display(False) is None
    with DisplayProgress(display, label="fedavg") as progress:
        progress.on_note("batch size 4")
        progress.on_train_start(first_round=1, rounds=2, samples=8)
        progress.on_samples(4)
    text = terminal.getvalue()
    assert " 25% fedavg: round 1/2" in text and "\n" not in text.partition("batch size 4")[0]
    assert text.endswith("batch size 4\n")


def test_where_nobody_watches_there_is_nothing(monkeypatch, capfd, tmp_path):
    assert find_display(True) is None
    options = {"rounds": 1, "batch_size": 16, "batches_per_epoch": 1}
    unseen.train("rotated-digits", hold_out="75", out=tmp_path / "run", **options)
    assert capfd.readouterr() == ("", "")


def test_the_line_says_how_far_a_run_is():
    status = RunStatus()
    status.start(first_round=1, rounds=3, samples=10)
    assert [status.update(event) for event in EVENTS] == ["", ""]
    assert status.text.startswith("round 2/3  loss 0.500  validation 75.0%")
    assert status.total == 30
    stopped = {"event": "stop", "round": 2, "rounds": 3, "reason": "no better"}
    assert status.update(stopped) == "stopped after round 2 of 3: no better"
