"""A tap: passes a site's connections on to the coordinator and keeps every byte that the site sends."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType


class RecordingProxy:
    """Listens on a free port of this machine while it is open."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self.target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._kept: list[bytes] = []
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def sent(self) -> bytes:
        """All that came from the site, in the order in which it came."""
        return b"".join(self._kept)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                site, _ = self._listener.accept()
                coordinator = socket.create_connection(self.target)
                self._open += [site, coordinator]
                for source, sink, keep in ((site, coordinator, True), (coordinator, site, False)):
                    threading.Thread(target=self._pass_on, args=(source, sink, keep), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, keep: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if keep:
                    self._kept.append(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def __enter__(self) -> RecordingProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for line in self._open:
            line.close()
