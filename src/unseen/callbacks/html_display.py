"""One line of progress that is updated in place: HTML in a notebook, a line on a terminal, else nothing."""

from __future__ import annotations

import html
import sys
import time
from importlib import import_module
from typing import Any

_SECONDS_BETWEEN = 0.2
"""Shortest time between two updates of a notebook, which sends each of them through its server."""


class Display:
    """Shows nothing; the base class of the others."""

    def show(self, text: str, *, part: float | None = None) -> None:
        """Show a line, and how large a part of the work is done."""

    def clear(self, remarks: tuple[str, ...] = ()) -> None:
        """Remove the line, and leave the remarks."""


class TerminalDisplay(Display):
    """A line on standard error that each update replaces."""

    def __init__(self) -> None:
        self._width = 0
        self._shown = -_SECONDS_BETWEEN

    def show(self, text: str, *, part: float | None = None) -> None:
        """Replace the line, a few times per second."""
        if time.monotonic() - self._shown < _SECONDS_BETWEEN:
            return
        self._shown = time.monotonic()
        line = (text if part is None else f"{part:4.0%} {text}")[:100]
        print("\r" + line.ljust(self._width), end="", file=sys.stderr, flush=True)
        self._width = len(line)

    def clear(self, remarks: tuple[str, ...] = ()) -> None:
        """Blank the line."""
        if self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)
            self._width = 0
        for remark in remarks:
            print(remark, file=sys.stderr)


class NotebookDisplay(Display):
    """An output of a notebook's cell, replaced as a whole; it needs neither widgets nor scripts."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = -_SECONDS_BETWEEN

    def show(self, text: str, *, part: float | None = None) -> None:
        """Replace the line, a few times per second."""
        if time.monotonic() - self._shown < _SECONDS_BETWEEN:
            return
        self._shown = time.monotonic()
        bar = "" if part is None else f'<progress max="1" value="{part:.3f}"></progress> '
        self._send({"text/html": f"<div>{bar}{html.escape(text)}</div>", "text/plain": text})

    def clear(self, remarks: tuple[str, ...] = ()) -> None:
        """Leave the remarks alone, nothing without any."""
        if self._handle is None and not remarks:
            return
        shown = "".join(f"<div>{html.escape(remark)}</div>" for remark in remarks)
        self._send({"text/html": shown, "text/plain": "\n".join(remarks)})

    def _send(self, bundle: dict[str, str]) -> None:
        if self._handle is None:
            display: Any = import_module("IPython.display").display
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def find_display(wanted: bool | None) -> Display | None:
    """Choose where progress is shown: a notebook, a terminal, else nowhere; nowhere if it is not wanted."""
    if wanted is False:
        return None
    if in_notebook():
        return NotebookDisplay()
    return TerminalDisplay() if sys.stderr is not None and sys.stderr.isatty() else None


def in_notebook() -> bool:
    """Check whether this process is the kernel of a notebook."""
    if "IPython" not in sys.modules:
        return False
    return getattr(sys.modules["IPython"].get_ipython(), "kernel", None) is not None
