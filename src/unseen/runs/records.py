"""Append-only records: one JSON line per event. Selection, tables and figures follow from them alone."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError

Record = dict[str, Any]


class Records:
    """The records of one run, in memory and on disk."""

    def __init__(self, path: Path, *, keep_bytes: int = 0) -> None:
        """Open the file and go on after its first `keep_bytes` bytes.

        What lies behind them was written after the last checkpoint by a process that then died; the
        rounds it tells of are run again.
        """
        self.path = path
        self.entries: list[Record] = []
        if path.exists():
            with path.open("r+b") as file:
                file.truncate(keep_bytes)
            self.entries = read_records(path)
        self.bytes = keep_bytes

    def append(self, event: str, **values: Any) -> Record:
        """Write one event and return its record."""
        record = {"event": event, **plain(values)}
        line = (json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n").encode()
        try:
            with self.path.open("ab") as file:
                file.write(line)
        except OSError as error:
            raise UnseenError(f"could not write {self.path}: {error.strerror or error}") from error
        self.bytes += len(line)
        self.entries.append(record)
        return record

    def sync(self) -> None:
        """Bring everything to the disk itself, before a checkpoint refers to it."""
        try:
            with self.path.open("ab") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise UnseenError(f"could not write {self.path}: {error.strerror or error}") from error


def read_records(path: Path) -> list[Record]:
    """Read all whole lines of a record file; a torn last line is left out."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def plain(value: Any) -> Any:
    """Turn tensors and NumPy values into plain JSON values, and NaN or infinity into null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
