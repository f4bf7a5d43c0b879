"""Listing medical files: the readers of each suffix, and how many pictures a file gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from unseen.data.images.decode import map_in_threads
from unseen.data.images.image_sources import ListedFile, Reader
from unseen.data.medical import dicom, nifti
from unseen.data.medical.windowing import MedicalSettings
from unseen.data.sources import takes_several
from unseen.errors import escape_bytes

READERS_VERSION = 1
"""Incremented whenever the same file would give other pixels, so that old caches are not used."""


def medical_readers(settings: MedicalSettings) -> Mapping[tuple[str, ...], Reader]:
    """Return the readers of medical files by suffix."""
    return {
        dicom.SUFFIXES: partial(dicom.read_dicom, settings=settings),
        nifti.SUFFIXES: partial(nifti.read_nifti, settings=settings),
    }


def describe_settings(settings: MedicalSettings) -> str:
    """Describe what changes the pixels, for the cache."""
    return f"{READERS_VERSION} {settings}"


def list_files(folder: Path, names: Sequence[str], settings: MedicalSettings) -> list[ListedFile]:
    """List files with their sizes and times of change, and how many pictures each gives."""
    require_readers(names)
    return list(map_in_threads(partial(_list_file, folder, settings=settings), names))


def require_readers(names: Sequence[str]) -> None:
    """Refuse medical files, before any is opened, if the library that reads them is not installed."""
    for suffixes, require in (
        (dicom.SUFFIXES, dicom.require_pydicom),
        (nifti.SUFFIXES, nifti.require_nibabel),
    ):
        if any(name.lower().endswith(suffixes) for name in names):
            require()


def _list_file(folder: Path, name: str, settings: MedicalSettings) -> ListedFile:
    path, images = folder / name, 1
    if takes_several(settings.slices):
        if name.lower().endswith(dicom.SUFFIXES):
            images = dicom.count_frames(path, settings)
        elif name.lower().endswith(nifti.SUFFIXES):
            images = nifti.count_nifti(path, settings)
    try:
        state = path.stat()
    except OSError:  # kept, so that decoding reports it
        return ListedFile(name, images=images)
    return ListedFile(name, state.st_size, state.st_mtime_ns, images)


def rows_of_pictures(files: Sequence[ListedFile]) -> list[int]:
    """Return for each picture the position of its file."""
    return [row for row, file in enumerate(files) for _ in range(file.images)]


def groups_of_slices(
    files: Sequence[ListedFile], groups: Sequence[str | None] | None, settings: MedicalSettings
) -> list[str | None] | None:
    """Name the group of each file; where several slices are taken, files without one are their own group."""
    if not takes_several(settings.slices):
        return None if groups is None else list(groups)
    named = [None] * len(files) if groups is None else groups
    return [name or f"file {escape_bytes(file.name)}" for file, name in zip(files, named, strict=True)]
