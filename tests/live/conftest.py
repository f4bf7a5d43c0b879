"""Live pages of made-up runs, asked by real requests on loopback."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from made_records import write_live_run

from unseen.fileio import locked
from unseen.live.followed_folder import find_source
from unseen.live.live_view import NewsDesk
from unseen.live.page_address import open_server
from unseen.live.page_server import PageServer
from unseen.runs.folder import RunFolder


@dataclass(frozen=True)
class Page:
    """A served page, and how to ask for it."""

    server: PageServer

    @property
    def token(self) -> str:
        return self.server.token

    def ask(
        self, path: str, *, method: str = "GET", host: str | None = None, named: bool = True
    ) -> tuple[int, bytes, dict[str, str]]:
        """Send exactly this path; `named` whether the request names a host at all."""
        line = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=30)
        line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        if named:
            line.putheader("Host", host or f"127.0.0.1:{self.server.server_port}")
        line.endheaders()
        answer = line.getresponse()
        found = answer.status, answer.read(), dict(answer.getheaders())
        line.close()
        return found

    def news(self, after: str = "") -> dict[str, Any]:
        status, body, _ = self.ask(f"/{self.token}/state?after={after}")
        assert status == 200
        return dict(json.loads(body))


@pytest.fixture
def serve_page() -> Iterator[Callable[..., Page]]:
    """Serve the page of a folder in a thread."""
    running: list[PageServer] = []

    def serve(folder: Path, **options: Any) -> Page:
        server = open_server(folder, NewsDesk(find_source(folder)), **options)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return Page(server)

    yield serve
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.fixture
def running_run(tmp_path: Path) -> Iterator[Path]:
    """A run whose folder is held, as by a process that trains."""
    folder = write_live_run(tmp_path / "run")
    with locked(RunFolder(folder).lock, place=folder):
        yield folder
