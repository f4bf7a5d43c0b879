"""Servers and runs as real processes on loopback, ended for sure."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

PATIENCE = 240.0
"""Seconds; long because machines that run tests are busy. Nothing waits longer than it has to."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(folder: Path, *words: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python module run as a process in `folder`; what it says is in its log there."""
    with (folder / f"{words[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(condition: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    """Wait until something is so; a process that ends before is an error."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, f"{process.args} ended with {process.returncode}"
        assert time.monotonic() < end, f"{process.args}: waited in vain"
        time.sleep(0.2)


def answers(address: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=30):
        return True
    return False
