"""Append-only records: one JSON line per event. Selection, tables and figures come from them alone."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from unseen.checksums import Crc, crc_of, unseal
from unseen.errors import UnseenError
from unseen.fileio import Record, make_folder

__all__ = ["Record", "Records", "parse_json", "plain", "read_records"]


class Records:
    """The records of one run, in memory and on disk."""

    def __init__(self, path: Path, *, keep_bytes: int = 0, expected: str = "") -> None:
        """Open the file and continue after its first `keep_bytes` bytes.

        Anything after them was written between the last checkpoint and a crash, and belongs to rounds that
        are run again. A file that is shorter, or whose part to keep is damaged, is refused and left as it is.

        expected  checksum of the part to keep; empty if unknown
        """
        self.path = path
        kept = _read_kept(path, keep_bytes, expected)
        self.entries = parse_records(kept, path)
        self.bytes = keep_bytes
        self._sum = Crc()
        self._sum.add(kept)
        try:
            make_folder(path.parent)
            unseal(path.parent, path.name)
            if path.exists():
                with path.open("r+b") as file:
                    file.truncate(keep_bytes)
        except OSError as error:
            raise UnseenError(f"could not write {self.path}: {error.strerror or error}") from error

    @property
    def checksum(self) -> str:
        """The checksum of everything written so far."""
        return str(self._sum)

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
        self._sum.add(line)
        self.entries.append(record)
        return record

    def sync(self) -> None:
        """Flush everything to disk before a checkpoint refers to it."""
        try:
            with self.path.open("ab") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise UnseenError(f"could not write {self.path}: {error.strerror or error}") from error


def _read_kept(path: Path, count: int, expected: str) -> bytes:
    """Read the first `count` bytes, which a checkpoint refers to."""
    way_out = "restore it from a backup, or start again with another --out; the folder was left as it is"
    try:
        with path.open("rb") as file:
            kept = file.read(count)
    except FileNotFoundError:
        if count == 0:
            return b""
        raise UnseenError(f"{path} is missing, and the checkpoint continues it: {way_out}") from None
    except OSError as error:
        raise UnseenError(f"cannot read {path}: {error.strerror or error}") from error
    if len(kept) < count:
        raise UnseenError(f"{path} has {len(kept)} bytes, but {count} belong to the checkpoint: {way_out}")
    check_kept(kept, path, expected)
    return kept


def check_kept(kept: bytes, path: Path, expected: str) -> None:
    """Refuse records that differ from the checksum in the checkpoint; an empty one is not compared."""
    if expected and crc_of(kept) != expected:
        raise UnseenError(
            f"{path} is damaged (its checksum in the checkpoint differs): restore it from a backup, or start "
            "again with another --out; the folder was left as it is"
        )


def read_records(path: Path) -> list[Record]:
    """Read a record file; an incomplete last line, which a crash leaves behind, is ignored."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnseenError(f"cannot read {path}: {error.strerror or error}") from error
    return parse_records(content, path)


def parse_records(content: bytes, path: Path) -> list[Record]:
    """Parse the content of a record file; `path` is for messages."""
    lines = content.split(b"\n")
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise UnseenError(
                f"{path} line {number} is not a JSON record ({error}); "
                "only the last line of an interrupted run may be incomplete"
            ) from error
        if not isinstance(record, dict):
            raise UnseenError(f"{path} line {number} is a {type(record).__name__}, expected an object")
        if not isinstance(record.get("event"), str):
            raise UnseenError(f"{path} line {number} is a record without an event; was it damaged?")
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
