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
    asked         (path, Range header) of every request
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.breaks_after: int | None = None
        self.holds, self.released = False, threading.Event()
        self.ranges = True
        self.asked: list[tuple[str, str | None]] = []

    def url(self, name: str = "") -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append((self.path, asked))
        content = self.server.files.get(self.path.lstrip("/"))
        if content is None:
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        if start and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
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
