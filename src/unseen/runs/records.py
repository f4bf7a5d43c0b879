"""Append-only records: one JSON line per event. Selection, tables and figures come from them alone."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError
from unseen.fileio import Record

__all__ = ["Record", "Records", "parse_json", "plain", "read_records"]


class Records:
    """The records of one run, in memory and on disk."""

    def __init__(self, path: Path, *, keep_bytes: int = 0) -> None:
        """Open the file and continue after its first `keep_bytes` bytes.

        Anything after them was written between the last checkpoint and a crash, and belongs to rounds that
        are run again.
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
        """Flush everything to disk before a checkpoint refers to it."""
        try:
            with self.path.open("ab") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise UnseenError(f"could not write {self.path}: {error.strerror or error}") from error


def read_records(path: Path) -> list[Record]:
    """Read a record file; an incomplete last line, which a crash leaves behind, is ignored."""
    lines = path.read_bytes().split(b"\n")
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line.decode("utf-8"))
        except ValueError as error:
            if number == len(lines):
                break
            raise UnseenError(
                f"{path} line {number} is not a JSON record ({error}); "
                "only the last line of an interrupted run may be incomplete"
            ) from error
        if not isinstance(record, dict):
            raise UnseenError(f"{path} line {number} is a {type(record).__name__}, expected an object")
        records.append(record)
    return records


def parse_json(text: str) -> Any:
    """Parse JSON; NaN and infinity, which are not JSON, become None."""
    return json.loads(text, parse_constant=lambda _: None)


def plain(value: Any) -> Any:
    """Convert tensors and NumPy values to plain JSON values, and NaN or infinity to null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
