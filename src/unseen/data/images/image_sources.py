"""Sources of images: where encoded images lie, and how they are read in one pass, in their order.

A source is a list of names and a stream. It never holds more than a few images, so that a set of any size can
be decoded into the cache.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL.Image import Image

from unseen.data.images.decode import (
    RGB,
    Content,
    ImageDecoder,
    Pixels,
    UnreadableImageError,
    inspect_opened,
    map_in_threads,
    read_image,
    shorter_side,
    to_square,
)
from unseen.data.images.scan import ImageFile
from unseen.errors import UnseenError

R = TypeVar("R")
Use = Callable[[Image], R]
"""What is done with an opened image."""
Array = npt.NDArray[Any]


class DamagedSourceError(UnseenError):
    """A shard whose images cannot be reached, whatever is done with them."""


@dataclass(frozen=True)
class Look:
    """What a check learns of one image: a thumbnail, what is unusual, and a hash of its bytes.

    reason  why it cannot be decoded; empty when it can
    digest  empty where an image has no bytes of its own, as a slice of a volume
    """

    thumbnail: Pixels | None = None
    unusual: str = ""
    digest: str = ""
    reason: str = ""


class ImageSource(ABC):
    """Images that are read in one pass, in the order of their names.

    They come in units, such as files or rows of a shard; a unit may hold several images.

    place  the file or folder that holds them, which also names the cache's entry
    part   empty, or which part of the place this is: entries of different parts do not replace each other
    form   channels, type and version of the decoded images
    """

    place: Path
    part: str = ""
    form: ImageDecoder = RGB

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """Name each image, uniquely, for messages."""

    @abstractmethod
    def identity(self) -> Iterable[object]:
        """Return plain values that change whenever the pixels may have changed."""

    @abstractmethod
    def units(self) -> Iterator[Any]:
        """Yield the units in order; together they hold as many images as there are names."""

    @abstractmethod
    def sample(self, positions: Sequence[int]) -> Iterator[Any]:
        """Yield the units of some images only."""

    def open(self, unit: Any, use: Use[R], target: int | None = None) -> list[R | str]:
        """Open the images of a unit; return what `use` makes of each, or the reason why it cannot."""
        return [try_image(unit, use, target)]

    def decode(self, size: int) -> Iterator[Array | str]:
        """Yield the pixels of every image, or the reason why it cannot be decoded."""
        for results in map_in_threads(
            lambda unit: self.open(unit, lambda image: to_square(image, size), size), self.units()
        ):
            yield from results

    def is_repaired(self, unreadable: Collection[str], size: int) -> bool:
        """Check whether images that could not be decoded earlier can be now, although nothing changed."""
        return False

    def inspect(self, size: int) -> Iterator[Look]:
        """Decode every image to its end and say what is unusual about it."""

        def look(unit: Any) -> list[Look]:
            seen = self.open(unit, lambda image: inspect_opened(image, size))
            return [
                Look(reason=found)
                if isinstance(found, str)
                else Look(found[1], found[0], self.digest(unit) if len(seen) == 1 else "")
                for found in seen
            ]

        for looks in map_in_threads(look, self.units()):
            yield from looks

    def digest(self, unit: Any) -> str:
        """Return a hash of the bytes of a unit with one image."""
        content = unit.read_bytes() if isinstance(unit, Path) else unit
        return hashlib.sha256(content).hexdigest()

    def sides(self, positions: Sequence[int]) -> list[int]:
        """Return the shorter sides of some images; those that cannot be opened are left out."""
        return [side for unit in self.sample(positions) for side in self.measure(unit)]

    def measure(self, unit: Any) -> list[int]:
        """Return the shorter sides of a unit's images, from their headers where these say so."""
        side = 0 if unit is None else shorter_side(unit)
        return [side] if side else []


@dataclass(frozen=True)
class FolderImages(ImageSource):
    """Files of a folder, each read by the decoder itself."""

    place: Path
    files: Sequence[ImageFile]
    form: ImageDecoder = RGB
    part: str = ""

    @property
    def names(self) -> Sequence[str]:
        """The files' names below the folder."""
        return [file.name for file in self.files]

    def identity(self) -> Iterable[object]:
        """Return every file's name, size and time of change."""
        return ((file.name, file.size, file.changed) for file in self.files)

    def units(self) -> Iterator[Path]:
        """Yield the files."""
        return (self.place / file.name for file in self.files)

    def sample(self, positions: Sequence[int]) -> Iterator[Path]:
        """Yield some of the files."""
        return (self.place / self.files[at].name for at in positions)

    def decode(self, size: int) -> Iterator[Array | str]:
        """Decode several files at a time."""
        return map_in_threads(lambda path: self._try(path, size), self.units())

    def is_repaired(self, unreadable: Collection[str], size: int) -> bool:
        """Try the files again: a change of permissions leaves no trace in a file's time."""
        return any(not isinstance(self._try(self.place / name, size), str) for name in unreadable)

    def _try(self, path: Path, size: int) -> Array | str:
        try:
            return self.form.read(path, size)
        except UnreadableImageError as error:
            return str(error)


def try_image(content: Content | None, use: Use[R], target: int | None = None) -> R | str:
    """Open an encoded image; return what `use` makes of it, or the reason why it cannot."""
    if content is None:
        return "no image here"
    try:
        return read_image(content, use, target)
    except UnreadableImageError as error:
        return str(error)


Reader = Callable[[Path, int, Use[Any]], list[Any]]
"""Opens a file that may hold several images: (path, how many of them are used, what is done with each)."""


@dataclass(frozen=True)
class ListedFile:
    """A file of a listing: its name below the place, the values that show a change, its number of images."""

    name: str
    size: int = -1
    changed: int = -1
    images: int = 1


@dataclass(frozen=True)
class FileImages(ImageSource):
    """Files of any kind; readers for suffixes that Pillow does not know.

    readers   suffix -> reader
    settings  values that change what the readers return
    """

    place: Path
    files: Sequence[ListedFile]
    readers: Mapping[tuple[str, ...], Reader] = field(default_factory=dict)
    settings: str = ""
    part: str = ""

    @property
    def folder(self) -> Path:
        """The folder that the files' names are below."""
        return self.place if self.place.is_dir() else self.place.parent

    @property
    def names(self) -> Sequence[str]:
        """The files' names; several images of one file are told apart by their number."""
        return [name for file in self.files for name in image_names(file)]

    def identity(self) -> Iterable[object]:
        """Return every file's name, size, time of change and number of images, and the settings."""
        yield self.settings
        for file in self.files:
            yield file.name, file.size, file.changed, file.images

    def units(self) -> Iterator[ListedFile]:
        """Yield the files."""
        return iter(self.files)

    def sample(self, positions: Sequence[int]) -> Iterator[ListedFile]:
        """Yield the files of some images."""
        starts = np.cumsum([file.images for file in self.files])
        return (self.files[int(np.searchsorted(starts, at, side="right"))] for at in positions)

    def open(self, unit: ListedFile, use: Use[R], target: int | None = None) -> list[R | str]:
        """Open a file with the reader of its suffix."""
        path, reader = self.folder / unit.name, self._reader(unit)
        return reader(path, unit.images, use) if reader else [try_image(path, use, target)]

    def digest(self, unit: ListedFile) -> str:
        """Return a hash of a file with one image."""
        return super().digest(self.folder / unit.name)

    def measure(self, unit: ListedFile) -> list[int]:
        """Return the shorter sides of a file's images."""
        if self._reader(unit) is None:
            return super().measure(self.folder / unit.name)
        found = self.open(unit, lambda image: min(image.size))
        return [side for side in found if not isinstance(side, str)]

    def _reader(self, unit: ListedFile) -> Reader | None:
        name = unit.name.lower()
        return next((read for suffixes, read in self.readers.items() if name.endswith(suffixes)), None)


def image_names(file: ListedFile) -> list[str]:
    """Name the images of a file."""
    if file.images == 1:
        return [file.name]
    return [f"{file.name}#{number}" for number in range(1, file.images + 1)]
