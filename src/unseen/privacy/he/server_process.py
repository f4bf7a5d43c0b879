"""The server's arithmetic on ciphertexts, in a separate process that never has the secret key in memory.

In a simulation the clients are in the run's process or its workers. The server half is another program, gets
only bytes through a pipe that it cannot decrypt, and needs neither torch nor a model.
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
    """Runs functions on the `EncryptedServer` in the other process."""

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
        """Process id."""
        return self._process.pid

    def run(
        self, function: Callable[Concatenate[EncryptedServer, P], R], *args: P.args, **named: P.kwargs
    ) -> R:
        """Call an importable function with the server in the other process, and return its result."""
        try:
            to, back = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
            pickle.dump((function, args, named), to)
            to.flush()
            result = pickle.load(back)
        except (BrokenPipeError, EOFError):
            code = self._process.wait()
            raise UnseenError(
                f"the process for encrypted arithmetic ended unexpectedly (exit code {code}); did memory "
                "run out? Continue with --resume"
            ) from None
        if isinstance(result, Exception):
            raise result
        return cast(R, result)


def serve() -> None:
    """Answer calls until the pipe closes; standard output is redirected to standard error."""
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
"""A smaller factor would become zero when encoded."""


class EncryptedServer:
    """Public context and one round's ciphertexts, a list per client.

    Equal positions in the lists hold the same part of the state.
    """

    def __init__(self) -> None:
        self.context: Any = None
        self.received: dict[str, Sequence[bytes]] = {}

    def open(self, public: bytes) -> None:
        """Load the public context; refuse one that can decrypt."""
        context = open_context(public)
        if context.is_private():
            raise UnseenError("the server received the secret encryption key, which it must not have")
        self.context, self.received = context, {}

    def take(self, client: str, ciphertexts: Sequence[bytes]) -> None:
        """Store what a client sent."""
        self.received[client] = ciphertexts

    def forget(self) -> None:
        """Drop the round's ciphertexts."""
        self.received = {}

    def gram(self, rows: int) -> list[bytes]:
        """Compute the encrypted inner products of all pairs of clients over their first rows.

        Pairs are in the order (0, 0), (0, 1) ... (1, 1), (1, 2) ... The slots of every product are summed
        here, so that whoever decrypts learns the inner product and none of its terms.
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
        """Compute the encrypted sum of the clients' rows times their factors; see `drop_negligible`."""
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

    def plain_sum(self, rows: range) -> list[bytes]:
        """Compute the encrypted sum of the clients' rows as they are; without products it is exact."""
        summed = []
        for row in rows:
            first, *others = self._vectors(row)
            summed.append(bytes(sum(others, first).serialize()))
        return summed

    def _vectors(self, row: int) -> list[Any]:
        return [open_ciphertext(self.context, sent[row]) for sent in self.received.values()]


def drop_negligible(factors: Mapping[str, float]) -> dict[str, float]:
    """Drop factors that are practically zero; if all are, keep the first client's at the smallest value."""
    used = {client: factor for client, factor in factors.items() if abs(factor) > NEXT_TO_NOTHING}
    return used or {next(iter(factors)): NEXT_TO_NOTHING}
