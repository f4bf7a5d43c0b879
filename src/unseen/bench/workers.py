"""Parallel worker processes for jobs: the pool in the parent, and the loop of each worker.

A worker that dies fails its job and nothing else. A worker loads data once and keeps it for the next job.
A finished job keeps its model and records; its checkpoint is removed, and its page is written on demand
(`unseen report`). What a job computes depends only on its configuration, so the number of workers changes
no result.
"""

from __future__ import annotations

import math
import shutil
import signal
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path

from unseen.bench import WORKERS
from unseen.bench.bench_folder import BenchFolder
from unseen.bench.bench_job import BenchJob
from unseen.callbacks.base import Callback, StopTrainingError
from unseen.child_processes import exit_with_parent, hide_main_module, start_fork_server
from unseen.config import RunConfig
from unseen.data import DataRequest, DataSet, load_data
from unseen.data.sources import no_progress
from unseen.engine.resources import keep_freed_memory
from unseen.errors import UnseenError
from unseen.evaluation.selection import mean_metric
from unseen.runner.prepare import data_request
from unseen.runner.run import run
from unseen.runs.folder import RunFolder
from unseen.runs.records import Record
from unseen.session_parts import SessionParts, find_session_parts

_TICK_SECONDS = 0.25


@dataclass(frozen=True)
class Placement:
    """Where jobs run; None keeps the grid's value. One thread each is fastest while all cores have a job."""

    threads: int = 1
    device: str | None = None
    data_root: str | None = None

    def apply(self, config: RunConfig) -> RunConfig:
        """Place a job; this does not change its identity."""
        return config.resolved(
            workers=1,
            threads=self.threads,
            device=self.device or config.device,
            data_root=self.data_root or config.data_root,
        )


class BenchCallback:
    """Base class for callbacks of a bench; every method does nothing unless overridden."""

    def on_plan(
        self,
        waiting: Sequence[BenchJob],
        finished: Sequence[BenchJob],
        failed: Sequence[BenchJob],
        seconds: Mapping[str, float],
    ) -> None:
        """Receive the jobs to run, those finished earlier (with seconds by id), and those that failed."""

    def on_job_start(self, job: BenchJob) -> None:
        """Called when a job starts or resumes."""

    def on_job_progress(self, job: BenchJob, progress: Progress) -> None:
        """Receive a job's progress."""

    def on_job_end(self, job: BenchJob) -> None:
        """Called when a job has finished."""

    def on_job_error(self, job: BenchJob, reason: str) -> None:
        """Receive the reason why a job failed."""

    def on_tick(self) -> None:
        """Redraw: called several times per second."""


class JobPool:
    """A pool of worker processes that runs jobs in their order."""

    def __init__(
        self, folder: BenchFolder, *, workers: int, placement: Placement, callback: BenchCallback
    ) -> None:
        self.folder, self.workers, self.placement, self.callback = folder, workers, placement, callback

    def run(self, jobs: Sequence[BenchJob], *, until: float = math.inf) -> bool:
        """Run all jobs; an interrupt ends the workers, and the rounds that they finished are kept.

        until  time of `time.monotonic` at which the workers are ended; returns whether it was not reached
        """
        queue, context, parts = deque(jobs), start_fork_server(WORKERS), find_session_parts()
        workers: list[_Worker] = []
        try:
            while queue or any(worker.job for worker in workers):
                missing = min(self.workers - len(workers), len(queue))
                workers += [_Worker(context, parts) for _ in range(missing)]
                for worker in workers:
                    if worker.job is None and queue:
                        self._dispatch(worker, queue.popleft())
                ready = wait([worker.pipe for worker in workers], timeout=_TICK_SECONDS)
                for worker in [worker for worker in workers if worker.pipe in ready]:
                    self._receive(worker)
                    if worker.is_lost:
                        workers.remove(worker)
                        worker.stop()
                self.callback.on_tick()
                if time.monotonic() > until:
                    return False
            return True
        finally:
            for worker in workers:
                worker.stop()

    def _dispatch(self, worker: _Worker, job: BenchJob) -> None:
        """Send a worker its next job; a dead worker is noticed on receive."""
        worker.job = job
        folder = self.folder.make_ready(job)
        with suppress(BrokenPipeError, ConnectionResetError):
            worker.pipe.send(Task(self.placement.apply(job.config), folder))
        self.callback.on_job_start(job)

    def _receive(self, worker: _Worker) -> None:
        """Handle a worker's message; a closed pipe or an unreadable message means that the worker is lost."""
        job = worker.job
        try:
            message = worker.pipe.recv()
        except Exception as error:
            worker.is_lost = True
            ended = isinstance(error, EOFError | OSError)
            message = Failed(
                worker.exit_reason() if ended else f"its worker process sent an unreadable message: {error}"
            )
        if job is None:
            return
        if isinstance(message, Progress):
            self.callback.on_job_progress(job, message)
            return
        worker.job = None
        if isinstance(message, Done):
            self.callback.on_job_end(job)
        else:
            self.folder.note_failure(job, message.reason, message.details)
            self.callback.on_job_error(job, message.reason)


class _Worker:
    """A worker process, its pipe and its current job."""

    def __init__(self, context: ForkServerContext, parts: SessionParts) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, parts), daemon=True)
        with hide_main_module():
            self.process.start()
        theirs.close()
        self.job: BenchJob | None = None
        self.is_lost = False

    def stop(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.terminate()
        self.process.join()

    def exit_reason(self) -> str:
        """Describe how the process ended."""
        self.process.join()
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"its worker process ended with code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = " (the system may have run out of memory)" if name == "SIGKILL" else ""
        return f"its worker process was ended by {name}{hint}"


@dataclass(frozen=True)
class Task:
    """A job to run: its configuration, and its folder with the rounds of an earlier attempt, if any."""

    config: RunConfig
    folder: Path


@dataclass(frozen=True)
class Progress:
    """Progress of a job; `validation` is the sources' validation metric after the latest evaluated round."""

    round: int
    rounds: int
    validation: float | None = None


@dataclass(frozen=True)
class Done:
    """The job is finished."""


@dataclass(frozen=True)
class Failed:
    """The job failed: the reason in one line, and the traceback where it adds to the line."""

    reason: str
    details: str = ""


def serve(pipe: Connection, parts: SessionParts) -> None:
    """Run the tasks from the pipe until it closes; Ctrl-C is left to the parent, which ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent()
    keep_freed_memory()
    parts.install()
    loaded = _LoadedData()
    try:
        while True:
            task: Task = pipe.recv()
            pipe.send(_attempt(task, pipe, loaded))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _attempt(task: Task, pipe: Connection, loaded: _LoadedData) -> Done | Failed:
    try:
        data = loaded.load(data_request(task.config))
        run(task.config, out=task.folder, resume=True, callbacks=_PipeCallback(pipe), data=data, report=False)
        shutil.rmtree(RunFolder(task.folder).checkpoints, ignore_errors=True)
    except UnseenError as error:
        return Failed(str(error))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        return Failed(f"{type(error).__name__}: {error}".splitlines()[0], traceback.format_exc())
    return Done()


class _LoadedData:
    """Cache for the data of the latest job, since the next one mostly needs the same."""

    def __init__(self) -> None:
        self._latest: tuple[DataRequest, DataSet] | None = None

    def load(self, request: DataRequest) -> DataSet:
        wanted = replace(request, progress=no_progress)
        if self._latest is None or self._latest[0] != wanted:
            self._latest = None
            self._latest = (wanted, load_data(request))
        return self._latest[1]


class _PipeCallback(Callback):
    """Sends the job's progress to the parent process; ends the job if the parent is gone."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._rounds = pipe, 0
        self._validation: float | None = None

    def on_train_start(self, *, first_round: int, rounds: int, samples: int) -> None:
        self._rounds = rounds
        self._send(Progress(first_round - 1, rounds))

    def on_record(self, record: Record) -> None:
        if record["event"] == "evaluation":
            primary = next(iter(record["scores"][0]["metrics"]))
            self._validation = mean_metric(record, "validation", primary)
        if record["event"] in ("round", "evaluation"):
            self._send(Progress(record["round"], self._rounds, self._validation))

    def _send(self, progress: Progress) -> None:
        try:
            self._pipe.send(progress)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise StopTrainingError("the bench that started this job is gone") from error
