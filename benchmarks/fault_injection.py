"""Faults at the N-th write below a folder: it fails, the disk stays full from there, or the process ends.

The functions that open, write, rename, delete and flush files are replaced in a forked child, so that every
single operation of a run can be made the one that fails. A write that fails or is killed has written half of
its bytes.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from unseen import tensor_files
from unseen.cli.main import ENVIRONMENT
from unseen.errors import UnseenError

KINDS = ("kill", "fail", "full")
"""What happens at the chosen operation: the process ends; this one fails; this and all later ones fail."""
FINISHED, REFUSED, TRACEBACK, KILLED = 0, 1, 3, 77
"""Exit codes of a child: done, ended with one line, ended with anything else, killed by the fault."""


class Faults:
    """Counts the operations below `root` and lets the one with the number `at` go wrong (0 = none)."""

    def __init__(self, root: Path, *, at: int = 0, kind: str = "fail") -> None:
        self.root, self.at, self.kind = str(root.resolve()), at, kind
        self.count = 0
        self.seen: list[str] = []
        self.handles: dict[object, str] = {}

    def strikes(self, what: str, path: object) -> bool:
        """Count an operation; return whether it goes wrong."""
        self.count += 1
        self.seen.append(f"{what} {Path(os.fsdecode(path)).name if isinstance(path, str | bytes) else ''}")
        late = self.kind == "full" and what not in ("unlink", "rmdir")
        return bool(self.at) and (self.count == self.at or (late and self.count > self.at))

    def concerns(self, path: object) -> bool:
        """Check whether a path is below the root."""
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        return str(Path(os.fsdecode(path)).absolute()).startswith(self.root)

    def strike(self) -> None:
        """End the process, or fail as a full disk does."""
        if self.kind == "kill":
            os._exit(KILLED)
        code = errno.EIO if self.kind == "fail" and self.count % 2 else errno.ENOSPC
        raise OSError(code, os.strerror(code))

    def install(self) -> None:
        """Replace the functions that change files, for the rest of this process."""
        for name in ("mkdir", "replace", "rename", "unlink", "rmdir", "link"):
            self._replace_function(name)
        real_fsync, real_open, real_os_open = os.fsync, io.open, os.open

        def fsync(handle: Any) -> None:
            if self.strikes("fsync", ""):
                self.strike()
            real_fsync(handle)

        def os_open(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            writes = flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
            if writes and self.concerns(path) and self.strikes("create", os.fsdecode(path)):
                self.strike()
            handle = real_os_open(path, flags, *rest, **named)
            if writes and self.concerns(path):
                self.handles[handle] = os.fsdecode(path)
            return handle

        def open_file(path: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            if not set(mode) & set("wax+"):
                return real_open(path, mode, *rest, **named)
            if path in self.handles:
                return _WatchedFile(real_open(path, mode, *rest, **named), self, self.handles[path])
            if not self.concerns(path):
                return real_open(path, mode, *rest, **named)
            if self.strikes("open", os.fsdecode(path)):
                self.strike()
            return _WatchedFile(real_open(path, mode, *rest, **named), self, os.fsdecode(path))

        os.fsync, os.open = fsync, os_open  # type: ignore[assignment]
        io.open = builtins.open = open_file  # type: ignore[assignment]
        self._replace_save_file()

    def _replace_function(self, name: str) -> None:
        real: Callable[..., Any] = getattr(os, name)

        def call(path: Any, *rest: Any, **named: Any) -> Any:
            below = "dir_fd" in named or self.concerns(path)
            if below and self.strikes(name, os.fsdecode(path)):
                self.strike()
            return real(path, *rest, **named)

        setattr(os, name, call)

    def _replace_save_file(self) -> None:
        real = tensor_files.save_file

        def save(tensors: Any, path: Any, metadata: Any = None) -> None:
            if not self.concerns(path) or not self.strikes("tensors", os.fsdecode(path)):
                real(tensors, path, metadata)
                return
            real(tensors, path, metadata)
            os.truncate(path, Path(path).stat().st_size // 2)
            try:
                self.strike()
            except OSError as error:
                reason = f"I/O error: {error.strerror} (os error {error.errno})"
                raise SafetensorError(f"Error while serializing: {reason}") from None

        tensor_files.save_file = save  # type: ignore[assignment]


class _WatchedFile:
    """A file whose writes may go wrong halfway."""

    def __init__(self, file: Any, faults: Faults, path: str) -> None:
        self._file, self._faults, self._path = file, faults, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _WatchedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)

    def write(self, content: Any) -> Any:
        if self._faults.strikes("write", self._path):
            half = content if isinstance(content, str) else memoryview(content).cast("B")
            self._file.write(half[: len(half) // 2])
            self._file.flush()
            self._faults.strike()
        return self._file.write(content)

    def truncate(self, size: int | None = None) -> Any:
        if self._faults.strikes("truncate", self._path):
            self._faults.strike()
        return self._file.truncate(size)


def run_child(work: Callable[[], None], faults: Faults | None = None) -> tuple[int, str]:
    """Fork, install the faults and do the work; return the child's exit code, and the line or traceback.

    A child that finished says how many operations it made.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code, said = TRACEBACK, ""
        try:
            signal.alarm(300)
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            if faults is not None:
                faults.install()
            work()
            code, said = FINISHED, str(faults.count if faults else 0)
        except UnseenError as error:
            code, said = (REFUSED if "\n" not in str(error) else TRACEBACK), str(error)
        except OSError as error:
            code, said = (REFUSED if error.errno in ENVIRONMENT else TRACEBACK), traceback.format_exc()
        except BaseException:
            said = traceback.format_exc()
        finally:
            os.write(writing, said.encode("utf-8", "replace")[-60_000:])
            sys.stdout.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said
