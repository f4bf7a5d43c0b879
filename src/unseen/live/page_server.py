"""The server of a live page: on loopback only, with a token in its address, and nothing but the page.

A request must name this machine as its host, so that no page elsewhere can reach it under a name that was
pointed here (DNS rebinding), and start with the token, which is compared in constant time. What it names
after that is compared with the names of the pages there are; it is never part of a path.
"""

from __future__ import annotations

import json
import sys
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from secrets import compare_digest
from typing import Any
from urllib.parse import parse_qs, urlsplit

from unseen.live.live_view import NewsDesk

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")
"""Names under which a browser may ask; any port, as one may forward another one to this machine."""
_REQUEST_SECONDS = 20.0
_OWN_SCRIPTS = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
_HEADERS = {
    "Content-Security-Policy": _OWN_SCRIPTS + "script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""For every answer. Pages narrow this policy to the scripts whose hashes they name themselves."""
_HTML, _JSON, _TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"


class PageServer(ThreadingHTTPServer):
    """Serves the page of one source below `/TOKEN/`."""

    daemon_threads = True
    allow_reuse_address = sys.platform != "win32"  # there it would let two servers have one port

    def __init__(self, port: int, token: str, desk: NewsDesk) -> None:
        super().__init__((LOOPBACK, port), _PageRequest)
        self.token, self.desk = token, desk
        self.seen: float | None = None

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    @property
    def idle_seconds(self) -> float | None:
        """Seconds since somebody asked for something; None if nobody ever did."""
        return None if self.seen is None else time.monotonic() - self.seen

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about a browser that hung up."""


class _PageRequest(BaseHTTPRequestHandler):
    """One request; what is not a page of this server is refused without a look at the disk."""

    server: PageServer
    server_version, sys_version = "unseen", ""
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        """Serve a document to whoever knows the token."""
        if self._host() not in HOSTS:
            self._refuse(HTTPStatus.FORBIDDEN, "this page answers to 127.0.0.1 and localhost only")
            return
        asked = urlsplit(self.path)
        token, slash, name = asked.path.removeprefix("/").partition("/")
        if not compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "the address lacks its token: open the one that was printed")
            return
        self.server.seen = time.monotonic()
        if not slash:
            self._send(HTTPStatus.PERMANENT_REDIRECT, "", _TEXT, {"Location": f"/{self.server.token}/"})
        elif name == "":
            from unseen.live.live_parts import shell

            self._send(HTTPStatus.OK, shell(), _HTML)
        elif name == "state":
            after = parse_qs(asked.query).get("after", [""])[0]
            news = self.server.desk.news(after)
            self._send(HTTPStatus.OK, json.dumps(news, ensure_ascii=False), _JSON)
        else:
            self._send_page(self.server.desk.page(name))

    def _host(self) -> str:
        """Return the host that the request names, without its port; empty unless it names exactly one."""
        named = self.headers.get_all("Host") or []
        host, colon, port = named[0].rpartition(":") if len(named) == 1 else ("", "", "")
        if not colon:
            return port.lower()
        return host.lower() if port.isascii() and port.isdigit() else ""

    def _send_page(self, path: Path | None) -> None:
        """Send a page that is written at the end; it says itself which scripts may run in it."""
        try:
            text = path.read_text(encoding="utf-8") if path else None
        except (OSError, UnicodeDecodeError):
            text = None
        if text is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page, or it is not written yet")
        else:
            self._send(HTTPStatus.OK, text, _HTML)

    def _refuse(self, status: HTTPStatus, words: str, more: dict[str, str] | None = None) -> None:
        self.close_connection = True
        self._send(status, f"{words}\n", _TEXT, more)

    def _send(self, status: HTTPStatus, text: str, kind: str, more: dict[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {**_HEADERS, **(more or {}), "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse other methods than GET, and what is no proper request, without repeating any of it."""
        self.command = self.command or ""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "this page can only be read", {"Allow": "GET"})
        else:
            self._refuse(HTTPStatus(code), "this is not a request that is served here")

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: addresses contain the token."""
