"""WebDataset shards: tar files in which consecutive members with one key are a sample.

`KEY.jpg`, `KEY.cls` and `KEY.json` are the image, the class and other fields of the sample KEY; everything
after the first dot of the last part of a member's name is the field's name. Shards must not be compressed, so
that images are read where they lie.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unseen.data.formats import FORMATS, GROUP_COLUMN
from unseen.data.images.decode import IMAGE_SUFFIXES
from unseen.data.images.image_sources import DamagedSourceError, ImageSource
from unseen.data.images.image_table import select_rows, with_usual_columns
from unseen.data.images.listing import ImageListing, ListedImageFormat
from unseen.data.sources import DataRequest
from unseen.errors import UnseenError, UsageError, escape_bytes, missing_extra

URL = "__url__"
"""The field that WebDataset gives every sample, its shard; here the shard's name without its number."""
_IMAGES = tuple(suffix[1:] for suffix in IMAGE_SUFFIXES)
_USUAL_TARGETS = ("cls", "label", "class")
_LARGEST_FIELD = 1 << 20
"""Larger members are no labels."""
_WHOLE_NUMBER, _BEYOND_INT64 = re.compile(r"-?[0-9]{1,18}"), 1 << 63


@dataclass(frozen=True)
class _Sample:
    """One sample: its shard, key, fields, and where its image lies; no size: it has none."""

    shard: int
    key: str
    offset: int = 0
    size: int = -1
    fields: dict[str, Any] = field(default_factory=dict)


@FORMATS.register("webdataset")
class WebDatasetFormat(ListedImageFormat):
    """WebDataset shards: one .tar, or a folder of them."""

    expects = "WebDataset shards (a folder or .tar)"
    group_options = (GROUP_COLUMN,)
    priority = 2

    def matches(self, path: Path) -> bool:
        """Match tar files and folders that hold some."""
        return bool(_find_tars(path))

    def list_images(self, request: DataRequest, site: str | None = None) -> ImageListing:
        """Read the members' names and the labels of every shard."""
        shards = _find_tars(request.path)
        samples = [
            sample
            for number, shard in enumerate(shards)
            for sample in _list_shard(number, shard, request.image_column)
        ]
        with_image = [sample for sample in samples if sample.size >= 0]
        if not with_image:
            raise UnseenError(f"{request.path}: no sample has an image ({', '.join(_IMAGES)})")
        table = _as_table(request.path, shards, with_image)
        chosen = with_usual_columns(request, table.column_names, _USUAL_TARGETS)
        kept = select_rows(request.path, table, chosen, site)
        lacking = len(samples) - len(with_image)
        return ImageListing(
            name=request.path.resolve().name if request.path.is_dir() else request.path.stem,
            source=TarImages(
                request.path,
                tuple(shards),
                tuple(with_image[row] for row in kept.rows.tolist()),
                part=site or "",
            ),
            domains=kept.domains,
            targets=kept.targets,
            classes=kept.classes,
            task=kept.task,
            groups=kept.groups,
            notes=(
                f"read {len(shards)} shards",
                *([f"left out: {lacking} samples without an image"] if lacking else []),
                *kept.notes,
            ),
            advice=kept.advice,
        )


@dataclass(frozen=True)
class TarImages(ImageSource):
    """Images of samples in tar files, read at their places."""

    place: Path
    shards: Sequence[Path]
    samples: Sequence[_Sample]
    part: str = ""

    @property
    def names(self) -> Sequence[str]:
        """Shard and key of each image."""
        return [f"{self.shards[sample.shard].name} {escape_bytes(sample.key)}" for sample in self.samples]

    def identity(self) -> Iterator[object]:
        """Return every shard's name, size and time of change, and which samples are used."""
        used = repr([(sample.shard, sample.offset, sample.size) for sample in self.samples])
        yield hashlib.sha256(used.encode()).hexdigest()
        for shard in self.shards:
            state = shard.stat()
            yield shard.name, state.st_size, state.st_mtime_ns

    def units(self) -> Iterator[bytes]:
        """Stream the bytes of every image."""
        return self._read(self.samples)

    def sample(self, positions: Sequence[int]) -> Iterator[bytes]:
        """Read some of the images."""
        return self._read([self.samples[at] for at in sorted(positions)])

    def _read(self, samples: Sequence[_Sample]) -> Iterator[bytes]:
        for number, shard in enumerate(self.shards):
            with shard.open("rb") as file:
                for sample in samples:
                    if sample.shard == number:
                        file.seek(sample.offset)
                        yield file.read(sample.size)


def _find_tars(path: Path) -> list[Path]:
    """List the shards that a path names; a folder's first level only."""
    if path.is_file():
        return [path] if path.suffix.lower() == ".tar" else []
    return sorted(shard for shard in path.glob("*.tar") if shard.name[0] != "." and shard.is_file())


def _list_shard(number: int, shard: Path, image_column: str) -> Iterator[_Sample]:
    """List the samples of a shard: keys, labels, and places of images."""
    try:
        with tarfile.open(shard, "r:") as archive:
            grouped: dict[str, _Sample] = {}
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # or the list of all members would grow with the shard
                if member.size < 0:
                    raise tarfile.ReadError("a member has a negative size")  # tarfile would go in circles
                name = member.name.removeprefix("./")
                key, extension = _split_name(name)
                if not member.isfile() or not extension or name.rsplit("/", 1)[-1].startswith("."):
                    continue
                sample = grouped.setdefault(key, _Sample(number, key))
                if extension in _IMAGES or (extension.rsplit(".", 1)[-1] in _IMAGES and sample.size < 0):
                    if image_column in ("", extension):
                        grouped[key] = _Sample(number, key, member.offset_data, member.size, sample.fields)
                elif member.size <= _LARGEST_FIELD and _may_hold_labels(extension):
                    content = archive.extractfile(member)
                    sample.fields.update(
                        _read_field(shard, name, extension, content.read() if content else b"")
                    )
            _require_whole(shard, grouped.values())
            yield from grouped.values()
    except (tarfile.TarError, OSError, EOFError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DamagedSourceError(
            f"{shard}: damaged or incomplete ({reason}); get this shard again"
        ) from error


def _require_whole(shard: Path, samples: Any) -> None:
    """Refuse a shard that ends before its last image does."""
    size = shard.stat().st_size
    if any(sample.offset + sample.size > size for sample in samples):
        raise tarfile.ReadError("it ends within an image")


def _split_name(name: str) -> tuple[str, str]:
    """Split a member's name at the first dot of its last part: key and extension, in lower case."""
    folder, slash, last = name.rpartition("/")
    stem, _, extension = last.partition(".")
    return f"{folder}{slash}{stem}", extension.lower()


def _may_hold_labels(extension: str) -> bool:
    last = extension.rsplit(".", 1)[-1]
    return last in ("cls", "json", "txt", "text", "id") or "." not in extension


def _read_field(shard: Path, name: str, extension: str, content: bytes) -> dict[str, Any]:
    """Read the labels of a member: the fields of a JSON object, or one text; other content is none."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return {}
    if extension.rsplit(".", 1)[-1] == "json":
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            raise UnseenError(
                f"{shard}: member {escape_bytes(name)} is no JSON; write the shard again"
            ) from None
        if not isinstance(values, Mapping):
            return {}
        return {key: value for key, value in values.items() if isinstance(value, str | int | float | None)}
    return {extension.removesuffix(".txt"): text.strip()}


def _as_table(path: Path, shards: Sequence[Path], samples: Sequence[_Sample]) -> Any:
    """Arrange the fields as columns; a column of numbers stays one, any other is of texts."""
    try:
        import pyarrow
    except ImportError as error:
        raise missing_extra("pyarrow", "tables", "reading WebDataset shards") from error
    names = sorted({name for sample in samples for name in sample.fields})
    urls = [re.sub(r"[-_.]?\d+$", "", shard.stem) or shard.stem for shard in shards]
    columns: dict[str, list[Any]] = {
        name: [sample.fields.get(name) for sample in samples] for name in names if name != URL
    }
    if not columns:
        raise UsageError(
            f"{path}: its samples have images but no labels; expected KEY.cls or KEY.json next to KEY.jpg"
        )
    columns[URL] = [urls[sample.shard] for sample in samples]
    return pyarrow.table({name: _as_column(values) for name, values in columns.items()})


def _as_column(values: list[Any]) -> Any:
    import pyarrow

    present = [value for value in values if value is not None]
    if all(isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value) for value in present):
        return pyarrow.array([None if value is None else int(value) for value in values], pyarrow.int64())
    numeric = all(
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _BEYOND_INT64
        for value in present
    )
    return pyarrow.array([value if value is None or numeric else str(value) for value in values])
