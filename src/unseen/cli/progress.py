"""Progress bars: of a run (round, loss, validation score, time left) and of slow work; silent when piped."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from unseen.callbacks.base import Callback
from unseen.callbacks.run_status import RunStatus
from unseen.runs.records import Record


class LiveProgress(Callback):
    """Callback that shows one progress line, updated with every batch."""

    def __init__(self, console: Console, *, label: str) -> None:
        self.label = label
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task(label, total=None, note="preparing")
        self._status = RunStatus()

    def __enter__(self) -> LiveProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def on_prepare(self, what: str, done: int, total: int) -> None:
        """Show slow preparation."""
        self._progress.update(self._bar, completed=done, total=total, note=f"{what} {done}/{total}")

    def on_note(self, note: str) -> None:
        """Print a note, which stays after the bar is removed."""
        self._progress.console.print(note, style="dim", soft_wrap=True)

    def on_train_start(self, *, first_round: int, rounds: int, samples: int) -> None:
        """Reset the bar."""
        self._status.start(first_round=first_round, rounds=rounds, samples=samples)
        self._progress.reset(self._bar, total=self._status.total, note="")
        self._show()

    def on_samples(self, count: int) -> None:
        """Advance the bar."""
        self._status.seen += count
        self._progress.advance(self._bar, count)
        self._show()

    def on_record(self, record: Record) -> None:
        """Update the shown numbers from a record."""
        if remark := self._status.update(record):
            style = "yellow" if record["event"] == "fault" else "dim"
            self._progress.console.print(remark, style=style, soft_wrap=True)
        if self._status.rounds:
            self._show()

    def _show(self) -> None:
        self._progress.update(self._bar, note=self._status.text)


PATIENCE = 2.0


class DelayedProgressBar:
    """Progress bar of work that may be slow; it appears after `PATIENCE` seconds.

    bytes  whether the numbers are bytes
    """

    def __init__(self, console: Console, *, bytes: bool = False) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            DownloadColumn() if bytes else MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=None)
        self._appears = time.perf_counter() + PATIENCE

    def __enter__(self) -> DelayedProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Advance the bar."""
        self._progress.update(self._bar, description=what, completed=done, total=total)
        if time.perf_counter() > self._appears and done < total:
            self._progress.start()
