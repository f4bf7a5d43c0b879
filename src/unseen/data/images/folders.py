"""Image folders `domain/class/image` of a user, resized to RGB squares of one size."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

from unseen.data.dataset import DataSet, Indices
from unseen.data.formats import FORMATS, DataFormat
from unseen.data.grouping import group_keys, match_groups, note_groups
from unseen.data.images.cache import DecodedImages, decode_images
from unseen.data.images.image_check import check_folder, check_scan
from unseen.data.images.scan import SITE_LAYOUT, FolderScan, ImageFile, scan_folder, scan_site
from unseen.data.site_data import SiteSamples, fingerprint_site
from unseen.data.sources import DataRequest
from unseen.data.validate import DataCheck
from unseen.errors import UnseenError, escape_bytes

DEFAULT_IMAGE_SIZE = 64
SAMPLED_IMAGES = 25
"""Images whose headers are read to find their typical size."""


@FORMATS.register("image-folder")
class ImageFolderFormat(DataFormat):
    """Folders domain/class/image; at a site of a federation class/image."""

    expects = "a folder domain/class/image"
    contents = "images"
    priority = -1  # matches any folder, so it is tried last

    def matches(self, path: Path) -> bool:
        """Match every folder."""
        return path.is_dir()

    def load(self, request: DataRequest) -> DataSet:
        """Decode the images, once, into the cache."""
        return load_folder(request.path, request)

    def photo_side(self, request: DataRequest, without: Collection[str] = ()) -> int:
        """Find the median side of some of the images."""
        return median_side(scan_folder(request.path), without)

    def load_site(self, site: str, request: DataRequest) -> SiteSamples:
        """Load a site's folder class/image."""
        return load_site_folder(site, request)

    def check(self, request: DataRequest) -> DataCheck:
        """Decode every image to its end."""
        return check_folder(request.path, progress=request.progress, group_pattern=request.group_pattern)

    def check_site(self, site: str, request: DataRequest) -> DataCheck:
        """Decode every image of a site's folder to its end."""
        scan = scan_site(request.path, site=site)
        return check_scan(scan, problem=scan.problem_of_site(), progress=request.progress)


def median_side(scan: FolderScan, without: Collection[str] = ()) -> int:
    """Return the median of the shorter sides of some images, by their headers; 0 if none can be read.

    without  domains whose images are not looked at
    """
    files = [file for file in scan.files if file.domain not in without]
    sides = []
    for file in files[:: max(len(files) // SAMPLED_IMAGES, 1)]:
        with suppress(OSError), Image.open(scan.folder / file.name) as image:
            sides.append(min(image.size))
    return int(median(sides)) if sides else 0


def load_folder(path: Path, request: DataRequest) -> DataSet:
    """Load `domain/class/image`; classes are the sorted union over the domains."""
    return load_scan(scan_folder(path), request)


def load_scan(scan: FolderScan, request: DataRequest) -> DataSet:
    """Load the images of a listing, whatever folders they are in."""
    path = scan.folder
    problem = scan.problem()
    if problem is not None:
        raise UnseenError(problem)
    size = request.image_size or DEFAULT_IMAGE_SIZE
    decoded = decode_images(path, scan.files, size=size, progress=request.progress)
    notes = [*scan.oddities(), *([decoded.note] if decoded.note else [])]
    if decoded.unreadable:
        notes.append(note_unreadable(path, scan, decoded, allowed=request.skip_unreadable))
    return _data_set(path, scan, decoded, tuple(notes), request.group_pattern)


def load_site_folder(site: str, request: DataRequest) -> SiteSamples:
    """Load a site's own folder class/image as one domain with the site's name."""
    path = request.path
    scan = scan_site(path, site=site)
    if not scan.files:
        raise UnseenError(f"{path}: no images found; {SITE_LAYOUT}")
    if problem := scan.problem_of_names():
        raise UnseenError(problem)
    decoded = decode_images(
        path, scan.files, size=request.image_size or DEFAULT_IMAGE_SIZE, progress=request.progress
    )
    notes = [*scan.oddities(), *([decoded.note] if decoded.note else [])]
    if decoded.unreadable:
        notes.append(note_unreadable(path, scan, decoded, allowed=request.skip_unreadable))
    readable = [file for file in scan.files if file.name not in decoded.unreadable]
    labels = [file.label for file in readable]
    keys, group_notes = _groups_of(readable, request.group_pattern)
    classes = tuple(sorted(set(labels)))
    numbers = {label: number for number, label in enumerate(classes)}
    targets = np.array([numbers[label] for label in labels], dtype=np.int64)
    return SiteSamples(
        site=site,
        task="classification",
        inputs=decoded.images,
        targets=targets,
        classes=classes,
        fingerprint=fingerprint_site(decoded.digest.encode(), targets, classes),
        notes=(*notes, *group_notes),
        split_group_of=keys,
    )


def _groups_of(files: Sequence[ImageFile], pattern: str) -> tuple[Indices | None, list[str]]:
    """Find the groups that `--group-pattern` names, with a note on them; None without a pattern."""
    if not pattern:
        return None, []
    names = match_groups([file.name for file in files], pattern)
    return group_keys(names, [file.domain for file in files]), note_groups(names, "--group-pattern")


def note_unreadable(path: Path, scan: FolderScan, decoded: DecodedImages, *, allowed: bool) -> str:
    """Note the unreadable files that are left out, or raise an error."""
    first, reason = next(iter(decoded.unreadable.items()))
    others = len(decoded.unreadable) - 1
    seen = f"unreadable image {escape_bytes(first)} ({reason})" + (f" and {others} more" if others else "")
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


def _data_set(
    path: Path, scan: FolderScan, decoded: DecodedImages, notes: tuple[str, ...], group_pattern: str
) -> DataSet:
    domains, classes = scan.domains, scan.classes
    readable = [file for file in scan.files if file.name not in decoded.unreadable]
    domain_number = {name: number for number, name in enumerate(domains)}
    class_number = {name: number for number, name in enumerate(classes)}
    domain_of = np.array([domain_number[file.domain] for file in readable], dtype=np.int64)
    targets = np.array([class_number[file.label] for file in readable], dtype=np.int64)
    keys, group_notes = _groups_of(readable, group_pattern)
    return DataSet(
        name=path.resolve().name,
        task="classification",
        inputs=decoded.images,
        targets=targets,
        domain_of=domain_of,
        domains=domains,
        classes=classes,
        notes=(*notes, *group_notes),
        split_group_of=keys,
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
