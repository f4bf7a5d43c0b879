"""The address of a folder's live page, kept in the folder: a tab finds the page again after a restart."""

from __future__ import annotations

import errno
import json
import re
import secrets
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from unseen.errors import UnseenError
from unseen.fileio import make_folder, to_json, write_text
from unseen.live.live_view import NewsDesk
from unseen.live.page_server import PageServer

ADDRESS = ".live.json"
"""Readable by its owner only, no part of the records, removed when the page ends with what it followed."""
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,64}")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_PATIENCE = 2.0


class PageAddress(NamedTuple):
    """The port and the secret of a page."""

    port: int
    token: str


def read_address(folder: Path) -> PageAddress | None:
    """Read the address that an earlier page of this folder had; none that others could have read."""
    path = folder / ADDRESS
    try:
        if sys.platform != "win32" and path.stat().st_mode & _OTHERS:
            return None
        values = json.loads(path.read_text(encoding="utf-8"))
        port, token = int(values["port"]), str(values["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return PageAddress(port, token) if 0 < port < 65536 and _TOKEN.fullmatch(token) else None


def open_server(folder: Path, desk: NewsDesk, *, port: int | None = None) -> PageServer:
    """Bind the server of a folder's page: to `port`, to the port of the earlier page, or to a free one.

    The token of the earlier page is kept. A page that is still served elsewhere keeps its port.
    """
    known = read_address(folder)
    token = known.token if known else secrets.token_urlsafe(32)
    server = _bind_again(known.port, token, desk) if known and port is None else None
    taken = known is not None and port is None and server is None
    try:
        server = server or PageServer(port or 0, token, desk)
    except OSError as error:
        raise UnseenError(
            f"port {port} cannot be used ({error.strerror}): choose another with --port"
        ) from error
    if not taken:
        values = {"port": server.server_port, "token": token}
        make_folder(folder)
        write_text(folder / ADDRESS, to_json(values), private=True)
    return server


def forget_address(folder: Path) -> None:
    """Remove the address when its page has ended for good."""
    with suppress(OSError):
        (folder / ADDRESS).unlink(missing_ok=True)


def _bind_again(port: int, token: str, desk: NewsDesk) -> PageServer | None:
    """Bind to the earlier port as soon as the process that died has let go of it; None if it does not."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return PageServer(port, token, desk)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                return None
            time.sleep(0.1)
