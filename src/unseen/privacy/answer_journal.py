"""What a client has answered already, kept outside of the client state that a server names by version.

A server that asks one round twice, with other weights or about other survivors, could subtract the answers.
The journal admits one question per round and purpose; the same question again, as after a crash, passes.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from filelock import FileLock
from torch import Tensor

from unseen.errors import UnseenError

Question = tuple[str, int, str]
"""(client, round, purpose)."""
NEW_RUN = "start a new run with another --seed"
SECRET_BYTES = 32
_CHECK_DIGITS = 16


class AnswerJournal(Protocol):
    """Record of a run's answers; `purpose` names what was asked, such as "train" or "unmask"."""

    @property
    def way_out(self) -> str:
        """What whoever is refused can do, as the end of a sentence."""
        ...

    def admit(self, *, client: str, round: int, purpose: str, digest: bytes) -> None:
        """Record an answer; raise UnseenError if this round was answered for another digest before.

        digest  of everything that the answer depends on and that the server chose
        """
        ...


@dataclass
class MemoryJournal:
    """Journal of one process, for clients that the server itself simulates."""

    answered: dict[Question, str] = field(default_factory=dict)
    way_out: str = NEW_RUN

    def admit(self, *, client: str, round: int, purpose: str, digest: bytes) -> None:
        """Record an answer in memory, or refuse it."""
        question = client, round, purpose
        _require_same(question, self.answered.get(question), digest)
        self.answered[question] = digest.hex()


@dataclass(frozen=True)
class FileJournal:
    """Journal of one run in a file, on the disk before an answer leaves; any number of processes share it."""

    path: Path
    way_out: str = NEW_RUN

    def admit(self, *, client: str, round: int, purpose: str, digest: bytes) -> None:
        """Record an answer on disk, or refuse it."""
        question = client, round, purpose
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with FileLock(self.path.with_name(self.path.name + ".lock")):
                known = self.read().get(question)
                _require_same(question, known, digest)
                if known is None:
                    append_line(self.path, [*question, digest.hex()])
        except OSError as error:
            raise UnseenError(
                f"the journal of answers {self.path} cannot be written ({error.strerror or error}), so "
                "nothing was answered"
            ) from error

    def read(self) -> dict[Question, str]:
        """Read every recorded answer's digest."""
        return {
            (str(client), int(round), str(purpose)): str(digest)
            for client, round, purpose, digest in read_lines(self.path)
        }


def own_secret(path: Path) -> bytes:
    """Return the secret in this file; the first call draws it from the operating system's entropy.

    Noise and batches follow from it: a server that names no version of the client's state, or an old one,
    cannot have the same question answered with other noise.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(os.urandom(SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(name, path)
            Path(name).unlink()
            _sync_folder(path.parent)
        secret = path.read_bytes()
    except OSError as error:
        raise UnseenError(f"the secret {path} cannot be read or made: {error.strerror or error}") from error
    if len(secret) != SECRET_BYTES:
        raise UnseenError(f"{path} has {len(secret)} bytes, not {SECRET_BYTES}: restore it from a backup")
    return secret


def append_line(path: Path, values: list[object]) -> None:
    """Append a list of values with a checksum as one line, and wait until it is on the disk.

    An unfinished last line, which `read_lines` leaves out, is cut off first.
    """
    text = json.dumps(values).encode()
    line = _check(text) + b" " + text + b"\n"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(handle, "r+b") as file:
        content = file.read()
        end = content.rfind(b"\n") + 1
        if _is_whole(content[end:]):
            end, line = len(content), b"\n" + line
        file.truncate(end)
        file.seek(end)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    if not content:
        _sync_folder(path.parent)


def read_lines(path: Path) -> list[list[Any]]:
    """Read the lines that `append_line` wrote; refuse a file that was damaged since."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    *lines, last = content.split(b"\n")
    if _is_whole(last) or _is_whole(last[:-1]):
        lines.append(last)  # a whole line whose end was lost: not one that a crash cut off
    for number, line in enumerate(lines, start=1):
        if not _is_whole(line):
            raise UnseenError(
                f"{path} is damaged in line {number}: restore it from a backup. Without it, nobody knows "
                "what this site has answered already, so it answers nothing more of this kind"
            )
    return [list(json.loads(line.partition(b" ")[2])) for line in lines]


def digest_tensors(*groups: Mapping[str, Tensor], about: str = "") -> bytes:
    """Hash named tensors (names, types, shapes, bytes) and a text, in one pass over the values."""
    total = hashlib.sha256(json.dumps(about).encode())
    for tensors in groups:
        total.update(b"group")
        for name in sorted(tensors):
            value = tensors[name].detach().cpu().contiguous()
            total.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
            if value.numel():
                content: Any = value.view(-1).view(torch.uint8).numpy()
                total.update(content)
    return total.digest()


def _require_same(question: Question, known: str | None, digest: bytes) -> None:
    client, round, purpose = question
    if known is not None and known != digest.hex():
        raise UnseenError(
            f"client {client!r} has answered round {round} already ({purpose}), and this request differs "
            "from that one: two answers could be subtracted from one another, so the second is refused. "
            "Continue the run as it was, or start one with another --seed"
        )


def _is_whole(line: bytes) -> bool:
    check, _, text = line.partition(b" ")
    return check == _check(text)


def _check(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:_CHECK_DIGITS].encode()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
