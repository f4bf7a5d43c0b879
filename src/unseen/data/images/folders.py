"""Image folders `domain/class/image` of a user, resized to RGB squares of one size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from unseen.data.dataset import DataSet
from unseen.data.formats import FORMATS, GROUP_PATTERN, DataFormat
from unseen.data.grouping import match_groups
from unseen.data.images.image_sources import FolderImages
from unseen.data.images.listing import (
    ImageListing,
    check_listing,
    load_listed_site,
    load_listing,
    number_labels,
    typical_side,
)
from unseen.data.images.scan import SITE_LAYOUT, FolderScan, scan_folder, scan_site
from unseen.data.site_data import SiteSamples
from unseen.data.sources import DataRequest, Progress, no_progress
from unseen.data.validate import DataCheck
from unseen.errors import UnseenError, escape_bytes


@FORMATS.register("image-folder")
class ImageFolderFormat(DataFormat):
    """Folders domain/class/image; at a site of a federation class/image."""

    expects = "a folder domain/class/image"
    contents = "images"
    group_options = (GROUP_PATTERN,)
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
    return typical_side(list_scan(scan), without)


def list_scan(scan: FolderScan, group_pattern: str = "") -> ImageListing:
    """List the images of a scanned folder with the classes of all domains."""
    targets, classes = number_labels([file.label for file in scan.files])
    return ImageListing(
        name=scan.folder.resolve().name,
        source=FolderImages(scan.folder, scan.files),
        domains=[file.domain for file in scan.files],
        targets=targets,
        classes=classes,
        groups=match_groups([file.name for file in scan.files], group_pattern) if group_pattern else None,
        option="--group-pattern",
        notes=scan.oddities(),
        advice=tuple(_name_warnings(scan)),
    )


def load_folder(path: Path, request: DataRequest) -> DataSet:
    """Load `domain/class/image`; classes are the sorted union over the domains."""
    return load_scan(scan_folder(path), request)


def load_scan(scan: FolderScan, request: DataRequest) -> DataSet:
    """Load the images of a listing, whatever folders they are in."""
    problem = scan.problem()
    if problem is not None:
        raise UnseenError(problem)
    return load_listing(list_scan(scan, request.group_pattern), request)


def load_site_folder(site: str, request: DataRequest) -> SiteSamples:
    """Load a site's own folder class/image as one domain with the site's name."""
    path = request.path
    scan = scan_site(path, site=site)
    if not scan.files:
        raise UnseenError(f"{path}: no images found; {SITE_LAYOUT}")
    if problem := scan.problem_of_names():
        raise UnseenError(problem)
    return load_listed_site(list_scan(scan, request.group_pattern), site, request)


def check_folder(path: Path, *, progress: Progress = no_progress, group_pattern: str = "") -> DataCheck:
    """Decode every image of `domain/class/image` to its end and report everything unusual."""
    scan = scan_folder(path)
    problem = scan.problem() or _one_class(scan)
    return check_scan(scan, problem=problem, progress=progress, group_pattern=group_pattern)


def check_scan(
    scan: FolderScan, *, problem: str | None, progress: Progress, group_pattern: str = ""
) -> DataCheck:
    """Decode every image of a scanned folder to its end."""
    return check_listing(list_scan(scan, group_pattern), problem=problem or "", progress=progress)


def _one_class(scan: FolderScan) -> str:
    if len(scan.classes) > 1:
        return ""
    return (
        f"{scan.folder}: found one class only ({scan.classes[0]}), expected at least two folders per domain"
    )


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
