"""Following a run in another process: what a listener hears is written down there and replayed here."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from unseen.callbacks.base import Listener
from unseen.errors import UnseenError, UsageError
from unseen.runs.records import Record

FIRST_SIGN_SECONDS = 300.0
POLL_SECONDS = 0.2


class Notebook(Listener):
    """Writes every call as a line of JSON. Nobody may be reading: that does not disturb the run."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._write("begun", process=os.getpid())

    def preparing(self, what: str, done: int, total: int) -> None:
        """Pass on."""
        self._write("preparing", what=what, done=done, total=total)

    def training_starts(self, *, first_round: int, rounds: int, samples: int) -> None:
        """Pass on."""
        self._write("training_starts", first_round=first_round, rounds=rounds, samples=samples)

    def samples_done(self, count: int) -> None:
        """Pass on."""
        self._write("samples_done", count=count)

    def recorded(self, record: Record) -> None:
        """Pass on."""
        self._write("recorded", record=record)

    def ended(self, error: Exception | None = None) -> None:
        """Say that the run is over, or why it failed."""
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


def follow(path: Path, listener: Listener, *, first_sign: float = FIRST_SIGN_SECONDS) -> None:
    """Replay a notebook to a listener until the run ends; raise what ended it."""
    process = 0
    for line in _lines(path, first_sign=first_sign):
        if line is None:
            if process and not _alive(process):
                raise UnseenError(
                    "the coordinator's process ended without a word (was the SuperLink stopped?); "
                    "finished rounds are kept, go on with --resume"
                )
            continue
        call, values = line["call"], line["values"]
        if call == "begun":
            process = values["process"]
        elif call == "ended":
            if values["error"] is not None:
                raise (UsageError if values["usage"] else UnseenError)(values["error"])
            return
        elif call in ("samples_done", "recorded"):
            getattr(listener, call)(*values.values())
        else:
            getattr(listener, call)(**values)


def _lines(path: Path, *, first_sign: float) -> Iterator[dict[str, Any] | None]:
    """Yield the lines as they come, and None whenever there is nothing new."""
    patience = time.monotonic() + first_sign
    while not path.exists():
        if time.monotonic() > patience:
            raise UnseenError(
                f"the coordinator took the job, but nothing began here within {first_sign:g} s: run this "
                "command on the coordinator's own machine, where `unseen up` runs, and look at its log"
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
