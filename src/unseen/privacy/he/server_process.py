"""A process of its own for the server's arithmetic, so that no secret key is ever in the same memory.

In a simulation the clients live in the run's process or in its workers. The server's half does not: it is
another program, and gets nothing but the bytes that are piped to it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any, BinaryIO, Concatenate, ParamSpec, TypeVar, cast

from unseen.errors import UnseenError
from unseen.privacy.he.encrypted_server import EncryptedServer

P = ParamSpec("P")
R = TypeVar("R")
_PROGRAM = "from unseen.privacy.he.server_process import serve; serve()"


class ServerProcess:
    """Runs functions on the one `EncryptedServer` that lives in the other process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(place for place in sys.path if place)},
        )
        self.close = weakref.finalize(self, _end, self._process)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def run(
        self, function: Callable[Concatenate[EncryptedServer, P], R], *args: P.args, **named: P.kwargs
    ) -> R:
        """Call an importable function with the server there, and return what it returns."""
        try:
            to, back = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
            pickle.dump((function, args, named), to)
            to.flush()
            result = pickle.load(back)
        except (BrokenPipeError, EOFError):
            code = self._process.wait()
            raise UnseenError(
                f"the process for encrypted arithmetic ended unexpectedly (exit code {code}); was memory "
                "short? Go on with --resume"
            ) from None
        if isinstance(result, Exception):
            raise result
        return cast(R, result)


def serve() -> None:
    """Answer calls until the other end closes; what is printed meanwhile goes to the error output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    server = EncryptedServer()
    while True:
        try:
            function, args, named = pickle.load(calls)
        except EOFError:
            return
        try:
            result: Any = function(server, *args, **named)
        except Exception as error:
            result = error
        pickle.dump(result, answers)
        answers.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):
        cast(BinaryIO, process.stdin).close()
    process.wait()
    cast(BinaryIO, process.stdout).close()
