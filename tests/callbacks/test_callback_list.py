"""Several callbacks as one: a failing one is dropped, and only `StopTrainingError` ends a run."""

from __future__ import annotations

import pytest

from unseen.callbacks.base import Callback, CallbackList, StopTrainingError, make_callbacks
from unseen.errors import UsageError
from unseen.runs.records import Record


class Broken(Callback):
    """Fails on every record."""

    def on_record(self, record: Record) -> None:
        raise ValueError("disk full")


class Notes(Callback):
    """Keeps what it is called with."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.records: list[Record] = []

    def on_note(self, note: str) -> None:
        self.notes.append(note)

    def on_record(self, record: Record) -> None:
        self.records.append(record)


def test_a_callback_that_raises_is_dropped_with_one_note() -> None:
    notes = Notes()
    callbacks = CallbackList([Broken(), notes])
    callbacks.on_record({"event": "round", "round": 1})
    callbacks.on_record({"event": "round", "round": 2})
    assert [record["round"] for record in notes.records] == [1, 2]
    (note,) = notes.notes
    assert "Broken" in note and "disk full" in note and "the run continues" in note


def test_without_other_callbacks_the_note_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="disk full"):
        CallbackList(Broken()).on_record({"event": "round"})


def test_a_callback_may_stop_the_run() -> None:
    class Stop(Callback):
        def on_samples(self, count: int) -> None:
            raise StopTrainingError("enough")

    with pytest.raises(StopTrainingError, match="enough"):
        CallbackList([Stop()]).on_samples(4)


def test_an_unknown_callback_is_refused_with_the_nearest_name(tmp_path) -> None:
    with pytest.raises(UsageError, match="tensorboard"):
        make_callbacks(["tensorbord"], tmp_path)
