"""Writing files so that a reader, or a crash, never meets half of one; where files are kept for later."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError

Record = dict[str, Any]
"""A JSON object, such as one line of a run's records."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary neighbour of `path`, then put it in place in one step.

    On any failure (a full disk, an interrupt) the file that was there before stays untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise UnseenError(f"could not write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by a UTF-8 text file, atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by a readable JSON file, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def locked(lock: Path, *, place: Path, option: str = "--out") -> Iterator[None]:
    """Keep a second process out of `place`; the lock ends with the process, however it ends."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise UnseenError(f"cannot write into {place}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UnseenError(
            f"another process is working in {place}; wait for it or choose another {option}"
        ) from None
    finally:
        os.close(handle)


def cache_folder() -> Path:
    """Where to keep what takes long to make: $UNSEEN_CACHE, $XDG_CACHE_HOME/unseen or ~/.cache/unseen."""
    if chosen := os.environ.get("UNSEEN_CACHE"):
        return Path(chosen).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "unseen"
    return Path("~/.cache/unseen").expanduser()
