"""Jobs in parallel processes. A process that dies takes its job with it, and nothing else."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from threading import Thread

from unseen.bench.bench_folder import BenchFolder
from unseen.bench.bench_job import BenchJob
from unseen.bench.fork_server import start_server
from unseen.callbacks.base import Callback, StopTrainingError
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

_TICK_SECONDS = 0.25


@dataclass(frozen=True)
class Placement:
    """Where jobs run; None leaves it to the grid. One thread is fastest while all cores have a job."""

    threads: int = 1
    device: str | None = None
    data_root: str | None = None

    def of(self, config: RunConfig) -> RunConfig:
        """Say where a job runs; this does not change its identity."""
        return config.resolved(
            workers=1,
            threads=self.threads,
            device=self.device or config.device,
            data_root=self.data_root or config.data_root,
        )


class BenchCallback:
    """Base class of everything that follows a bench; every method does nothing until it is overridden."""

    def on_plan(
        self,
        waiting: Sequence[BenchJob],
        finished: Sequence[BenchJob],
        failed: Sequence[BenchJob],
        seconds: Mapping[str, float],
    ) -> None:
        """Receive the jobs to run, those finished earlier (with seconds by id), and those that failed."""

    def on_job_start(self, job: BenchJob) -> None:
        """Start or resume a job."""

    def on_job_progress(self, job: BenchJob, progress: Progress) -> None:
        """Receive how far a job is."""

    def on_job_end(self, job: BenchJob) -> None:
        """Finish a job."""

    def on_job_error(self, job: BenchJob, reason: str) -> None:
        """Receive the reason why a job failed."""

    def on_tick(self) -> None:
        """Redraw: called several times per second."""


class Pool:
    """Hands jobs, in their order, to worker processes."""

    def __init__(
        self, folder: BenchFolder, *, workers: int, where: Placement, callback: BenchCallback
    ) -> None:
        self.folder, self.workers, self.where, self.callback = folder, workers, where, callback

    def run(self, jobs: Sequence[BenchJob]) -> None:
        """Run all jobs; interrupted, it ends its workers, whose finished rounds are kept."""
        queue, context = deque(jobs), start_server()
        hands: list[_Worker] = []
        try:
            while queue or any(hand.job for hand in hands):
                hands += [_Worker(context) for _ in range(min(self.workers - len(hands), len(queue)))]
                for hand in hands:
                    if hand.job is None and queue:
                        self._dispatch(hand, queue.popleft())
                ready = wait([hand.pipe for hand in hands], timeout=_TICK_SECONDS)
                for hand in [hand for hand in hands if hand.pipe in ready]:
                    self._receive(hand)
                    if hand.is_gone:
                        hands.remove(hand)
                        hand.dismiss()
                self.callback.on_tick()
        finally:
            for hand in hands:
                hand.dismiss()

    def _dispatch(self, hand: _Worker, job: BenchJob) -> None:
        """Give a worker a job; if it is no longer there to take it, that shows when it is heard."""
        hand.job = job
        folder = self.folder.make_ready(job)
        with suppress(BrokenPipeError, ConnectionResetError):
            hand.pipe.send(Task(self.where.of(job.config), folder))
        self.callback.on_job_start(job)

    def _receive(self, hand: _Worker) -> None:
        """Take a message from a worker; one that sends none any more, or nonsense, is gone."""
        job = hand.job
        try:
            message = hand.pipe.recv()
        except Exception as error:
            hand.is_gone = True
            ended = isinstance(error, EOFError | OSError)
            message = Failed(hand.how_it_ended() if ended else f"its worker process sent nonsense: {error}")
        if job is None:
            return
        if isinstance(message, Progress):
            self.callback.on_job_progress(job, message)
            return
        hand.job = None
        if isinstance(message, Done):
            self.callback.on_job_end(job)
        else:
            self.folder.note_failure(job, message.reason, message.details)
            self.callback.on_job_error(job, message.reason)


class _Worker:
    """A worker process, its pipe, and the job it has."""

    def __init__(self, context: ForkServerContext) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.job: BenchJob | None = None
        self.is_gone = False

    def dismiss(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.terminate()
        self.process.join()

    def how_it_ended(self) -> str:
        """Say how a process that is gone ended."""
        self.process.join()
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"its worker process ended with code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = " (the system may have run out of memory)" if name == "SIGKILL" else ""
        return f"its worker process was ended by {name}{hint}"


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
    try:
        data = loaded.load(data_request(task.config))
        run(task.config, out=task.folder, resume=True, callbacks=_PipeCallback(pipe), data=data, report=False)
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


class _PipeCallback(Callback):
    """Sends the job's progress to the parent process; without a parent the job ends."""

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


def _leave_with_parent() -> None:
    """End this process when the parent is gone, also in the middle of a round."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
