"""Getting one file over HTTP: into a `.part` beside its place, resumed where it broke off, then checked.

Nothing ever stands under the final name but the whole file with the right checksum.
"""

from __future__ import annotations

import hashlib
import http.client
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from unseen.data.sources import Progress, no_progress
from unseen.errors import UnseenError, UsageError

_CHUNK = 1 << 18
_PATIENCE = 60
_PARTIAL, _BEYOND_THE_END = 206, 416


@dataclass(frozen=True)
class RemoteFile:
    """A file with known content: its name, the places it is to be had from, its MD5 as published."""

    name: str
    urls: tuple[str, ...]
    md5: str

    def from_mirror(self, folder: str) -> RemoteFile:
        """The same file from another place."""
        if urlsplit(folder).scheme not in ("http", "https"):
            raise UsageError(f"--mirror {folder} is no address; expected http://... or https://...")
        return replace(self, urls=(f"{folder.rstrip('/')}/{self.name}",))


def fetch_file(file: RemoteFile, target: Path, *, progress: Progress = no_progress) -> Path:
    """Bring a file to `target`, trying one address after the other; return the path."""
    if target.exists():
        if _md5(target) != file.md5:
            raise UnseenError(f"{target} is there but is not the released {file.name}: move it away first")
        return target
    part = target.with_name(f"{target.name}.part")
    for number, url in enumerate(file.urls, start=1):
        try:
            with _told(url, part):
                part.parent.mkdir(parents=True, exist_ok=True)
                _download(url, part, what=f"downloading {file.name}", progress=progress)
                _require_content(file, part, url)
                part.replace(target)
            break
        except UnseenError:
            if number == len(file.urls):
                raise
    return target


def _download(url: str, part: Path, *, what: str, progress: Progress) -> None:
    """Append what is missing to `part`, or start again where the server cannot go on in the middle."""
    done = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        reply = urlopen(request, timeout=_PATIENCE)
    except HTTPError as error:
        if error.code == _BEYOND_THE_END:
            return
        raise
    with reply:
        if reply.status != _PARTIAL:
            done = 0
        left = int(reply.headers.get("Content-Length") or 0)
        _require_room(part, left)
        with part.open("ab" if done else "wb") as out:
            got = _copy(reply, out, what=what, progress=progress, place=(done, done + left))
        if got < left:
            raise ConnectionError(f"it broke off after {done + got} of {done + left} bytes")


def _copy(reply: Any, out: Any, *, what: str, progress: Progress, place: tuple[int, int]) -> int:
    got, (start, end) = 0, place
    while block := reply.read(_CHUNK):
        out.write(block)
        got += len(block)
        progress(what, start + got, max(end, start + got))
    return got


def _require_room(part: Path, needed: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise UnseenError(
            f"{part.parent} has {free / 1e6:.0f} MB free, {needed / 1e6:.0f} MB more are needed: make room"
        )


def _require_content(file: RemoteFile, part: Path, url: str) -> None:
    """Remove a download with the wrong content and say so."""
    md5 = _md5(part)
    if md5 != file.md5:
        part.unlink()
        raise UnseenError(
            f"{url} is damaged or another file: MD5 {md5}, expected {file.md5}; it was removed, try again"
        )


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextmanager
def _told(url: str, part: Path) -> Iterator[None]:
    """Turn what can go wrong on the way into one line that says what to do."""
    again = "run the same command again to go on"
    try:
        yield
    except HTTPError as error:
        raise UnseenError(f"{url} answered {error.code} {error.reason}; try again later") from error
    except (URLError, ConnectionError, TimeoutError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UnseenError(f"could not download {url}: {reason}; {again}") from error
    except OSError as error:
        raise UnseenError(f"could not write {part}: {error.strerror or error}; {again}") from error
