"""Files on disk: atomic writing (text, JSON, TOML), locks between processes, and the cache folder."""

from __future__ import annotations

import json
import os
import secrets
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError

Record = dict[str, Any]
"""A JSON object, such as one line of a run's records."""


def write_atomically(path: Path, write: Callable[[Path], object], *, private: bool = False) -> None:
    """Call `write` with a temporary file next to `path`, then rename it to `path`.

    On any failure (a full disk, an interrupt) the file that was there before stays untouched, and the
    temporary one is removed.

    private  readable by this user only, in a folder of the same kind if it is new; else as the umask says
    """
    temporary = None
    try:
        make_folder(path.parent, private=private)
        temporary = _create_beside(path, private=private)
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        raise UnseenError(f"could not write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def make_folder(path: Path, *, private: bool = False) -> None:
    """Create a folder and those above it; `private` keeps the folder itself from other users."""
    path.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)


def sync_folder(path: Path) -> None:
    """Write a folder's list of files to disk, so that a renamed file survives a power failure."""
    with suppress(OSError):  # some file systems cannot; the rename itself is done
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


_PART = "part"
"""In the names of temporary files; only the beginning of the final name is, so that the name fits."""


def _create_beside(path: Path, *, private: bool) -> Path:
    """Create an empty file with a new name next to `path`; the umask, or `private`, decides who reads it."""
    name = f".{path.stem[:40]}.{secrets.token_hex(4)}.{_PART}{path.suffix[:40]}"
    temporary = path.with_name(name)
    handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if private else 0o666)
    os.close(handle)
    return temporary


def leftovers(folder: Path) -> list[Path]:
    """List temporary files that a killed process left in a folder."""
    return sorted(folder.glob(f".*.{_PART}*"))


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files that a killed process left; call it only while nobody else writes there."""
    for path in leftovers(folder):
        with suppress(OSError):
            path.unlink()


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    """Replace `path` with a UTF-8 text file, atomically; `private` keeps it from other users."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), private=private)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` with a readable JSON file, atomically."""
    write_text(path, to_json(value))


def to_json(value: Any) -> str:
    """Write a value as readable JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


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


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    return parse_toml(read_text(path), path)


def read_text(path: Path) -> str:
    """Read a UTF-8 text file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnseenError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UnseenError(f"{path} is not UTF-8 text: {error}") from error


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Parse the content of a TOML file; `path` is for messages."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UnseenError(f"{path} is not a TOML file: {error}") from error


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
def locked(lock: Path, *, place: Path, option: str = "--out", private: bool = False) -> Iterator[None]:
    """Lock `place` against other processes; the lock is released when this process ends, even if killed.

    private  keep the lock's folder from other users if it is new
    """
    from filelock import FileLock, Timeout

    guard = FileLock(lock, timeout=_MOMENT)
    try:
        make_folder(lock.parent, private=private)
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


_MOMENT = 0.2
"""Seconds to wait for a lock, so that somebody who only asks `is_locked` turns nobody away."""


def is_locked(lock: Path) -> bool:
    """Return whether a process holds this lock of `locked`; what cannot be asked counts as free."""
    from filelock import FileLock, Timeout

    if not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False


def cache_folder() -> Path:
    """Return the cache folder for slow results: $UNSEEN_CACHE, $XDG_CACHE_HOME/unseen or ~/.cache/unseen."""
    if chosen := os.environ.get("UNSEEN_CACHE"):
        return Path(chosen).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "unseen"
    return Path("~/.cache/unseen").expanduser()
