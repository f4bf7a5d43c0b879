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
from unseen.evaluation.selection import mean_metric
from unseen.runs.records import Record
from unseen.tasks import is_fraction, metric_label


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
        self._rounds = self._samples = 0
        self._started, self._seen = time.perf_counter(), 0
        self._round, self._loss, self._score, self._spent = 0, "", "", ""

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
        self._rounds, self._round = rounds, first_round - 1
        self._samples = max(samples, 1)
        self._started = time.perf_counter()
        self._progress.reset(self._bar, total=(rounds - first_round + 1) * self._samples, note="")
        self._show()

    def on_samples(self, count: int) -> None:
        """Advance the bar."""
        self._seen += count
        self._progress.advance(self._bar, count)
        self._show()

    def on_record(self, record: Record) -> None:
        """Update the shown numbers from a record."""
        if record["event"] == "round":
            self._round = record["round"]
            self._loss = "" if record["loss"] is None else f"loss {record['loss']:.3f}"
            epsilon = record.get("protection", {}).get("epsilon")
            self._spent = "" if epsilon is None else f"epsilon {epsilon:.3g}"
        elif record["event"] == "evaluation":
            primary = next(iter(record["scores"][0]["metrics"]))
            value = mean_metric(record, "validation", primary)
            shown = f"{value:.1%}" if is_fraction(primary) else f"{metric_label(primary)} {value:.3f}"
            self._score = f"validation {shown}"
        elif record["event"] == "fault":
            self._progress.console.print(
                f"round {record['round']}: {record['client']} was set aside: {record['reason']}",
                style="yellow",
            )
        elif record["event"] == "stop":
            self.on_note(f"stopped after round {record['round']} of {record['rounds']}: {record['reason']}")
        if self._rounds:
            self._show()

    def _show(self) -> None:
        speed = self._seen / max(time.perf_counter() - self._started, 1e-9)
        parts = [f"round {min(self._round + 1, self._rounds)}/{self._rounds}", self._loss, self._score]
        parts += [self._spent, f"{speed:,.0f}/s"]
        self._progress.update(self._bar, note="  ".join(part for part in parts if part))


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
