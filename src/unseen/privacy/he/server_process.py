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
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any, BinaryIO, Concatenate, ParamSpec, TypeVar, cast

from unseen.errors import UnseenError
from unseen.privacy.he.ckks import open_ciphertext, open_context

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


NEXT_TO_NOTHING = 1e-9
"""A smaller factor would become zero in the encryption."""


class EncryptedServer:
    """Holds the public context and one round's ciphertexts, a list for every client.

    What one list holds at a place belongs to the same numbers as what the others hold there.
    """

    def __init__(self) -> None:
        self.context: Any = None
        self.received: dict[str, Sequence[bytes]] = {}

    def open(self, public: bytes) -> None:
        """Take the public context; refuse one that could decrypt."""
        context = open_context(public)
        if context.is_private():
            raise UnseenError("the server was handed the secret key of the encryption; it must not have it")
        self.context, self.received = context, {}

    def take(self, client: str, ciphertexts: Sequence[bytes]) -> None:
        """Keep what a client sent."""
        self.received[client] = ciphertexts

    def forget(self) -> None:
        """Drop the round's ciphertexts."""
        self.received = {}

    def gram(self, rows: int) -> list[bytes]:
        """The encrypted inner products of all pairs of clients over their first rows.

        Pairs come in the order (0, 0), (0, 1) ... (1, 1), (1, 2) ... The slots of every product are summed
        up here, so that whoever decrypts learns the inner product and nothing of what it is made of.
        """
        pairs = list(combinations_with_replacement(range(len(self.received)), 2))
        sums: list[Any] = [None] * len(pairs)
        for row in range(rows):
            vectors = self._vectors(row)
            for place, (one, other) in enumerate(pairs):
                product = vectors[one] * vectors[other]
                sums[place] = product if sums[place] is None else sums[place] + product
        return [bytes(total.sum().serialize()) for total in sums]

    def weighted_sum(self, rows: range, factors: Mapping[str, float]) -> list[bytes]:
        """The encrypted sum of the clients' rows, each times its client's factor; see `drop_negligible`."""
        used = drop_negligible(factors)
        summed = []
        for row in rows:
            total: Any = None
            for client, vector in zip(self.received, self._vectors(row), strict=True):
                if client in used:
                    part = vector * used[client]
                    total = part if total is None else total + part
            summed.append(bytes(total.serialize()))
        return summed

    def _vectors(self, row: int) -> list[Any]:
        return [open_ciphertext(self.context, sent[row]) for sent in self.received.values()]


def drop_negligible(factors: Mapping[str, float]) -> dict[str, float]:
    """The factors that are not next to nothing; if all are, the first client's, as small as may be."""
    used = {client: factor for client, factor in factors.items() if abs(factor) > NEXT_TO_NOTHING}
    return used or {next(iter(factors)): NEXT_TO_NOTHING}
