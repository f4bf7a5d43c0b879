"""Files on disk: atomic writing (text, JSON, TOML), locks between processes, and the cache folder."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unseen.errors import UnseenError

Record = dict[str, Any]
"""A JSON object, such as one line of a run's records."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary file next to `path`, then rename it to `path`.

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
    """Replace `path` with a UTF-8 text file, atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Replace `path` with a readable JSON file, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def to_toml(values: Mapping[str, Any]) -> str:
    """Write plain values as TOML: one line per value, then one `[table]` per mapping; None is left out.

    Lists and nested tables stay on one line, which tomli-w cannot write: configurations and grids that are
    already recorded (`config.toml`, `results/*/bench.toml`) keep their bytes when they are written again.
    """
    blocks = [_toml_lines({key: value for key, value in values.items() if not isinstance(value, Mapping)})]
    blocks += [
        [f"[{_toml_key(key)}]", *_toml_lines(table)]
        for key, table in values.items()
        if isinstance(table, Mapping)
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def write_toml(path: Path, values: Mapping[str, Any]) -> None:
    """Replace `path` with a TOML file, atomically."""
    write_text(path, to_toml(values))


def _toml_lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in table.items() if value is not None]


def _toml_key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else json.dumps(name)


def _toml_value(value: Any) -> str:
    """Write a value on one line; JSON's strings, numbers and lists are TOML too."""
    if isinstance(value, Mapping):
        inner = ", ".join(_toml_lines(value))
        return f"{{ {inner} }}" if inner else "{}"
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


@contextmanager
def locked(lock: Path, *, place: Path, option: str = "--out") -> Iterator[None]:
    """Lock `place` against other processes; the lock is released when this process ends, even if killed."""
    guard = FileLock(lock, timeout=0)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        guard.acquire()
    except Timeout:
        raise UnseenError(
            f"another process is working in {place}; wait for it or choose another {option}"
        ) from None
    except OSError as error:
        raise UnseenError(f"cannot write into {place}: {error.strerror}") from error
    try:
        yield
    finally:
        guard.release()


def cache_folder() -> Path:
    """Return the cache folder for slow results: $UNSEEN_CACHE, $XDG_CACHE_HOME/unseen or ~/.cache/unseen."""
    if chosen := os.environ.get("UNSEEN_CACHE"):
        return Path(chosen).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "unseen"
    return Path("~/.cache/unseen").expanduser()
