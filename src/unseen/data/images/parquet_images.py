"""Images in Parquet files as the Hugging Face hub stores them: one file, or a folder of shards as downloaded.

A row has a struct of the image's bytes and its path, a label whose class names are in the schema's metadata,
and a column that names the domain. Labels and domains are read first; the images are then streamed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from unseen.data.dataset import Indices
from unseen.data.formats import FORMATS, GROUP_COLUMN
from unseen.data.images.image_sources import DamagedSourceError, ImageSource
from unseen.data.images.image_table import select_rows, with_usual_columns
from unseen.data.images.listing import ImageListing, ListedImageFormat
from unseen.data.sources import DataRequest
from unseen.errors import UnseenError, UsageError, missing_extra, unknown_name

_BATCH = 16
"""Rows that are read at a time."""
_BUFFER = 1 << 20
_METADATA = b"huggingface"
"""Key of the schema's metadata that holds the features."""
_USUAL_TARGETS = ("label", "labels")


@FORMATS.register("parquet-images")
class ParquetImagesFormat(ListedImageFormat):
    """Parquet shards with an image column, as the Hugging Face hub stores them."""

    expects = "Parquet shards with an image column (a folder or .parquet)"
    group_options = (GROUP_COLUMN,)
    priority = 2

    def matches(self, path: Path) -> bool:
        """Match a folder of shards, and a file with an image column."""
        if path.is_dir():
            return bool(find_shards(path))
        return path.suffix.lower() == ".parquet" and _has_images(path, "")

    def matches_request(self, request: DataRequest) -> bool:
        """Match also a file whose named image column holds bytes."""
        if request.path.is_file() and request.image_column and request.path.suffix.lower() == ".parquet":
            return _has_images(request.path, request.image_column)
        return self.matches(request.path)

    def list_images(self, request: DataRequest, site: str | None = None) -> ImageListing:
        """Read every column but the images."""
        shards = find_shards(request.path) if request.path.is_dir() else [request.path]
        schemas = [_read_schema(shard) for shard in shards]
        column = find_image_column(shards[0], schemas[0], request.image_column)
        names = [name for name in schemas[0].names if name != column]
        chosen = with_usual_columns(request, names, _usual_targets(schemas[0], request.domain_column))
        table = _read_columns(shards, schemas, column, names)
        kept = select_rows(request.path, table, chosen, site)
        images = ParquetImages(request.path, tuple(shards), column, kept.rows, part=site or "")
        return ImageListing(
            name=request.path.resolve().name if request.path.is_dir() else request.path.stem,
            source=images,
            domains=kept.domains,
            targets=kept.targets,
            classes=kept.classes,
            task=kept.task,
            groups=kept.groups,
            notes=(f"read {len(shards)} shards, images from column {column!r}", *kept.notes),
            advice=kept.advice,
        )


@dataclass(frozen=True)
class ParquetImages(ImageSource):
    """The images of some rows of Parquet shards.

    rows  positions over all shards, ascending
    """

    place: Path
    shards: Sequence[Path]
    column: str
    rows: Indices
    part: str = ""

    @cached_property
    def starts(self) -> Indices:
        """The position of every shard's first row, and of the end."""
        counts = [_open(shard).metadata.num_rows for shard in self.shards]
        return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    @cached_property
    def names(self) -> Sequence[str]:
        """Shard and number of each image's row, the first being 1."""
        shards = np.searchsorted(self.starts, self.rows, side="right") - 1
        numbers = self.rows - self.starts[shards] + 1
        names = [self._name(shard) for shard in self.shards]
        return [f"{names[at]} row {row}" for at, row in zip(shards, numbers, strict=True)]

    def identity(self) -> Iterator[object]:
        """Return every shard's name, size and time of change, and which rows are used."""
        yield self.column
        yield hashlib.sha256(self.rows.tobytes()).hexdigest()
        for shard in self.shards:
            state = shard.stat()
            yield self._name(shard), state.st_size, state.st_mtime_ns

    def _name(self, shard: Path) -> str:
        """Name a shard below the folder; two of its folders may hold shards of one name."""
        return shard.name if shard == self.place else shard.relative_to(self.place).as_posix()

    def units(self) -> Iterator[bytes | None]:
        """Stream the bytes of every image."""
        return self._stream(self.rows)

    def sample(self, positions: Sequence[int]) -> Iterator[bytes | None]:
        """Read the row groups of some images only."""
        return self._stream(np.sort(self.rows[list(positions)]))

    def _stream(self, rows: Indices) -> Iterator[bytes | None]:
        for shard, start, end in zip(self.shards, self.starts[:-1], self.starts[1:], strict=True):
            mine = rows[(rows >= start) & (rows < end)] - start
            if len(mine):
                with _one_line(shard):
                    yield from _stream_shard(shard, self.column, mine)


def _stream_shard(shard: Path, column: str, rows: Indices) -> Iterator[bytes | None]:
    """Yield the bytes of some rows of a file, reading only the row groups that hold them."""
    file = _open(shard)
    counts = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    ends = np.cumsum(counts)
    groups = np.unique(np.searchsorted(ends, rows, side="right"))
    waiting, at = iter(rows.tolist()), 0
    wanted = next(waiting)
    for group in groups.tolist():
        at = int(ends[group]) - counts[group]
        for batch in file.iter_batches(_BATCH, row_groups=[group], columns=[column], use_threads=False):
            cells = batch.column(0)
            while wanted is not None and wanted < at + len(cells):
                yield _encoded(cells[wanted - at].as_py(), shard.parent)
                wanted = next(waiting, None)
            at += len(cells)
            if wanted is None:
                return


def _encoded(cell: Any, folder: Path) -> bytes | None:
    """Return the bytes of a cell: its own, or those of the file that it names."""
    if not isinstance(cell, dict):
        return cell if isinstance(cell, bytes) else None
    if cell.get("bytes") is not None:
        return bytes(cell["bytes"])
    path = folder / cell["path"] if cell.get("path") else None
    return path.read_bytes() if path is not None and path.is_file() else None


def find_shards(folder: Path) -> list[Path]:
    """List the Parquet files of a folder, or of the folders in it, as the hub lays them out."""
    try:
        inside = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
    except OSError:  # other formats say what is wrong with the folder
        return []
    places = [folder, *inside]
    for place in (places[:1], places[1:]):
        found = [path for each in place for path in each.glob("*.parquet") if path.name[0] != "."]
        if found:
            return sorted(found)
    return []


def find_image_column(path: Path, schema: Any, named: str) -> str:
    """Find the column with the images: the named one, or the only one that holds any."""
    if named:
        if named not in schema.names:
            raise unknown_name(f"column of {path.name} (--image-column)", named, schema.names)
        if not _holds_images(schema.field(named).type, named=True):
            raise UsageError(
                f"{path}: column {named!r} holds {schema.field(named).type} values, expected bytes of "
                "images; name another one with --image-column"
            )
        return named
    found = [field.name for field in schema if _holds_images(field.type)]
    if len(found) == 1:
        return str(found[0])
    seen = f"several image columns ({', '.join(found)})" if found else "no image column"
    raise UsageError(
        f"{path}: {seen} among {', '.join(schema.names)}; expected one struct of bytes and path: "
        "name it with --image-column"
    )


def class_names(schema: Any) -> dict[str, list[str]]:
    """Read the class names of label columns from the schema's metadata."""
    try:
        about = json.loads((schema.metadata or {}).get(_METADATA, b"{}"))
        features = about["info"]["features"]
        return {
            name: [str(label) for label in feature["names"]]
            for name, feature in features.items()
            if isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel" and feature.get("names")
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def spell_out_labels(table: Any, names: Mapping[str, Sequence[str]]) -> Any:
    """Replace the numbers of label columns by class names; -1 is no label."""
    import pyarrow

    for column, labels in names.items():
        if column in table.column_names and pyarrow.types.is_integer(table[column].type):
            numbers = table[column].to_pylist()
            outside = next((n for n in numbers if n is not None and not -1 <= n < len(labels)), None)
            if outside is not None:
                raise UnseenError(
                    f"column {column!r} holds the label {outside}, but the schema names {len(labels)} classes"
                )
            texts = [None if number in (None, -1) else labels[number] for number in numbers]
            place = table.column_names.index(column)
            table = table.set_column(place, column, pyarrow.array(texts, pyarrow.string()))
    return table


def _usual_targets(schema: Any, domain_column: str) -> list[str]:
    """List the columns that may be meant where the user names no target."""
    labels = [name for name in class_names(schema) if name != domain_column]
    return [*(name for name in _USUAL_TARGETS if name in schema.names), *(labels if len(labels) == 1 else [])]


def _read_columns(shards: Sequence[Path], schemas: Sequence[Any], images: str, names: list[str]) -> Any:
    """Read the other columns of all shards, with labels spelled out."""
    import pyarrow

    tables = []
    for shard, schema in zip(shards, schemas, strict=True):
        for name in (images, *names):
            if name not in schema.names:
                raise UnseenError(
                    f"{shard}: column {name!r} of {shards[0].name} is missing here: the shards of a "
                    "folder must have the same columns"
                )
        with _one_line(shard):
            table = _open(shard).read(columns=names, use_threads=False)
        tables.append(spell_out_labels(table.replace_schema_metadata(), class_names(schema)))
    try:
        return pyarrow.concat_tables(tables, promote_options="permissive").combine_chunks()
    except pyarrow.ArrowException as error:
        raise UnseenError(f"{shards[0].parent}: the shards' columns differ in type ({error})") from error


def _has_images(path: Path, named: str) -> bool:
    """Check whether a file has an image column; without pyarrow, or if damaged, it is left to the tables."""
    try:
        schema = _read_schema(path)
    except UnseenError:
        return False
    if named:
        return named in schema.names and _holds_images(schema.field(named).type, named=True)
    return any(_holds_images(field.type) for field in schema)


def _holds_images(kind: Any, *, named: bool = False) -> bool:
    """Check for a struct with the image's bytes; a column that the user names may be of plain bytes."""
    from pyarrow import types

    if types.is_struct(kind):
        index = kind.get_field_index("bytes")
        return index >= 0 and _is_binary(kind.field(index).type)
    return named and _is_binary(kind)


def _is_binary(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _read_schema(path: Path) -> Any:
    with _one_line(path):
        return _open(path).schema_arrow


def _open(path: Path) -> Any:
    """Open a Parquet file so that column chunks are read page by page; a page is the least that is held."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise missing_extra("pyarrow", "tables", "reading Parquet") from error
    return parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER)


@contextmanager
def _one_line(shard: Path) -> Iterator[None]:
    """Refuse a damaged shard in one line."""
    try:
        yield
    except UnseenError:
        raise
    except (OSError, ValueError) as error:  # Arrow's errors are among these
        reason = " ".join(str(error).split())[:160]
        raise DamagedSourceError(
            f"{shard}: damaged or incomplete ({reason}); get this shard again"
        ) from error
