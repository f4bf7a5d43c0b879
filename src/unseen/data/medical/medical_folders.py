"""Folders of medical images, SITE/CLASS/FILE.dcm or SITE/CLASS/FILE.nii.gz; at a site CLASS/FILE.

Of DICOM files, tags may take the place of folders: `--domain-column InstitutionName`. No other tag is read.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from unseen.data.formats import FORMATS
from unseen.data.grouping import match_groups
from unseen.data.images.decode import IMAGE_SUFFIXES, UnreadableImageError, map_in_threads
from unseen.data.images.image_sources import FileImages
from unseen.data.images.listing import ImageListing, ListedImageFormat, number_labels
from unseen.data.images.scan import FolderScan, ImageFile, scan_folder, scan_site
from unseen.data.medical import dicom, nifti
from unseen.data.medical.volumes import (
    describe_settings,
    groups_of_slices,
    list_files,
    medical_readers,
    require_readers,
    rows_of_pictures,
)
from unseen.data.medical.windowing import MedicalSettings
from unseen.data.sources import DataRequest, data_settings
from unseen.data.validate import DataCheck
from unseen.errors import UnseenError, escape_bytes

_LOOKED_AT = 50
"""Files of each folder that are looked at to recognize a format."""
_PATIENT = "PatientID"


@dataclass(frozen=True)
class _Places:
    """The files of a folder that are used, with what names their domain, class and group."""

    scan: FolderScan
    files: Sequence[ImageFile]
    groups: Sequence[str | None] | None
    notes: tuple[str, ...] = ()


class MedicalFolderFormat(ListedImageFormat):
    """Base class of folders of medical files.

    suffixes  endings of the files' names
    """

    settings = MedicalSettings
    priority = 1
    suffixes: ClassVar[tuple[str, ...]]

    def matches(self, path: Path) -> bool:
        """Match a folder whose first files have the suffix."""
        return path.is_dir() and holds_files(path, self.suffixes)

    def list_images(self, request: DataRequest, site: str | None = None) -> ImageListing:
        """List the files and how many pictures each gives."""
        settings = data_settings(request, MedicalSettings)
        require_readers([f"any{self.suffixes[0]}"])
        found = self.find_files(request, site)
        files = list_files(found.scan.folder, [file.name for file in found.files], settings)
        rows = rows_of_pictures(files)
        groups = groups_of_slices(files, found.groups, settings)
        targets, classes = number_labels([found.files[row].label for row in rows])
        return ImageListing(
            name=request.path.resolve().name,
            source=FileImages(
                request.path, files, medical_readers(settings), describe_settings(settings), part=site or ""
            ),
            domains=[found.files[row].domain for row in rows],
            targets=targets,
            classes=classes,
            groups=None if groups is None else [groups[row] for row in rows],
            option=_group_option(request),
            notes=(*found.scan.oddities(), *found.notes),
        )

    def find_files(self, request: DataRequest, site: str | None) -> _Places:
        """Find the files in their folders; groups by --group-pattern."""
        if site is None:
            scan = scan_folder(request.path, self.suffixes)
            problem = scan.problem()
        else:
            scan = scan_site(request.path, site=site, suffixes=self.suffixes)
            problem = scan.problem_of_site()
        if problem:
            raise UnseenError(problem)
        return _Places(scan, scan.files, _pattern_groups(request, scan.files))


def _group_option(request: DataRequest) -> str:
    return "--group-pattern" if request.group_pattern and not request.group_column else "--group-column"


def _pattern_groups(request: DataRequest, files: Sequence[ImageFile]) -> list[str | None] | None:
    if not request.group_pattern:
        return None
    return match_groups([file.name for file in files], request.group_pattern)


@FORMATS.register("nifti")
class NiftiFormat(MedicalFolderFormat):
    """Folders of NIfTI volumes, site/class/file.nii.gz, cut into 2-D slices."""

    expects = "a folder site/class/file.nii.gz"
    suffixes = nifti.SUFFIXES


@FORMATS.register("dicom")
class DicomFormat(MedicalFolderFormat):
    """Folders of DICOM files, site/class/file.dcm; tags may name site and patient."""

    expects = "a folder site/class/file.dcm"
    suffixes = dicom.SUFFIXES

    def find_files(self, request: DataRequest, site: str | None) -> _Places:
        """Find the files; tags that are named take the place of folders."""
        tags = _named_tags(request, site)
        if not tags:
            return super().find_files(request, site)
        if "domain" in tags or site is not None:
            scan = _scan_classes(request.path, self.suffixes, site or "")
        else:
            scan = scan_folder(request.path, self.suffixes)
            if problem := scan.problem():
                raise UnseenError(problem)
        return _apply_tags(scan, tags, request)

    def check(self, request: DataRequest) -> DataCheck:
        """Decode every image to its end; also look for patients with several images."""
        found = super().check(request)
        if request.group_column or request.group_pattern:
            return found
        return replace(found, warnings=(*found.warnings, *_patient_warnings(self, request)))


def _named_tags(request: DataRequest, site: str | None) -> dict[str, str]:
    """Map role to keyword for the tags that a request names in place of folders."""
    roles = {
        "domain": ("--domain-column", request.domain_column, DataRequest.domain_column),
        "target": ("--target", request.target_column, DataRequest.target_column),
        "group": ("--group-column", request.group_column, ""),
    }
    named = {}
    for role, (option, keyword, default) in roles.items():
        if keyword != default and not (role == "domain" and site is not None):
            dicom.check_keyword(keyword, option)
            named[role] = keyword
    return named


def _scan_classes(folder: Path, suffixes: tuple[str, ...], site: str) -> FolderScan:
    """List files in CLASS/FILE, or in ANY/CLASS/FILE where there are none."""
    scan = scan_site(folder, site=site, suffixes=suffixes)
    deeper = scan if scan.files else scan_folder(folder, suffixes)
    if not deeper.files:
        raise UnseenError(f"{folder}: no images ({', '.join(suffixes)}) found; expected CLASS/FILE.dcm")
    return deeper


def _apply_tags(scan: FolderScan, tags: Mapping[str, str], request: DataRequest) -> _Places:
    """Read the named tags of every file; files without a domain or target tag are left out with a note."""
    keywords = sorted(set(tags.values()))
    read = map_in_threads(
        partial(_try_tags, keywords=keywords), [scan.folder / file.name for file in scan.files]
    )
    files, groups = list[ImageFile](), list[str | None]()
    missing = Counter[str]()
    for file, found in zip(scan.files, read, strict=True):
        if isinstance(found, str):
            if not request.skip_unreadable:
                raise UnseenError(f"{scan.folder}: unreadable image {escape_bytes(file.name)} ({found})")
            missing["readable header"] += 1
            continue
        lacking = [tags[role] for role in ("domain", "target") if role in tags and tags[role] not in found]
        if lacking:
            missing.update(lacking)
            continue
        files.append(
            replace(
                file,
                domain=found[tags["domain"]] if "domain" in tags else file.domain,
                label=found[tags["target"]] if "target" in tags else file.label,
            )
        )
        groups.append(found.get(tags["group"]) if "group" in tags else None)
    if not files:
        raise UnseenError(f"{scan.folder}: no file has a value in {' and '.join(missing)}; name another tag")
    notes = tuple(f"left out: {count} files without {what}" for what, count in missing.items())
    return _Places(scan, files, groups if "group" in tags else _pattern_groups(request, files), notes)


def _try_tags(path: Path, keywords: Sequence[str]) -> dict[str, str] | str:
    try:
        return dicom.read_tags(path, keywords)
    except UnreadableImageError as error:
        return str(error)


def _patient_warnings(format: DicomFormat, request: DataRequest) -> list[str]:
    """Warn where patients have several images that a split may separate; their names are not shown."""
    places = format.find_files(request, None)
    paths = [places.scan.folder / file.name for file in places.files]
    patients = Counter[str]()
    domains: dict[str, set[str]] = {}
    for file, found in zip(
        places.files, map_in_threads(partial(_try_tags, keywords=[_PATIENT]), paths), strict=True
    ):
        if isinstance(found, dict) and _PATIENT in found:
            patients[found[_PATIENT]] += 1
            domains.setdefault(found[_PATIENT], set()).add(file.domain)
    several = sum(count > 1 for count in patients.values())
    shared = sum(len(names) > 1 for names in domains.values())
    warnings = []
    if several:
        warnings.append(
            f"{several} of {len(patients)} patients have several images: a split may train on one and "
            f"validate on another; keep them together with --group-column {_PATIENT}"
        )
    if shared:
        warnings.append(f"{shared} patients are in more than one domain: the held-out domain leaks")
    return warnings


def holds_files(folder: Path, suffixes: tuple[str, ...], depth: int = 2) -> bool:
    """Check whether a folder, or those in it, hold files of a kind; the first image that is found decides."""
    return _find_kind(folder, suffixes, depth) is True


def _find_kind(folder: Path, suffixes: tuple[str, ...], depth: int) -> bool | None:
    """Return whether the first image that is found is of a kind; None where there is no image."""
    try:
        with os.scandir(folder) as entries:
            visible = sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
    except OSError:
        return None
    for entry in [e for e in visible if not e.is_dir()][:_LOOKED_AT]:
        if entry.name.lower().endswith(suffixes):
            return True
        if entry.name.lower().endswith(IMAGE_SUFFIXES):
            return False
    for entry in visible if depth else ():
        if entry.is_dir() and (found := _find_kind(Path(entry.path), suffixes, depth - 1)) is not None:
            return found
    return None
