"""Weights from timm's hub: one file per network, downloaded once, checked, and kept in the cache folder.

The addresses come from timm's own table; `HF_ENDPOINT` names a mirror with the same layout. The name of a
kept file ends in the first digits of its SHA-256, so a damaged copy is noticed without the net.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from filelock import FileLock

from unseen.data.download import RemoteFile, digest, fetch_file, require_online
from unseen.data.sources import Progress, no_progress
from unseen.errors import UnseenError
from unseen.fileio import cache_folder
from unseen.models.pretrained import read_tensors
from unseen.models.torchvision_compat import import_timm

HUB_VARIABLE = "HF_ENDPOINT"
"""Environment variable with the address of a mirror, as the hub's own tools read it."""
_HUB = "https://huggingface.co"
_FILES = ("model.safetensors", "pytorch_model.bin")
_PATIENCE = 5
"""Seconds to wait for the first answer, so that a machine without the net starts soon."""
_TRIES = 2
_DIGITS = 16
_NOT_FOUND = 404
_REDIRECTS = 3


@dataclass(frozen=True)
class HubEntry:
    """What timm knows about the weights of a network: their name and where they may be."""

    label: str
    urls: tuple[str, ...]

    @classmethod
    def of(cls, name: str) -> HubEntry | None:
        """Look a network up in timm's table; None if timm has no weights for it."""
        config = import_timm(f"model {name!r}").get_pretrained_cfg(name, allow_unregistered=True)
        if config is None or not (config.hf_hub_id or config.url):
            return None
        hub = os.environ.get(HUB_VARIABLE) or _HUB
        repository, _, revision = (config.hf_hub_id or "").partition("@")
        files = (config.hf_hub_filename,) if config.hf_hub_filename else _FILES
        urls = [f"{hub.rstrip('/')}/{repository}/resolve/{revision or 'main'}/{file}" for file in files]
        direct = [config.url] if config.url and not config.custom_load else []
        label = ".".join(part for part in (name, config.tag) if part)
        return cls(label, (*(urls if repository else ()), *direct))


def get_hub_weights(entry: HubEntry, *, progress: Progress = no_progress) -> Path:
    """Return the kept file of a network's weights, downloading it first if there is none."""
    folder = cache_folder() / "weights"
    kept = _find_kept(folder, entry.label)
    if kept is not None:
        return kept
    require_online(f"the weights {entry.label}")
    with _lock(folder):
        return _find_kept(folder, entry.label) or _download(entry, folder, progress)


def _find_kept(folder: Path, label: str) -> Path | None:
    """Find a kept file whose content is what its name says; remove a damaged one."""
    pattern = re.compile(rf"{re.escape(label)}-([0-9a-f]{{{_DIGITS}}})\.\w+")
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        named = pattern.fullmatch(path.name)
        if named and digest(path).startswith(named[1]):
            return path
        if named:
            path.unlink(missing_ok=True)
    return None


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Wait for another process that downloads weights: it may bring the same file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            yield
    except OSError as error:
        raise UnseenError(
            f"cannot keep weights in the cache folder ({error.strerror or error}): "
            "name another one with UNSEEN_CACHE"
        ) from error


def _download(entry: HubEntry, folder: Path, progress: Progress) -> Path:
    """Try one address after the other; the first reason is reported if all fail."""
    reasons: list[str] = []
    silent: set[str] = set()
    for url in entry.urls:
        host = urlsplit(url).netloc
        if host in silent:
            continue
        try:
            found = _ask(url)
            if found is not None:
                return _keep(found, entry.label, folder, progress)
            reasons.append(f"{url} does not exist")
        except _UnreachableError as error:
            silent.add(host)
            reasons.append(f"{host} cannot be reached ({error})")
        except UnseenError as error:
            reasons.append(str(error))
    raise UnseenError(reasons[0])


def _keep(file: RemoteFile, label: str, folder: Path, progress: Progress) -> Path:
    """Download a file, check it, and rename it to the name under which it is found later."""
    suffix = PurePosixPath(file.name).suffix
    arriving = folder / f"{label}.{file.sha256[:_DIGITS] or 'unchecked'}.arriving{suffix}"
    arriving.unlink(missing_ok=True)
    if not file.sha256:
        arriving.with_name(f"{arriving.name}.part").unlink(missing_ok=True)
    for attempt in range(1, _TRIES + 1):
        try:
            fetch_file(file, arriving, progress=progress)
            break
        except UnseenError:
            if attempt == _TRIES:
                raise
    try:
        read_tensors(arriving)
        return arriving.rename(folder / f"{label}-{digest(arriving)[:_DIGITS]}{suffix}")
    finally:
        arriving.unlink(missing_ok=True)


class _UnreachableError(UnseenError):
    """No answer from a host: no net, no such name, refused, or too slow."""


class _NoRedirect(HTTPRedirectHandler):
    """Leaves redirects to the caller: the hub states a file's checksum in the redirect itself."""

    def redirect_request(self, req: Request, *redirect: Any) -> None:
        """Follow none."""


def _ask(url: str) -> RemoteFile | None:
    """Ask for a file's checksum without downloading it; None if there is no such file.

    The hub sends the SHA-256 of a large file as X-Linked-ETag; other servers have it, in part, in the name.
    """
    name = PurePosixPath(urlsplit(url).path).name
    place = url
    for _ in range(_REDIRECTS):
        status, headers = _head(place)
        target = headers.get("Location", "")
        if status < 300 or status >= 400 or urlsplit(target).netloc:
            break
        place = urljoin(place, target)
    if status == _NOT_FOUND:
        return None
    if status >= 400:
        raise UnseenError(f"{url} answered {status}")
    tag = (headers.get("X-Linked-ETag") or headers.get("ETag") or "").removeprefix("W/").strip('"')
    stated = re.fullmatch(r"[0-9a-f]{64}", tag) or re.search(r"(?<=-)[0-9a-f]{8,64}(?=\.\w+$)", name)
    return RemoteFile(name, (url,), sha256=stated[0] if stated else "")


def _head(url: str) -> tuple[int, Message]:
    """Ask for the headers in a thread of its own: a name server that does not answer has no time limit."""
    answer: Future[tuple[int, Message]] = Future()

    def ask() -> None:
        try:
            answer.set_result(_request_head(url))
        except Exception as error:
            answer.set_exception(error)

    Thread(target=ask, daemon=True).start()
    try:
        return answer.result(timeout=_PATIENCE)
    except TimeoutError as error:
        raise _UnreachableError(f"no answer within {_PATIENCE} s") from error


def _request_head(url: str) -> tuple[int, Message]:
    try:
        with build_opener(_NoRedirect).open(Request(url, method="HEAD"), timeout=_PATIENCE) as reply:
            return reply.status, reply.headers
    except HTTPError as error:
        return error.code, error.headers
    except (URLError, ConnectionError, TimeoutError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        reason = getattr(reason, "strerror", None) or reason
        raise _UnreachableError(str(reason)) from error
