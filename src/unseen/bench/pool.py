"""Jobs in parallel processes. A process that dies takes its job with it, and nothing else."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext

from unseen.bench.folder import BenchFolder
from unseen.bench.fork_server import start_server
from unseen.bench.job import Job
from unseen.bench.worker import Done, Failed, Progress, Task, serve
from unseen.config import RunConfig

_TICK_SECONDS = 0.25


@dataclass(frozen=True)
class Where:
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


class Watcher:
    """Who wants to follow a bench: the base class hears everything and says nothing."""

    def planned(
        self,
        waiting: Sequence[Job],
        finished: Sequence[Job],
        failed: Sequence[Job],
        seconds: Mapping[str, float],
    ) -> None:
        """Hear what is to be done now, what is done already and how long that took (by id), what failed."""

    def started(self, job: Job) -> None:
        """Hear that a job begins, or goes on."""

    def progressed(self, job: Job, progress: Progress) -> None:
        """Hear how far a job is."""

    def finished(self, job: Job) -> None:
        """Hear that a job is finished."""

    def failed(self, job: Job, reason: str) -> None:
        """Hear that a job failed."""

    def tick(self) -> None:
        """Hear that time passes: several times a second."""


class Pool:
    """Hands jobs, in their order, to worker processes."""

    def __init__(self, folder: BenchFolder, *, workers: int, where: Where, watcher: Watcher) -> None:
        self.folder, self.workers, self.where, self.watcher = folder, workers, where, watcher

    def run(self, jobs: Sequence[Job]) -> None:
        """Run all jobs; interrupted, it ends its workers, whose finished rounds are kept."""
        queue, context = deque(jobs), start_server()
        hands: list[_Hand] = []
        try:
            while queue or any(hand.job for hand in hands):
                hands += [_Hand(context) for _ in range(min(self.workers - len(hands), len(queue)))]
                for hand in hands:
                    if hand.job is None and queue:
                        self._hand_over(hand, queue.popleft())
                ready = wait([hand.pipe for hand in hands], timeout=_TICK_SECONDS)
                for hand in [hand for hand in hands if hand.pipe in ready]:
                    self._hear(hand)
                    if hand.is_gone:
                        hands.remove(hand)
                        hand.dismiss()
                self.watcher.tick()
        finally:
            for hand in hands:
                hand.dismiss()

    def _hand_over(self, hand: _Hand, job: Job) -> None:
        """Give a worker a job; if it is no longer there to take it, that shows when it is heard."""
        hand.job = job
        folder = self.folder.make_ready(job)
        with suppress(BrokenPipeError, ConnectionResetError):
            hand.pipe.send(Task(self.where.of(job.config), folder))
        self.watcher.started(job)

    def _hear(self, hand: _Hand) -> None:
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
            self.watcher.progressed(job, message)
            return
        hand.job = None
        if isinstance(message, Done):
            self.watcher.finished(job)
        else:
            self.folder.note_failure(job, message.reason, message.details)
            self.watcher.failed(job, message.reason)


class _Hand:
    """A worker process, its pipe, and the job it has."""

    def __init__(self, context: ForkServerContext) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.job: Job | None = None
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
