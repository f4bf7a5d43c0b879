"""Check folders of images file by file: unreadable files, converted files, possible leaks."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from unseen.data.images.decode import UnreadableImageError, describe_image, map_in_threads
from unseen.data.images.scan import FolderScan, scan_folder
from unseen.data.sources import Progress, no_progress
from unseen.data.validate import DataCheck, balance_warnings
from unseen.errors import escape_bytes


def check_folder(path: Path, *, progress: Progress = no_progress) -> DataCheck:
    """Decode every image of `domain/class/image` to its end and report everything unusual."""
    scan = scan_folder(path)
    return check_scan(scan, problem=scan.problem() or _one_class(scan), progress=progress)


def check_scan(scan: FolderScan, *, problem: str | None, progress: Progress) -> DataCheck:
    """Decode every image of a listing to its end."""
    path = scan.folder
    unreadable: dict[str, str] = {}
    unusual: dict[str, str] = {}
    copies: dict[str, list[str]] = defaultdict(list)
    looks = map_in_threads(lambda file: _look(path / file.name), scan.files)
    for done, (file, look) in enumerate(zip(scan.files, looks, strict=True), start=1):
        name = escape_bytes(file.name)
        if look.reason:
            unreadable[name] = look.reason
        else:
            copies[look.digest].append(name)
        if look.unusual:
            unusual[name] = look.unusual
        if done % 100 == 0 or done == len(scan.files):
            progress("checking images", done, len(scan.files))
    counts = {
        escape_bytes(domain): {escape_bytes(label): count for label, count in found.items()}
        for domain, found in scan.counts().items()
    }
    return DataCheck(
        name=path.resolve().name,
        total=len(scan.files),
        counts=counts,
        problem=problem or "",
        unreadable=unreadable,
        unusual=unusual,
        warnings=(*balance_warnings(counts), *_name_warnings(scan), *_copy_warnings(copies)),
        notes=scan.oddities(),
    )


@dataclass(frozen=True)
class _Look:
    digest: str = ""
    reason: str = ""
    unusual: str = ""


def _look(path: Path) -> _Look:
    try:
        unusual = describe_image(path)
        return _Look(hashlib.sha256(path.read_bytes()).hexdigest(), unusual=unusual)
    except UnreadableImageError as error:
        return _Look(reason=str(error))
    except OSError as error:
        return _Look(reason=error.strerror or str(error))


def _name_warnings(scan: FolderScan) -> list[str]:
    """Warn about class names that are probably meant to be the same."""
    same: dict[str, list[str]] = defaultdict(list)
    for label in map(escape_bytes, scan.classes):
        same[label.strip().casefold()].append(label)
    return [
        f"classes {' and '.join(names)} differ in upper and lower case only"
        for names in same.values()
        if names[1:]
    ]


def _copy_warnings(copies: Mapping[str, list[str]]) -> list[str]:
    """Warn about files that are in several domains, so that the held-out domain leaks."""
    leaks = [names for names in copies.values() if len({name.split("/")[0] for name in names}) > 1]
    if not leaks:
        return []
    example = " and ".join(leaks[0][:2])
    return [
        f"{len(leaks)} images are in more than one domain, for example {example}: the held-out domain leaks"
    ]


def _one_class(scan: FolderScan) -> str:
    if len(scan.classes) > 1:
        return ""
    return (
        f"{scan.folder}: found one class only ({scan.classes[0]}), expected at least two folders per domain"
    )
