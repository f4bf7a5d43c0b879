"""A bar for work that may take long: it appears after two seconds, and never when output is piped."""

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

PATIENCE = 2.0


class LateBar:
    """Called with (what, done, total) by the work; draws once the user has waited long enough.

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

    def __enter__(self) -> LateBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Move the bar."""
        self._progress.update(self._bar, description=what, completed=done, total=total)
        if time.perf_counter() > self._appears and done < total:
            self._progress.start()
