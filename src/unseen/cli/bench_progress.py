"""Progress of a bench: a live table on a terminal, one line per event when output is piped.

The estimated time follows from seconds per round, measured per label from the rounds that have run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unseen.bench.bench_job import BenchJob
from unseen.bench.round_times import RoundTimes
from unseen.bench.workers import BenchCallback, Progress
from unseen.report.formatting import format_duration

_SHOWN_FAILURES = 5


@dataclass
class _Running:
    """A running job: the start of this attempt, and its progress."""

    started: float = field(default_factory=time.monotonic)
    first_round: int | None = None
    progress: Progress | None = None

    @property
    def rounds_done(self) -> int:
        """Rounds of this attempt."""
        return (
            0 if self.progress is None or self.first_round is None else self.progress.round - self.first_round
        )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


class BenchProgress(BenchCallback):
    """Live view of a bench: running, finished and failed jobs, and the time left."""

    def __init__(self, console: Console, *, workers: int) -> None:
        self._console, self._workers = console, workers
        self._pace, self._learnt = RoundTimes(), set[str]()
        self._waiting: dict[str, BenchJob] = {}
        self._running: dict[str, tuple[BenchJob, _Running]] = {}
        self._done = 0
        self._failures: list[tuple[BenchJob, str]] = []
        self._earlier_failures = 0
        self._live = (
            Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        )

    def __enter__(self) -> BenchProgress:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def on_plan(
        self,
        waiting: Sequence[BenchJob],
        finished: Sequence[BenchJob],
        failed: Sequence[BenchJob],
        seconds: Mapping[str, float],
    ) -> None:
        """Show the planned jobs, and initialize the time estimate from finished ones."""
        for job in finished:
            if job.id in seconds and job.id not in self._learnt:
                self._learn(job, rounds=job.config.rounds, seconds=seconds[job.id])
        self._waiting = {job.id: job for job in waiting}
        self._done, self._earlier_failures = len(finished), len(failed) - len(self._failures)
        parts = [f"{len(waiting)} jobs to run", f"{len(finished)} done already"]
        parts += [f"{len(failed)} failed before (--retry-failed tries them again)"] if failed else []
        self._say(", ".join(parts) + f"; {self._workers} at a time")

    def on_job_start(self, job: BenchJob) -> None:
        """Mark a waiting job as running."""
        self._waiting.pop(job.id, None)
        self._running[job.id] = (job, _Running())

    def on_job_progress(self, job: BenchJob, progress: Progress) -> None:
        """Record the progress of a job."""
        _, running = self._running[job.id]
        if running.first_round is None:
            running.first_round = progress.round
        running.progress = progress

    def on_job_end(self, job: BenchJob) -> None:
        """Count a finished job and update the time estimate."""
        _, running = self._running.pop(job.id)
        self._learn(job, rounds=running.rounds_done, seconds=running.seconds)
        self._done += 1
        parts = [f"{job.name}: {format_duration(running.seconds)}", _validation(running.progress)]
        self._say(f"done {self._count_jobs()}  " + ", ".join(part for part in (*parts, self._left()) if part))

    def on_job_error(self, job: BenchJob, reason: str) -> None:
        """Show why a job failed."""
        self._running.pop(job.id, None)
        self._failures.append((job, reason))
        self._say(f"failed      {job.name}: {reason}", style="yellow")

    def on_tick(self) -> None:
        """Redraw."""
        if self._live:
            self._live.update(self._drawing(), refresh=True)

    def _learn(self, job: BenchJob, *, rounds: int, seconds: float) -> None:
        self._pace.add(job.label, rounds=rounds, seconds=seconds)
        self._learnt.add(job.id)

    def _say(self, text: str, *, style: str = "") -> None:
        if self._live is None:
            self._console.print(text, style=style, markup=False, soft_wrap=True)

    def _count_jobs(self) -> str:
        failed = self._earlier_failures + len(self._failures)
        return f"{self._done}/{self._done + failed + len(self._waiting) + len(self._running)}"

    def _left(self) -> str:
        """Estimate the time left from finished jobs, or from running ones where a method has none yet.

        Running jobs are weaker evidence: first rounds may take longer than others.
        """
        pace, left = self._pace.copy(), [(job.label, job.config.rounds) for job in self._waiting.values()]
        for job, running in self._running.values():
            if running.rounds_done and not self._pace.knows(job.label):
                pace.add(job.label, rounds=running.rounds_done, seconds=running.seconds)
            done = running.progress.round if running.progress else 0
            left.append((job.label, job.config.rounds - done))
        seconds = pace.seconds_left(left, workers=self._workers)
        return f"about {format_duration(seconds)} left" if seconds and left else ""

    def _drawing(self) -> Group:
        table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
        for name in ("running", "held out", "seed", "round", "validation", "time"):
            table.add_column(name, justify="left" if name in ("running", "held out") else "right")
        for job, running in self._running.values():
            progress = running.progress
            table.add_row(
                Text(job.label if job.trial is None else f"{job.label} (trial {job.trial})"),
                Text(job.held_out + (f" (and {job.left_out})" if job.left_out else "")),
                str(job.seed),
                f"{progress.round}/{progress.rounds}" if progress else "preparing",
                _validation(progress).removeprefix("validation "),
                format_duration(running.seconds),
            )
        failed = self._earlier_failures + len(self._failures)
        parts = [f"{self._count_jobs()} jobs done", f"{len(self._waiting)} waiting"]
        parts += [f"{failed} failed"] if failed else []
        lines = [Text(f"failed: {job.name}: {reason}", style="yellow") for job, reason in self._failures]
        return Group(table, *lines[-_SHOWN_FAILURES:], Text("  ".join([*parts, self._left()])))


def _validation(progress: Progress | None) -> str:
    if progress is None or progress.validation is None:
        return ""
    return f"validation {progress.validation:.3f}"
