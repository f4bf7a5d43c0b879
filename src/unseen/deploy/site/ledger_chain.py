"""Lines that cannot be changed unnoticed: each holds the hash of the one before and the site's signature.

The last line is also kept in a file beside the ledger, so that lines deleted at the end are missed. Lines
that an older version wrote are covered as a whole by the first chained line after them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from unseen.deploy.identity.keys import load_private_key, sign, verify_signature
from unseen.errors import UnseenError
from unseen.fileio import write_text

LEDGER, HEAD, LOCK = "sent.jsonl", "sent.head", "sent.lock"
LOCK_SECONDS, TAIL_BYTES = 60.0, 1 << 16
NEW_KEY = "key"
"""Entry of a line that names the public key of the lines after it (and, in the first, of itself)."""
_SIGNED = re.compile(rb'^(\{.*), "signature": "([A-Za-z0-9+/=]*)"\}$')


def append_line(home: Path, values: Mapping[str, Any], *, key: Path | None) -> None:
    """Append a line and wait until it is on disk; `key` is the site's private key, None without one.

    Whoever sends something calls this first: what cannot be written here does not leave.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / LOCK, timeout=LOCK_SECONDS):
            _append(home, values, key)
    except (OSError, Timeout) as error:
        raise UnseenError(f"{home / LEDGER} cannot be written ({error}); nothing is sent") from error


def append_new_key(home: Path, line: str, *, key: Path) -> None:
    """Name the public key of the lines to come, signed with the key so far; once, and only in a chain."""
    path = home / LEDGER
    if _find_end(path).chained:
        last = json.loads(path.read_bytes().splitlines()[-1])
        if last.get(NEW_KEY) != line or last.get("ask") != "new key":
            now = datetime.now(UTC).isoformat(timespec="seconds")
            append_line(home, {"time": now, "ask": "new key", NEW_KEY: line, "values": {}}, key=key)


def _append(home: Path, values: Mapping[str, Any], key: Path | None) -> None:
    path = home / LEDGER
    end = _find_end(path)
    body: dict[str, Any] = {**values, "line": end.lines + 1, "before": end.digest}
    private = None if key is None else load_private_key(key)
    if private is not None and not end.chained:
        body[NEW_KEY] = private.line
    text = json.dumps(body).encode()
    signature = b"" if private is None else base64.b64encode(sign(private, text))
    line = text[:-1] + b', "signature": "' + signature + b'"}'
    handle = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "r+b") as file:
        file.truncate(end.size)  # a line that a crash cut short was never followed by its message
        file.seek(end.size)
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())
    write_text(home / HEAD, line.decode(), private=True)


class _End(NamedTuple):
    """The end of a ledger: size and number of its whole lines, and what the next line must hold."""

    size: int
    lines: int
    chained: bool
    digest: str


def _find_end(path: Path) -> _End:
    """Read the last line; all of them only if the chain has not begun."""
    size = path.stat().st_size if path.exists() else 0
    if not size:
        return _End(0, 0, False, _digest(b""))
    with path.open("rb") as file:
        for start in (max(size - TAIL_BYTES, 0), 0):
            file.seek(start)
            tail = file.read()
            whole = tail[: tail.rfind(b"\n") + 1]
            last = whole.splitlines()[-1] if whole else b""
            if _is_chained(last):
                number = json.loads(last)["line"]
                return _End(start + len(whole), number, True, _digest(last))
    return _End(len(whole), len(whole.splitlines()), False, _digest(whole))


def _is_chained(line: bytes) -> bool:
    return _SIGNED.match(line) is not None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class LedgerCheck:
    """Outcome of a verification.

    lines    number of lines that were found
    old      of these, lines at the beginning from a version without chain
    signed   of these, lines with a valid signature
    problem  what is wrong; empty if nothing is
    line     number of the first line that is wrong; 0 if the fault is elsewhere
    """

    lines: int
    old: int
    signed: int
    problem: str = ""
    line: int = 0


def verify_ledger(home: Path, *, public: str | None) -> LedgerCheck:
    """Check every line of a home's ledger; `public` is the site's public key, None if it has none."""
    path = home / LEDGER
    try:
        content = path.read_bytes()
        head = (home / HEAD).read_bytes() if (home / HEAD).exists() else b""
    except OSError as error:
        raise UnseenError(f"cannot read {path}: {error.strerror}") from error
    lines = content.splitlines()
    old = next((number for number, line in enumerate(lines) if _is_chained(line)), len(lines))
    reader = _ChainReader(lines, old, content, public)
    number, problem = reader.first_fault(head)
    return LedgerCheck(len(lines), old, reader.signed, problem, number)


class _ChainReader:
    """Walks along the chain of one ledger."""

    def __init__(self, lines: list[bytes], old: int, content: bytes, public: str | None) -> None:
        self.lines, self.old, self.public = lines, old, public
        self.prefix = b"".join(content.splitlines(keepends=True)[:old])
        self.key, self.signed = "", 0

    def first_fault(self, head: bytes) -> tuple[int, str]:
        """Return the number of the first wrong line and what is wrong, or (0, "")."""
        expected = _digest(self.prefix)
        for number, line in enumerate(self.lines[self.old :], start=self.old + 1):
            if problem := self._problem(line, number, expected):
                return number, problem
            expected = _digest(line)
        if head and head not in self.lines[self.old :]:
            last = json.loads(head).get("line", "?") if _is_chained(head) else "?"
            return 0, f"lines at the end are missing: {last} were written, {len(self.lines)} are left"
        if not head and self.old < len(self.lines):
            return 0, f"{HEAD} is missing, so lines deleted at the end would not be noticed"
        if self.public is not None and self.signed and self.key != self.public:
            return 0, "it is signed, but not with this site's key"
        return 0, ""

    def _problem(self, line: bytes, number: int, expected: str) -> str:
        found = _SIGNED.match(line)
        if found is None:
            return "is not chained"
        try:
            body = found.group(1) + b"}"
            values = json.loads(body)
        except ValueError:
            return "cannot be read"
        if values.get("line") != number or values.get("before") != expected:
            return "does not follow the line before it: a line was changed, removed or inserted"
        if not self.key and number == self.old + 1:
            self.key = str(values.get(NEW_KEY, ""))
        if not self.key:
            return "" if self.public is None else "is not signed, although this site has a key"
        if not verify_signature(self.key, body, base64.b64decode(found.group(2))):
            return "has no valid signature of the site's key"
        self.signed += 1
        self.key = str(values.get(NEW_KEY, self.key))
        return ""
