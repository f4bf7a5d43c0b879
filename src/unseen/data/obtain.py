"""How a user comes by the files of a named set: what may be downloaded, and what to do about the rest.

A file is downloaded only if its checksum is known for certain, and under terms that are not free for every
use only if the user says that they accept them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unseen.data.fetch import RemoteFile, fetch_file
from unseen.data.sources import SOURCES, Progress, Source, fill_registry, no_progress
from unseen.errors import UsageError

_RAW = ".downloads"
"""Folder below the data root for files that are still to be converted."""


@dataclass(frozen=True)
class Download:
    """Some files of one origin, and what they become.

    licence  what their source states
    free     whether that allows every use; otherwise the user has to accept the terms
    makes    the files that are there in the end, below the data root
    convert  turns the downloaded files into the first of `makes`; None when they are used as they are
    """

    title: str
    licence: str
    free: bool
    files: tuple[RemoteFile, ...]
    makes: tuple[str, ...]
    convert: Callable[[Mapping[str, Path], Path], None] | None = None


@dataclass(frozen=True)
class Obtain:
    """What a user has to know to get a named set.

    licence    what its source states, in a few words
    where      where it is to be had
    put        what to put below the data root
    downloads  the parts that can be downloaded
    """

    licence: str
    where: str
    put: str
    downloads: tuple[Download, ...] = ()


@dataclass
class Outcome:
    """What `get_data` did: titles of downloads, by what became of them; `explained` is for the user to do."""

    name: str
    root: Path
    downloaded: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    refused: list[Download] = field(default_factory=list)
    explained: Obtain | None = None


def get_data(
    name: str,
    *,
    root: Path | None,
    accept_terms: bool = False,
    mirror: str = "",
    progress: Progress = no_progress,
) -> Outcome:
    """Download what can be downloaded of a named set; tell the rest.

    mirror  address of a folder that holds the same files, in place of their own places
    """
    source = _source(name)
    obtain = source.obtain
    if obtain is None:
        return Outcome(name, root or Path())
    if root is None:
        raise UsageError(f"name a folder for {name} with --data-root or the environment variable UNSEEN_DATA")
    outcome = Outcome(name, root)
    for download in obtain.downloads:
        if all((root / made).exists() for made in download.makes):
            outcome.present.append(download.title)
        elif not download.free and not accept_terms:
            outcome.refused.append(download)
        else:
            _fetch(download, root, mirror, progress)
            outcome.downloaded.append(download.title)
    if not obtain.downloads and source.present_domains(root):
        outcome.present.append(name)
    elif not obtain.downloads:
        outcome.explained = obtain
    return outcome


def _source(name: str) -> Source:
    fill_registry()
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
