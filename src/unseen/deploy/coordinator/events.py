"""Follow a run in another process: an event log written there and replayed to callbacks here."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from unseen.callbacks.base import Callback
from unseen.errors import UnseenError, UsageError
from unseen.runs.records import Record

FIRST_SIGN_SECONDS = 300.0
POLL_SECONDS = 0.2


class EventLog(Callback):
    """Writes every callback event as a line of JSON; the run does not depend on anyone reading it."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._write("begun", process=os.getpid())

    def on_prepare(self, what: str, done: int, total: int) -> None:
        """Pass on."""
        self._write("on_prepare", what=what, done=done, total=total)

    def on_note(self, note: str) -> None:
        """Pass on."""
        self._write("on_note", note=note)

    def on_train_start(self, *, first_round: int, rounds: int, samples: int) -> None:
        """Pass on."""
        self._write("on_train_start", first_round=first_round, rounds=rounds, samples=samples)

    def on_samples(self, count: int) -> None:
        """Pass on."""
        self._write("on_samples", count=count)

    def on_record(self, record: Record) -> None:
        """Pass on."""
        self._write("on_record", record=record)

    def ended(self, error: Exception | None = None) -> None:
        """Write that the run has ended, or why it failed."""
        said = (
            str(error)
            if isinstance(error, UnseenError) or error is None
            else f"{type(error).__name__}: {error}"
        )
        self._write("ended", error=None if error is None else said, usage=isinstance(error, UsageError))

    def _write(self, call: str, **values: Any) -> None:
        if self.path is None:
            return
        with suppress(OSError), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"call": call, "values": values}) + "\n")


def follow(path: Path, callback: Callback, *, first_sign: float = FIRST_SIGN_SECONDS) -> None:
    """Replay an event log to a callback until the run ends; raise what ended it."""
    process = 0
    for line in _lines(path, first_sign=first_sign):
        if line is None:
            if process and not _alive(process):
                raise UnseenError(
                    "the coordinator's process ended without a message (was the SuperLink stopped?); "
                    "finished rounds are kept, continue with --resume"
                )
            continue
        call, values = line["call"], line["values"]
        if call == "begun":
            process = values["process"]
        elif call == "ended":
            if values["error"] is not None:
                raise (UsageError if values["usage"] else UnseenError)(values["error"])
            return
        elif call == "on_train_start":
            callback.on_train_start(**values)
        else:
            getattr(callback, call)(*values.values())


def _lines(path: Path, *, first_sign: float) -> Iterator[dict[str, Any] | None]:
    """Yield the lines as they arrive, and None whenever there is nothing new."""
    patience = time.monotonic() + first_sign
    while not path.exists():
        if time.monotonic() > patience:
            raise UnseenError(
                f"the coordinator took the job, but nothing started here within {first_sign:g} s: run this "
                "command on the coordinator's own machine, where `unseen up` runs, and check its log"
            )
        time.sleep(POLL_SECONDS)
        yield None
    with path.open(encoding="utf-8") as file:
        rest = ""
        while True:
            rest += file.readline()
            if rest.endswith("\n"):
                yield json.loads(rest)
                rest = ""
            else:
                yield None
                time.sleep(POLL_SECONDS)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
