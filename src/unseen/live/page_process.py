"""A live page in a process of its own, which ends with the process that started it, and never holds it up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from unseen.callbacks.base import Callback, RunEnd
from unseen.errors import UnseenError
from unseen.live.followed_folder import Kind
from unseen.live.live_view import NewsDesk, Source
from unseen.live.page_address import forget_address, open_server, read_address

LINGER_SECONDS = 150.0
"""A page of something finished stays while a tab asks for it; hidden tabs ask about once a minute."""
LONGEST_SECONDS = 3600.0
_FIRST_SIGN_SECONDS = 60.0
_LOOK_SECONDS = 0.2
_NICE = 10


class PageProcess:
    """Starts the page of a folder, and lets it end when this process ends or leaves the context."""

    def __init__(
        self, folder: Path, kind: Kind, say: Callable[[str], None], *, work: Path | None = None
    ) -> None:
        self.folder, self.kind, self.say, self.work = folder, kind, say, work
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> PageProcess:
        """Start the page; why it cannot be started is said, and hinders nothing."""
        try:
            self.say(f"Live page: {self.start()}")
        except UnseenError as error:
            self.say(f"There is no live page: {error}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> str:
        """Start the process and return the page's address."""
        command = [sys.executable, "-P", "-m", "unseen", "live", str(self.folder.absolute())]
        command += ["--attached", self.kind]
        command += ["--work", str(self.work.absolute())] if self.work else []
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for the parent; the page then ends by itself
        )
        said = _first_line(self._process.stdout)
        if "url" not in said:
            self.close()
            raise UnseenError(said.get("error") or "its process did not start")
        return said["url"]

    def close(self) -> None:
        """Tell the page that nothing more will come; it ends, at once or when nobody looks at it any more."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()


class LivePage(Callback):
    """Callback that has a run followed by a page from its first round on."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._page = PageProcess(folder, "run", say)

    def on_train_start(self, *, first_round: int, rounds: int, samples: int) -> None:
        """Start the page: only now the folder is known to be this run's."""
        self._page.__enter__()

    def on_train_end(self, end: RunEnd) -> None:
        """Let the page end."""
        self._page.close()


def serve(
    folder: Path,
    open_source: Callable[[], Source],
    *,
    port: int | None,
    say: Callable[[str], None],
    attached: bool,
) -> None:
    """Serve a folder's page until Ctrl-C; an `attached` one ends with the process that started it.

    say  gets the address once the page can be opened
    """
    before, desk = read_address(folder), NewsDesk(open_source)
    server = open_server(folder, desk, port=port)
    mine = read_address(folder) != before
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        say(server.url)
        if attached:
            with suppress(AttributeError, OSError):
                os.nice(_NICE)
            threading.Thread(target=desk.news, daemon=True).start()  # loads the libraries that draw
            _wait_for_parent()
            until = time.monotonic() + LONGEST_SECONDS
            while desk.finished and _still_wanted(server.idle_seconds) and time.monotonic() < until:
                time.sleep(_LOOK_SECONDS)
            mine = desk.finished
        else:
            threading.Event().wait()
    finally:
        if mine:
            forget_address(folder)
        server.shutdown()
        server.server_close()


def _still_wanted(idle: float | None) -> bool:
    return idle is not None and idle < LINGER_SECONDS


def _wait_for_parent() -> None:
    """Return when the parent closes the pipe to this process, or ends in any way."""
    while sys.stdin.read(1):
        pass


def _first_line(stream: IO[str] | None) -> dict[str, str]:
    """Read the first line that the page's process says, if it says one in time."""
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(stream.readline() if stream else ""), daemon=True)
    reader.start()
    reader.join(_FIRST_SIGN_SECONDS)
    with suppress(ValueError):
        return dict(json.loads("".join(found)))
    return {}
