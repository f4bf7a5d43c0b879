"""List a folder of images `domain/class/image` without opening any file."""

from __future__ import annotations

import os
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from unseen.data.images.decode import IMAGE_SUFFIXES
from unseen.errors import UnseenError, escape_bytes

LAYOUT = "expected FOLDER/DOMAIN/CLASS/IMAGE, for example photo/dog/1.jpg"
SITE_LAYOUT = "a site's folder is laid out CLASS/IMAGE, for example dog/1.jpg"


@dataclass(frozen=True)
class ImageFile:
    """One image: its name below the folder, its place, and the values that show a change."""

    name: str
    domain: str
    label: str
    size: int
    changed: int


@dataclass(frozen=True)
class FolderScan:
    """The images of a folder and everything unusual about its layout.

    empty_classes    class folders without an image, as domain/class
    empty_domains    folders of the first level without any image below
    misplaced         images outside class folders: in the folder itself or in a domain's folder
    too_deep         folders inside class folders, not searched
    other_files      files among the images that are not images by name
    special          pipes, sockets and devices, which are never opened: reading one may wait for ever
    suffixes         endings of the names of images
    """

    folder: Path
    files: tuple[ImageFile, ...]
    empty_classes: tuple[str, ...] = ()
    empty_domains: tuple[str, ...] = ()
    misplaced: tuple[str, ...] = ()
    too_deep: tuple[str, ...] = ()
    other_files: tuple[str, ...] = ()
    special: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = IMAGE_SUFFIXES

    @property
    def domains(self) -> tuple[str, ...]:
        """Domains with at least one image, sorted."""
        return tuple(sorted({file.domain for file in self.files}))

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes with at least one image in some domain, sorted."""
        return tuple(sorted({file.label for file in self.files}))

    def counts(self) -> dict[str, dict[str, int]]:
        """Count files per domain and class."""
        found = Counter((file.domain, file.label) for file in self.files)
        return {domain: {label: found[domain, label] for label in self.classes} for domain in self.domains}

    def problem(self) -> str | None:
        """Explain in one line why this folder cannot be trained on; None if it can."""
        if problem := self.problem_of_names():
            return problem
        if not self.files and self.misplaced:
            return f"{self.folder}: images such as {self.misplaced[0]} are outside class folders; {LAYOUT}"
        if not self.files:
            return f"{self.folder}: no images ({', '.join(self.suffixes)}) found; {LAYOUT}"
        if len(self.domains) < 2:
            return (
                f"{self.folder}: found one domain only ({self.domains[0]}), expected at least two folders, "
                f"one per domain; {LAYOUT}"
            )
        for place in self.empty_classes:
            if place.split("/", 1)[1] not in self.classes:
                return (
                    f"{self.folder}: class folder {place} is empty and no other domain has that class; "
                    "delete it, or put images into it"
                )
        return None

    def problem_of_names(self) -> str | None:
        """Name a domain or class that records and models cannot name; None if there is none."""
        for name in (*self.domains, *self.classes):
            if escape_bytes(name) != name:
                return f"{self.folder}: the folder name {escape_bytes(name)} is not UTF-8: rename the folder"
        return None

    def problem_of_site(self) -> str | None:
        """Explain in one line why a site cannot join with its folder CLASS/IMAGE; None if it can."""
        if problem := self.problem_of_names():
            return problem
        if not self.files and self.too_deep:
            return (
                f"{self.folder}: found folders such as {self.too_deep[0]} in place of images; {SITE_LAYOUT}"
            )
        if not self.files:
            return f"{self.folder}: no images ({', '.join(self.suffixes)}) found; {SITE_LAYOUT}"
        return None

    def oddities(self) -> tuple[str, ...]:
        """Return one line for each finding that was left out."""
        return tuple(
            f"{_some(names)} {text}"
            for names, text in (
                (self.empty_classes, "empty: that domain has no example of the class"),
                (self.empty_domains, "left out: no images below"),
                (self.misplaced, "left out: outside class folders"),
                (self.too_deep, "not searched: folders inside a class folder"),
                (self.other_files, "left out: not an image by its name"),
                (self.special, "left out: a pipe, socket or device"),
            )
            if names
        )


def scan_folder(folder: Path, suffixes: tuple[str, ...] = IMAGE_SUFFIXES) -> FolderScan:
    """List a folder; hidden files and folders are skipped."""
    if not folder.is_dir():
        raise UnseenError(f"no such folder: {folder}; {LAYOUT}")
    found = _Findings(folder, suffixes)
    try:
        found.collect()
    except OSError as error:
        raise UnseenError(f"could not list {error.filename or folder}: {error.strerror or error}") from error
    return found.scan()


def scan_site(folder: Path, *, site: str, suffixes: tuple[str, ...] = IMAGE_SUFFIXES) -> FolderScan:
    """List a site's own folder CLASS/IMAGE: one domain that is named like the site."""
    if not folder.is_dir():
        raise UnseenError(f"no such folder: {folder}; expected FOLDER/CLASS/IMAGE, for example dog/1.jpg")
    found = _Findings(folder, suffixes)
    try:
        found.collect_site(site)
    except OSError as error:
        raise UnseenError(f"could not list {error.filename or folder}: {error.strerror or error}") from error
    return found.scan()


class _Findings:
    """The lists a scan fills."""

    def __init__(self, folder: Path, suffixes: tuple[str, ...]) -> None:
        self.folder, self.suffixes = folder, suffixes
        self.files: list[ImageFile] = []
        self.empty_classes: list[str] = []
        self.empty_domains: list[str] = []
        self.misplaced: list[str] = []
        self.too_deep: list[str] = []
        self.other_files: list[str] = []
        self.special: list[str] = []

    def collect(self) -> None:
        for domain in self._folders(""):
            before = len(self.files)
            labels = self._folders(domain.name)
            empty = [
                f"{domain.name}/{label.name}"
                for label in labels
                if not self._class(domain.name, label, below=f"{domain.name}/")
            ]
            if len(self.files) == before:
                self.empty_domains.append(domain.name)
            else:
                self.empty_classes.extend(empty)

    def collect_site(self, site: str) -> None:
        labels = self._folders("")
        self.empty_classes += [label.name for label in labels if not self._class(site, label, below="")]

    def scan(self) -> FolderScan:
        return FolderScan(
            self.folder,
            tuple(self.files),
            tuple(self.empty_classes),
            tuple(self.empty_domains),
            tuple(self.misplaced),
            tuple(self.too_deep),
            tuple(self.other_files),
            tuple(self.special),
            self.suffixes,
        )

    def _folders(self, below: str) -> list[os.DirEntry[str]]:
        """List the folders below, noting files among them."""
        folders = []
        for entry in _entries(self.folder / below):
            if entry.is_dir():
                folders.append(entry)
            else:
                place = self.misplaced if self._is_image(entry.name) else self.other_files
                place.append(f"{below}/{entry.name}".lstrip("/"))
        return folders

    def _class(self, domain: str, label: os.DirEntry[str], *, below: str) -> bool:
        """Add the images of one class folder and return whether there are any."""
        before = len(self.files)
        for entry in _entries(label.path):
            name = f"{below}{label.name}/{entry.name}"
            if entry.is_dir():
                self.too_deep.append(name)
            elif not self._is_image(entry.name):
                self.other_files.append(name)
            elif (state := _state(entry)) is None:
                self.special.append(name)
            else:
                size, changed = state
                self.files.append(ImageFile(name, domain, label.name, size, changed))
        return len(self.files) > before

    def _is_image(self, name: str) -> bool:
        return name.lower().endswith(self.suffixes)


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not entry.name.startswith((".", "__MACOSX"))]
    return sorted(visible, key=lambda entry: entry.name)


def _state(entry: os.DirEntry[str]) -> tuple[int, int] | None:
    """Return size and time of change; None for what is no regular file."""
    try:
        found = entry.stat()
    except OSError:  # a broken link: kept, so that decoding reports it
        return -1, -1
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _some(names: tuple[str, ...]) -> str:
    shown = escape_bytes(", ".join(names[:3]))
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
