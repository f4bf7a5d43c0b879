"""Download the files of a named set where that is allowed, and explain how to get the rest.

A file of a data set is downloaded only if its checksum is known for certain, and under terms that are not
free for every use only if the user accepts them. `UNSEEN_OFFLINE=1` forbids all downloads.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from unseen.data.sources import SOURCES, Progress, Source, no_progress
from unseen.errors import UnseenError, UsageError

_RAW = ".downloads"
"""Folder below the data root for files that are still to be converted."""
OFFLINE_VARIABLE = "UNSEEN_OFFLINE"
"""Environment variable that forbids downloads; empty and 0 allow them."""


@dataclass(frozen=True)
class Download:
    """Files from one source, and what they are converted to.

    licence  what their source states
    free     whether that allows every use; otherwise the user has to accept the terms
    makes    the resulting files, below the data root
    convert  turns the downloaded files into the first of `makes`; None when they are used as they are
    """

    title: str
    licence: str
    free: bool
    files: tuple[RemoteFile, ...]
    makes: tuple[str, ...]
    convert: Callable[[Mapping[str, Path], Path], None] | None = None


@dataclass(frozen=True)
class Acquisition:
    """Instructions for getting a named set.

    licence    the license that its source states, in a few words
    where      where it is available
    put        what to put below the data root
    downloads  the parts that can be downloaded
    """

    licence: str
    where: str
    put: str
    downloads: tuple[Download, ...] = ()


@dataclass
class DownloadResult:
    """Result of `get_data`: titles of downloads by state; `explained` is what the user has to get."""

    name: str
    root: Path
    downloaded: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    refused: list[Download] = field(default_factory=list)
    explained: Acquisition | None = None


def get_data(
    name: str,
    *,
    root: Path | None,
    accept_terms: bool = False,
    mirror: str = "",
    progress: Progress = no_progress,
) -> DownloadResult:
    """Download what can be downloaded of a named set; explain how to get the rest.

    mirror  address of a folder with the same files, used instead of their original addresses
    """
    source = _source(name)
    acquisition = source.acquisition
    if acquisition is None:
        return DownloadResult(name, root or Path())
    if root is None:
        raise UsageError(f"name a folder for {name} with --data-root or the environment variable UNSEEN_DATA")
    outcome = DownloadResult(name, root)
    for download in acquisition.downloads:
        if all((root / made).exists() for made in download.makes):
            outcome.present.append(download.title)
        elif not download.free and not accept_terms:
            outcome.refused.append(download)
        else:
            _fetch(download, root, mirror, progress)
            outcome.downloaded.append(download.title)
    if not acquisition.downloads and source.present_domains(root):
        outcome.present.append(name)
    elif not acquisition.downloads:
        outcome.explained = acquisition
    return outcome


def _source(name: str) -> Source:
    return SOURCES[name]


def _fetch(download: Download, root: Path, mirror: str, progress: Progress) -> None:
    files = [file.from_mirror(mirror) if mirror else file for file in download.files]
    if download.convert is None:
        for file, made in zip(files, download.makes, strict=True):
            fetch_file(file, root / made, progress=progress)
        return
    raw = root / _RAW
    got = {file.name: fetch_file(file, raw / file.name, progress=progress) for file in files}
    download.convert(got, root / download.makes[0])
    _remove(raw, list(got.values()))


def _remove(folder: Path, files: Sequence[Path]) -> None:
    for path in files:
        path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


_CHUNK = 1 << 18
_PATIENCE = 60
_PARTIAL, _BEYOND_THE_END = 206, 416


@dataclass(frozen=True)
class RemoteFile:
    """A file at known addresses, with the checksums that are published; `sha256` may be its first digits."""

    name: str
    urls: tuple[str, ...]
    md5: str = ""
    sha256: str = ""

    def from_mirror(self, folder: str) -> RemoteFile:
        """Return the same file at another address."""
        if urlsplit(folder).scheme not in ("http", "https"):
            raise UsageError(f"--mirror {folder} is not an address; expected http://... or https://...")
        return replace(self, urls=(f"{folder.rstrip('/')}/{self.name}",))

    def mismatch(self, path: Path) -> str:
        """Describe how a file's content differs from the published checksums; empty if it does not."""
        for kind, expected in (("md5", self.md5), ("sha256", self.sha256)):
            if expected and not (found := digest(path, kind)).startswith(expected):
                return f"{kind.upper()} {found}, expected {expected}"
        return ""


def digest(path: Path, kind: str = "sha256") -> str:
    """Compute the checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def is_offline() -> bool:
    """Whether `UNSEEN_OFFLINE` forbids to reach other machines."""
    return os.environ.get(OFFLINE_VARIABLE, "") not in ("", "0")


def require_online(what: str) -> None:
    """Refuse a download where `UNSEEN_OFFLINE` forbids them."""
    if is_offline():
        raise UnseenError(f"{OFFLINE_VARIABLE} is set, which forbids to download {what}: unset it")


def fetch_file(file: RemoteFile, target: Path, *, progress: Progress = no_progress) -> Path:
    """Download a file to `target`, trying one address after the other; return the path."""
    if target.exists():
        if file.mismatch(target):
            raise UnseenError(f"{target} is there but is not the released {file.name}: move it away first")
        return target
    require_online(file.name)
    part = target.with_name(f"{target.name}.part")
    for number, url in enumerate(file.urls, start=1):
        try:
            with _explain_errors(url, part):
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
    """Append what is missing to `part`, or start again if the server cannot resume."""
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
            raise ConnectionError(f"the connection broke off after {done + got} of {done + left} bytes")


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
            f"{part.parent} has {free / 1e6:.0f} MB free, {needed / 1e6:.0f} MB more are needed: free space"
        )


def _require_content(file: RemoteFile, part: Path, url: str) -> None:
    """Remove a download with the wrong content and raise an error."""
    if wrong := file.mismatch(part):
        part.unlink()
        raise UnseenError(f"{url} is damaged or another file: {wrong}; it was removed, try again")


@contextmanager
def _explain_errors(url: str, part: Path) -> Iterator[None]:
    """Turn download errors into one line that says what to do."""
    again = "run the same command again to resume"
    try:
        yield
    except HTTPError as error:
        raise UnseenError(f"{url} answered {error.code} {error.reason}; try again later") from error
    except (URLError, ConnectionError, TimeoutError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UnseenError(f"could not download {url}: {reason}; {again}") from error
    except OSError as error:
        raise UnseenError(f"could not write {part}: {error.strerror or error}; {again}") from error
