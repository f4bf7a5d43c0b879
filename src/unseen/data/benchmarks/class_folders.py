"""Released image sets in class folders, read as PLACE/DOMAIN/[PART/]CLASS/IMAGE.

A set is one value that names its folders (see `benchmarks`). Folder names that differ between copies are
mapped to one name, and a copy that lacks a domain or a class is refused, so that results stay comparable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from unseen.data.dataset import DataSet
from unseen.data.images.folders import load_scan, median_side
from unseen.data.images.listing import DEFAULT_IMAGE_SIZE
from unseen.data.images.scan import FolderScan, ImageFile, scan_folder
from unseen.data.sources import DataRequest, require_data_root
from unseen.errors import UnseenError

Names = Mapping[str, tuple[str, ...]]
"""Our name of a domain or class -> the names that its folder may have."""


@dataclass(frozen=True)
class ClassFolders:
    """Layout of a release's images.

    places   folders below the data root where it may be
    parts    folders between domain and class that are read as one, such as train and val
    others   whether further domains and classes may exist, which are left out
    images   number of images in the release; 0 if not known for certain
    side     side of its images, where all are squares of one size
    size     side they are resized to by default
    needs    which files a user has to get, and their layout
    """

    name: str
    places: tuple[str, ...]
    domains: Names
    classes: Names
    needs: str
    parts: tuple[str, ...] = ()
    others: bool = False
    images: int = 0
    side: int = 0
    size: int = DEFAULT_IMAGE_SIZE

    def find(self, root: Path) -> Path:
        """Find the folder of the release below the data root."""
        for place in self.places:
            if any((root / place / folder).is_dir() for names in self.domains.values() for folder in names):
                return root / place
        example = next(iter(self.domains.values()))[0]
        raise UnseenError(
            f"{self.name}: no folder {root / self.places[0] / example}; put {self.needs} below {root}"
        )

    def present(self, root: Path) -> list[str]:
        """List the domains that have a folder below the data root."""
        return [
            ours
            for ours, names in self.domains.items()
            if any((root / place / name).is_dir() for place in self.places for name in names)
        ]

    def scan(self, folder: Path) -> FolderScan:
        """List the release's images under our names of domains and classes."""
        listed = scan_folder(folder)
        inside = [file for name in _folders(self.domains) for file in self._in_parts(folder, name)]
        files = [*inside, *listed.files]
        domains = _found(file.domain for file in files)
        classes = _found(file.label for file in files)
        self._check(folder, "domains", domains, self.domains)
        self._check(folder, "classes", classes, self.classes)
        kept = relabel(files, domains=self.domains, classes=self.classes)
        return FolderScan(folder, kept) if inside else replace(listed, files=kept)

    def _in_parts(self, folder: Path, domain: str) -> list[ImageFile]:
        """List the images of a domain whose classes are in part folders; their `domain` is its folder."""
        if not any((folder / domain / part).is_dir() for part in self.parts):
            return []
        return [
            replace(file, name=f"{domain}/{file.name}", domain=domain)
            for file in scan_folder(folder / domain).files
            if file.domain in self.parts
        ]

    def _check(self, folder: Path, what: str, found: list[str], expected: Names) -> None:
        missing = [ours for ours, names in expected.items() if not set(names) & set(found)]
        extra = [] if self.others else [name for name in found if name not in _folders(expected)]
        if missing or extra:
            raise UnseenError(
                f"{folder}: {what} are not those of {self.name}: missing {', '.join(missing) or 'none'}, "
                f"extra {', '.join(extra) or 'none'}; expected {', '.join(expected)}"
            )


def photo_side_of(layout: ClassFolders, request: DataRequest, without: Collection[str] = ()) -> int:
    """Find the typical side of a release's images, those of some domains left out."""
    return median_side(layout.scan(layout.find(require_data_root(request, needs=layout.needs))), without)


def load_class_folders(layout: ClassFolders, request: DataRequest) -> DataSet:
    """Load a release from below the data root."""
    scan = layout.scan(layout.find(require_data_root(request, needs=layout.needs)))
    size = request.image_size or layout.size
    data = load_scan(scan, replace(request, image_size=size))
    return replace(data, name=layout.name, notes=(*data.notes, *_notes(layout, scan, len(data), size)))


def relabel(files: Iterable[ImageFile], *, domains: Names, classes: Names) -> tuple[ImageFile, ...]:
    """Rename the images' domains and classes to ours; images of any other domain or class are left out."""
    domain_of = {name: ours for ours, names in domains.items() for name in names}
    class_of = {name: ours for ours, names in classes.items() for name in names}
    return tuple(
        replace(file, domain=domain_of[file.domain], label=class_of[file.label])
        for file in files
        if file.domain in domain_of and file.label in class_of
    )


def _notes(layout: ClassFolders, scan: FolderScan, images: int, size: int) -> list[str]:
    """Describe how this copy differs from the release."""
    notes = []
    if layout.side:
        notes.append(f"images resized to {size} px from {_side_text(scan, layout.side)}")
    if layout.images and images != layout.images:
        notes.append(f"{images} images; the release has {layout.images}")
    return notes


def _side_text(scan: FolderScan, released: int) -> str:
    """Describe the size of this copy's files, by the first that opens."""
    for file in scan.files:
        try:
            with Image.open(scan.folder / file.name) as image:
                side = max(image.size)
        except OSError:
            continue
        return f"{side} px" + (f" (this copy; the release has {released})" if side != released else "")
    return "files of unknown size"


def _folders(names: Names) -> list[str]:
    return [folder for known in names.values() for folder in known]


def _found(names: Iterable[str]) -> list[str]:
    return sorted(set(names))
