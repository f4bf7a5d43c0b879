"""What runs inside a bench's worker process: one job after another, until the pipe closes.

Data is loaded once and kept for the next job. A finished job keeps its model and records; its checkpoint
goes, and its page is written when asked for (`unseen report`). What a job computes depends on its
configuration alone, so which worker runs it, and after what, changes nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import traceback
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Thread

from unseen.callbacks.base import Listener
from unseen.config import RunConfig
from unseen.data import DataRequest, DataSet, load_data
from unseen.data.sources import no_progress
from unseen.engine.resources import keep_freed_memory
from unseen.errors import UnseenError
from unseen.evaluation import PRIMARY, mean_metric
from unseen.runner.prepare import data_request
from unseen.runner.run import run
from unseen.runs.folder import RunFolder
from unseen.runs.records import Record


@dataclass(frozen=True)
class Task:
    """A job to run: its configuration and its folder, in which an earlier try may have left rounds."""

    config: RunConfig
    folder: Path


@dataclass(frozen=True)
class Progress:
    """How far a job is; `validation` is the sources' validation metric after the latest evaluated round."""

    round: int
    rounds: int
    validation: float | None = None


@dataclass(frozen=True)
class Done:
    """The job is finished."""


@dataclass(frozen=True)
class Failed:
    """The job cannot be finished: why in a line, and the traceback unless the line says it all."""

    reason: str
    details: str = ""


def serve(pipe: Connection) -> None:
    """Run the tasks that come in; Ctrl-C is left to the parent, which ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_leave_with_parent, daemon=True).start()
    keep_freed_memory()
    loaded = _LoadedData()
    try:
        while True:
            task: Task = pipe.recv()
            pipe.send(_attempt(task, pipe, loaded))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _attempt(task: Task, pipe: Connection, loaded: _LoadedData) -> Done | Failed:
    listener = _Reporter(pipe)
    try:
        data = loaded.load(data_request(task.config))
        run(task.config, out=task.folder, resume=True, listener=listener, data=data, report=False)
        shutil.rmtree(RunFolder(task.folder).checkpoint.parent, ignore_errors=True)
    except UnseenError as error:
        return Failed(str(error))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        return Failed(f"{type(error).__name__}: {error}".splitlines()[0], traceback.format_exc())
    return Done()


class _LoadedData:
    """The data of the latest job; the next one mostly asks for the same."""

    def __init__(self) -> None:
        self._latest: tuple[DataRequest, DataSet] | None = None

    def load(self, request: DataRequest) -> DataSet:
        wanted = replace(request, progress=no_progress)
        if self._latest is None or self._latest[0] != wanted:
            self._latest = None
            self._latest = (wanted, load_data(request))
        return self._latest[1]


class _Reporter(Listener):
    """Tells the parent how far the job is."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._rounds = pipe, 0
        self._validation: float | None = None

    def training_starts(self, *, first_round: int, rounds: int, samples: int) -> None:
        self._rounds = rounds
        self._pipe.send(Progress(first_round - 1, rounds))

    def recorded(self, record: Record) -> None:
        if record["event"] == "evaluation":
            metrics = record["scores"][0]["metrics"]
            name = next(name for name in PRIMARY.values() if name in metrics)
            self._validation = mean_metric(record, "validation", name)
        if record["event"] in ("round", "evaluation"):
            self._pipe.send(Progress(record["round"], self._rounds, self._validation))


def _leave_with_parent() -> None:
    """End this process when the parent is gone, also in the middle of a round."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
