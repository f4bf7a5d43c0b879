"""A small web server for tests: serves bytes, knows ranges, and can break off or turn away on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer(ThreadingHTTPServer):
    """Serves `files`; the attributes say how it misbehaves.

    breaks_after  bytes of a reply after which the connection is closed, once
    holds         set to let a reply that broke off stay open until `released`
    ranges        whether it can go on in the middle
    asked         (path, Range header) of every request for content
    headers       further headers of a file's replies
    moved         where a file's reply sends the client instead, as in a download from a hub
    heads         paths that were asked about without their content
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.breaks_after: int | None = None
        self.holds, self.released = False, threading.Event()
        self.ranges = True
        self.asked: list[tuple[str, str | None]] = []
        self.headers: dict[str, dict[str, str]] = {}
        self.moved: dict[str, str] = {}
        self.heads: list[str] = []

    def url(self, name: str = "") -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_HEAD(self) -> None:
        name = self.path.lstrip("/")
        self.server.heads.append(name)
        if name in self.server.moved:
            self._send_on(name)
        elif name in self.server.files:
            self._start(200, name, len(self.server.files[name]))
        else:
            self.send_error(404)

    def _send_on(self, name: str) -> None:
        self.send_response(302)
        self.send_header("Location", self.server.moved[name])
        for header in self.server.headers.get(name, {}).items():
            self.send_header(*header)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _start(self, status: int, name: str, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for header in self.server.headers.get(name, {}).items():
            self.send_header(*header)
        self.end_headers()

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        if name in self.server.moved:
            self._send_on(name)
            return
        asked = self.headers.get("Range")
        self.server.asked.append((self.path, asked))
        content = self.server.files.get(name)
        if content is None:
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        if start and start >= len(content):
            self.send_error(416)
            return
        self._start(206 if start else 200, name, len(content) - start)
        stop, self.server.breaks_after = self.server.breaks_after, None
        self.wfile.write(content[start:] if stop is None else content[start : start + stop])
        if stop is not None and self.server.holds:
            self.wfile.flush()
            self.server.released.wait(60)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@contextmanager
def serving() -> Iterator[FileServer]:
    with FileServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
        thread.join()
