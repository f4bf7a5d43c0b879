"""Follow a file of records: only new bytes are read, and a file that was cut is read again."""

from __future__ import annotations

import time
from pathlib import Path

from unseen.errors import UnseenError
from unseen.runs.records import Record, parse_records

_MARK = 4096
"""Bytes before the place reached that are compared, to notice that another attempt wrote over them."""


class RecordTail:
    """The complete records of a file that another process appends to.

    offset  bytes read so far, always the end of a line
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[Record] = []
        self.offset = 0
        self._mark = b""

    def read(self) -> bool:
        """Read what was added; return whether anything changed.

        After a crash, the next attempt cuts the file at its checkpoint: then everything is read again.
        """
        before = self.offset
        try:
            with self.path.open("rb") as file:
                file.seek(max(self.offset - len(self._mark), 0))
                if file.read(len(self._mark)) != self._mark:
                    self._forget()
                    file.seek(0)
                new = file.read()
        except OSError:
            new = b""
            self._forget()
        whole = new[: new.rfind(b"\n") + 1]
        if whole:
            try:
                self.records += parse_records(whole, self.path)
            except UnseenError:
                self._forget()
                raise
            self.offset += len(whole)
            self._mark = (self._mark + whole)[-_MARK:]
        return self.offset != before or bool(whole)

    @property
    def age(self) -> float:
        """Seconds since the file was written to; 0 if there is none."""
        try:
            return max(time.time() - self.path.stat().st_mtime, 0.0)
        except OSError:
            return 0.0

    def _forget(self) -> None:
        self.records, self.offset, self._mark = [], 0, b""
