"""An index of images: a CSV or Parquet file with one row per image and a column of paths.

Paths are absolute or relative to the index. They may name ordinary images, DICOM files and NIfTI volumes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unseen.data.formats import FORMATS, GROUP_COLUMN
from unseen.data.images.image_sources import FileImages
from unseen.data.images.image_table import select_rows, with_usual_columns
from unseen.data.images.listing import ImageListing, ListedImageFormat
from unseen.data.medical.volumes import (
    describe_settings,
    groups_of_slices,
    list_files,
    medical_readers,
    rows_of_pictures,
)
from unseen.data.medical.windowing import MedicalSettings
from unseen.data.sources import DataRequest, data_settings
from unseen.data.tables.table_reader import TABLE_SUFFIXES, is_text, read_arrow
from unseen.errors import UnseenError, UsageError, unknown_name

_USUAL_TARGETS = ("label", "class")


@FORMATS.register("image-index")
class ImageIndexFormat(ListedImageFormat):
    """A CSV or Parquet file that lists images by path; --image-column names that column."""

    expects = f"an index of images ({', '.join(TABLE_SUFFIXES)} with --image-column)"
    group_options = (GROUP_COLUMN,)
    priority = 1
    settings = MedicalSettings

    def matches(self, path: Path) -> bool:
        """Match nothing by path alone: without --image-column, the file is a table."""
        return False

    def matches_request(self, request: DataRequest) -> bool:
        """Match tables whose column of paths is named."""
        path = request.path
        return bool(request.image_column) and path.is_file() and path.suffix.lower() in TABLE_SUFFIXES

    def list_images(self, request: DataRequest, site: str | None = None) -> ImageListing:
        """Read the index and look for its files."""
        path, settings = request.path, data_settings(request, MedicalSettings)
        table = read_arrow(path)
        _check_paths(path, table, request.image_column)
        table = table.filter(table[request.image_column].is_valid())
        chosen = with_usual_columns(request, table.column_names, _USUAL_TARGETS)
        kept = select_rows(path, table, chosen, site)
        names = kept.select(table[request.image_column])
        _check_repeats(path, names)
        files = list_files(path.parent, names, settings)
        rows = rows_of_pictures(files)
        groups = groups_of_slices(files, kept.groups, settings)
        return ImageListing(
            name=path.stem,
            source=FileImages(
                path, files, medical_readers(settings), describe_settings(settings), part=site or ""
            ),
            domains=[kept.domains[row] for row in rows],
            targets=kept.targets[rows],
            classes=kept.classes,
            task=kept.task,
            groups=None if groups is None else [groups[row] for row in rows],
            notes=kept.notes,
            advice=kept.advice,
        )


def _check_paths(path: Path, table: Any, column: str) -> None:
    if column not in table.column_names:
        raise unknown_name(f"column of {path.name} (--image-column)", column, table.column_names)
    if not is_text(table[column]):
        raise UsageError(
            f"{path}: column {column!r} holds {table[column].type} values, expected paths of images; name "
            "another one with --image-column"
        )


def _check_repeats(path: Path, names: list[str]) -> None:
    seen = set[str]()
    for name in names:
        if name in seen:
            raise UnseenError(f"{path}: image {name} is listed twice; keep one row per image")
        seen.add(name)
