"""Check folders of images file by file: unreadable files, converted files, possible leaks."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unseen.data.copies import THUMB, copy_warnings, find_copies
from unseen.data.grouping import group_keys, match_groups
from unseen.data.images.decode import Pixels, UnreadableImageError, inspect_image, map_in_threads
from unseen.data.images.scan import FolderScan, ImageFile, scan_folder
from unseen.data.sources import Progress, no_progress
from unseen.data.validate import DataCheck, balance_warnings
from unseen.errors import escape_bytes


def check_folder(path: Path, *, progress: Progress = no_progress, group_pattern: str = "") -> DataCheck:
    """Decode every image of `domain/class/image` to its end and report everything unusual."""
    scan = scan_folder(path)
    problem = scan.problem() or _one_class(scan)
    return check_scan(scan, problem=problem, progress=progress, group_pattern=group_pattern)


def check_scan(
    scan: FolderScan, *, problem: str | None, progress: Progress, group_pattern: str = ""
) -> DataCheck:
    """Decode every image of a listing to its end."""
    path = scan.folder
    unreadable: dict[str, str] = {}
    unusual: dict[str, str] = {}
    seen = list[tuple[ImageFile, _Look]]()
    looks = map_in_threads(lambda file: _look(path / file.name), scan.files)
    for done, (file, look) in enumerate(zip(scan.files, looks, strict=True), start=1):
        name = escape_bytes(file.name)
        if look.reason:
            unreadable[name] = look.reason
        else:
            seen.append((file, look))
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
        warnings=(*balance_warnings(counts), *_name_warnings(scan), *_copy_warnings(seen, group_pattern)),
        notes=scan.oddities(),
    )


@dataclass(frozen=True)
class _Look:
    digest: str = ""
    reason: str = ""
    unusual: str = ""
    thumbnail: Pixels | None = None


def _look(path: Path) -> _Look:
    try:
        unusual, thumbnail = inspect_image(path, THUMB)
        return _Look(hashlib.sha256(path.read_bytes()).hexdigest(), unusual=unusual, thumbnail=thumbnail)
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


def _copy_warnings(seen: Sequence[tuple[ImageFile, _Look]], group_pattern: str) -> list[str]:
    """Warn about equal files, and about images that show the same."""
    if not seen:
        return []
    latest: dict[str, int] = {}
    equal = list[tuple[int, int]]()
    for position, (_, look) in enumerate(seen):
        if look.digest in latest:
            equal.append((latest[look.digest], position))
        latest[look.digest] = position
    thumbs = np.stack([look.thumbnail for _, look in seen if look.thumbnail is not None])
    pairs = np.concatenate(
        [np.array(equal, dtype=np.int64).reshape(-1, 2), find_copies(thumbs.astype(np.float32))]
    )
    files = [file for file, _ in seen]
    domains = [file.domain for file in files]
    groups = None
    if group_pattern:
        found = match_groups([file.name for file in files], group_pattern)
        groups = group_keys(found, domains).tolist()
    return copy_warnings(
        pairs,
        names=[escape_bytes(file.name) for file in files],
        domains=domains,
        groups=groups,
        option="--group-pattern",
    )


def _one_class(scan: FolderScan) -> str:
    if len(scan.classes) > 1:
        return ""
    return (
        f"{scan.folder}: found one class only ({scan.classes[0]}), expected at least two folders per domain"
    )
