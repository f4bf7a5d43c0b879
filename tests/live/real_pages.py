"""`unseen` commands with a live page as real processes, ended for sure."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

RUN = ("train", "rotated-digits", "--hold-out", "75", "--seed", "0")
URL = re.compile(r"Live page: (http://127\.0\.0\.1:\d+/[\w-]{43}/)")
PATIENCE = 120.0


@contextmanager
def started(folder: Path, *words: object) -> Iterator[subprocess.Popen[str]]:
    """A command as a process of its own, killed at the end if it is still there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "unseen", *map(str, words)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address(process: subprocess.Popen[str]) -> str:
    """Read what a command says until it names its page."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if found := URL.search(line):
            return found[1]
    raise AssertionError(f"no address in {said!r}")


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def is_gone(url: str) -> bool:
    try:
        urlopen(f"{url}state", timeout=30).close()
    except (URLError, ConnectionError):
        return True
    return False


def news(url: str) -> dict[str, object]:
    with urlopen(f"{url}state", timeout=60) as answer:
        return dict(json.load(answer))
