"""The `Callback` base class: observe a run while it trains, without any influence on what it computes.

A run calls `on_prepare` and `on_note` before the first round, `on_train_start` once, then `on_samples` and
`on_record` as it trains, and `on_train_end` when its folder is complete.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError, UsageError
from unseen.printable import hide_secrets
from unseen.registry import Registry
from unseen.runs.records import Record


class StopTrainingError(UnseenError):
    """Raised in a callback to end the run; the rounds of its last checkpoint are kept."""


def _no_figures() -> dict[str, bytes]:
    return {}


@dataclass(frozen=True)
class RunEnd:
    """A finished run, as callbacks get it.

    folder   its run folder
    result   the content of its result.json
    figures  draws the report's figures as PNG images by name; slow, so call it only if they are used
    """

    folder: Path
    result: Mapping[str, Any]
    figures: Callable[[], dict[str, bytes]] = field(default=_no_figures)


class Callback:
    """Base class of callbacks; every method does nothing unless overridden."""

    def on_prepare(self, what: str, done: int, total: int) -> None:
        """Receive the progress of slow preparation, such as decoding images."""

    def on_note(self, note: str) -> None:
        """Receive a remark for the user, such as what a protection costs."""

    def on_train_start(self, *, first_round: int, rounds: int, samples: int) -> None:
        """Called before `first_round` (above 1 on resume); a full round trains on about `samples` samples."""

    def on_samples(self, count: int) -> None:
        """Receive the number of samples that a client just trained on: called after every batch."""

    def on_record(self, record: Record) -> None:
        """Receive an event (round, evaluation, fault, ...) as it is written to the records."""

    def on_train_end(self, end: RunEnd) -> None:
        """Called at the end, when result, model and report are written."""


_LONGEST = 200
"""Characters of another library's message that a note repeats."""
RecordFunction = Callable[[Record], object]
"""A function that is called with every event as it is written to the records."""
Callbacks = Callback | RecordFunction | Iterable[Callback | RecordFunction] | None
"""What calls of the public API accept: one callback or function, several, or none."""


class FunctionCallback(Callback):
    """Calls a function with every record."""

    def __init__(self, function: RecordFunction) -> None:
        self.function = function

    def on_record(self, record: Record) -> None:
        """Call the function."""
        self.function(record)


def as_callback(given: Callback | RecordFunction) -> Callback:
    """Return a callback as it is and a function as one; refuse what is neither, such as a class."""
    if isinstance(given, Callback):
        return given
    if callable(given) and not isinstance(given, type):
        return FunctionCallback(given)
    raise UsageError(
        f"callbacks takes Callback objects and functions of a record, not {given!r}"
        + (": call the class" if isinstance(given, type) else "")
    )


class CallbackList(Callback):
    """Several callbacks as one. One that raises is dropped with a note; `StopTrainingError` propagates."""

    def __init__(self, callbacks: Callbacks = None) -> None:
        if isinstance(callbacks, Callback | str) or callable(callbacks):
            callbacks = (callbacks,)
        self.callbacks = [as_callback(each) for each in callbacks or ()]

    def on_prepare(self, what: str, done: int, total: int) -> None:
        """Pass on."""
        self._call(lambda callback: callback.on_prepare(what, done, total))

    def on_note(self, note: str) -> None:
        """Pass on."""
        self._call(lambda callback: callback.on_note(note))

    def on_train_start(self, *, first_round: int, rounds: int, samples: int) -> None:
        """Pass on."""
        self._call(
            lambda callback: callback.on_train_start(first_round=first_round, rounds=rounds, samples=samples)
        )

    def on_samples(self, count: int) -> None:
        """Pass on."""
        self._call(lambda callback: callback.on_samples(count))

    def on_record(self, record: Record) -> None:
        """Pass on."""
        self._call(lambda callback: callback.on_record(record))

    def on_train_end(self, end: RunEnd) -> None:
        """Pass on."""
        self._call(lambda callback: callback.on_train_end(end))

    def _call(self, call: Callable[[Callback], None]) -> None:
        for callback in tuple(self.callbacks):
            try:
                call(callback)
            except StopTrainingError:
                raise
            except Exception as error:
                self._drop(callback, error)

    def _drop(self, callback: Callback, error: Exception) -> None:
        """Drop a callback that failed, and report it to the remaining ones."""
        self.callbacks.remove(callback)
        name = getattr(getattr(callback, "function", None), "__name__", type(callback).__name__)
        note = f"{name} failed and is dropped; the run continues ({describe_error(error)})"
        if self.callbacks:
            self.on_note(note)
        else:
            warnings.warn(note, stacklevel=2)


def describe_error(error: Exception) -> str:
    """Describe an error on one line, with its type unless it was written for users."""
    text = hide_secrets(" ".join(str(error).split()))
    return text if isinstance(error, UnseenError) else f"{type(error).__name__}: {text[:_LONGEST]}"


CallbackFactory = Callable[[Path], Callback]
"""Factory of a callback for the run in a folder."""

CALLBACKS: Registry[CallbackFactory] = Registry(
    "callback",
    group="unseen.callbacks",
    builtin=("unseen.callbacks.tensorboard", "unseen.callbacks.mlflow", "unseen.callbacks.wandb_trackio"),
)


def make_callbacks(names: Iterable[str], folder: Path) -> list[Callback]:
    """Make the named callbacks for the run in `folder`."""
    return [CALLBACKS[name](folder) for name in names]
