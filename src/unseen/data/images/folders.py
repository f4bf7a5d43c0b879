"""A user's own images: folders `domain/class/image`, brought to RGB squares of one size."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from unseen.data.dataset import DataSet, Indices
from unseen.data.images.cache import DecodedImages, decode_images
from unseen.data.images.scan import FolderScan, scan_folder
from unseen.data.sources import DataRequest
from unseen.errors import UnseenError

DEFAULT_IMAGE_SIZE = 64


def load_folder(path: Path, request: DataRequest) -> DataSet:
    """Load `domain/class/image`; classes are the sorted union over the domains."""
    return load_scan(scan_folder(path), request)


def load_scan(scan: FolderScan, request: DataRequest) -> DataSet:
    """Load the images of a listing, whatever folders they lie in."""
    path = scan.folder
    problem = scan.problem()
    if problem is not None:
        raise UnseenError(problem)
    size = request.image_size or DEFAULT_IMAGE_SIZE
    decoded = decode_images(path, scan.files, size=size, progress=request.progress)
    notes = [*scan.oddities(), *([decoded.note] if decoded.note else [])]
    if decoded.unreadable:
        notes.append(left_out(path, scan, decoded, allowed=request.skip_unreadable))
    return _data_set(path, scan, decoded, tuple(notes))


def left_out(path: Path, scan: FolderScan, decoded: DecodedImages, *, allowed: bool) -> str:
    """Note the unreadable files that are left out, or refuse to."""
    first, reason = next(iter(decoded.unreadable.items()))
    others = len(decoded.unreadable) - 1
    seen = f"unreadable image {first} ({reason})" + (f" and {others} more" if others else "")
    if not allowed:
        raise UnseenError(
            f"{path}: {seen}; `unseen data check {path}` lists them all, --skip-unreadable leaves them out"
        )
    whole = scan.counts()
    for file in scan.files:
        if file.name in decoded.unreadable:
            whole[file.domain][file.label] -= 1
    lost_domains = [domain for domain, counts in whole.items() if not any(counts.values())]
    lost_classes = [label for label in scan.classes if not any(counts[label] for counts in whole.values())]
    if lost_domains or lost_classes:
        raise UnseenError(
            f"{path}: no readable image is left of {', '.join(lost_domains + lost_classes)} "
            f"({seen}); replace these files"
        )
    return f"left out: {seen}"


def _data_set(path: Path, scan: FolderScan, decoded: DecodedImages, notes: tuple[str, ...]) -> DataSet:
    domains, classes = scan.domains, scan.classes
    readable = [file for file in scan.files if file.name not in decoded.unreadable]
    domain_number = {name: number for number, name in enumerate(domains)}
    class_number = {name: number for number, name in enumerate(classes)}
    domain_of = np.array([domain_number[file.domain] for file in readable], dtype=np.int64)
    targets = np.array([class_number[file.label] for file in readable], dtype=np.int64)
    return DataSet(
        name=path.resolve().name,
        task="classification",
        inputs=decoded.images,
        targets=targets,
        domain_of=domain_of,
        domains=domains,
        classes=classes,
        notes=notes,
        fingerprint=_fingerprint(decoded, targets, domain_of, names=(domains, classes)),
    )


def _fingerprint(
    decoded: DecodedImages,
    targets: Indices,
    domain_of: Indices,
    *,
    names: tuple[tuple[str, ...], tuple[str, ...]],
) -> str:
    """Identify the content by the stored hash of the pixels, so that a second start reads no image."""
    about = repr(("classification", names, decoded.images.shape, decoded.digest))
    digest = hashlib.sha256(about.encode())
    digest.update(targets.tobytes())
    digest.update(domain_of.tobytes())
    return digest.hexdigest()[:16]
