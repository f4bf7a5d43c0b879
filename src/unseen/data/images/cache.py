"""A cache of decoded images: a memory-mapped file that later runs and other processes only open.

An entry is named by the folder (or shard), the image size, the decoder's version and every file's name, size
and time of change, so it is never used for other images. It is valid only with its description (JSON) next to
it, and both are written atomically, so a killed process leaves nothing that is used. The description has a
checksum of itself and of every block of the file: a damaged entry is decoded again. Both are readable by this
user only.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from unseen.checksums import crc_of, json_with_sum, parse_json_with_sum
from unseen.data.images.decode import RGB, ImageDecoder, map_in_threads
from unseen.data.images.image_sources import DamagedSourceError, FolderImages, ImageSource
from unseen.data.images.scan import ImageFile
from unseen.data.sources import Progress, no_progress
from unseen.errors import UnseenError
from unseen.fileio import cache_folder, write_atomically, write_text

_LEFTOVER_SECONDS = 24 * 3600
_BLOCK = 1 << 24
"""Bytes under one checksum; several blocks are checked at once."""
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class DecodedImages:
    """Decoded images in the order of the requested files, without the unreadable ones.

    unreadable  name -> reason
    digest      hash of the pixels alone
    note        what a user should know about the cache; empty when all went well
    """

    images: Array
    unreadable: dict[str, str]
    digest: str
    note: str = ""


def decode_images(
    folder: Path,
    files: Sequence[ImageFile],
    *,
    size: int,
    progress: Progress = no_progress,
    form: ImageDecoder = RGB,
) -> DecodedImages:
    """Open the decoded form of these files from the cache, or decode them into it."""
    return decode_source(FolderImages(folder, files, form), size=size, progress=progress)


def decode_source(source: ImageSource, *, size: int, progress: Progress = no_progress) -> DecodedImages:
    """Open the decoded form of a source's images from the cache, or decode them into it.

    Where the cache cannot be written (a full disk, a read-only home) the images are kept in memory.
    """
    entry = _Entry(source, size)
    try:
        found, damage = entry.read(), ""
    except _DamagedEntryError:
        found, damage = None, "the cache of decoded images was damaged, so they were decoded again"
    if found is not None:
        return found
    decoding = _Decoding(source, size, progress)
    try:
        entry.write(decoding)
    except DamagedSourceError:
        raise
    except (OSError, UnseenError) as error:
        images = decoding.in_memory()
        note = f"decoded images are kept in memory only and decoded again next time: {error}"
        return DecodedImages(images, decoding.unreadable, hashlib.sha256(images.data).hexdigest(), note)
    written = entry.read(check=False)
    if written is None:
        raise UnseenError(f"the image cache {entry.pixels} was removed while it was opened; start again")
    return replace(written, note=damage)


class _DamagedEntryError(Exception):
    """An entry of the cache that differs from its checksums."""


class _Decoding:
    """Decodes the images of a source and records those that cannot be decoded."""

    def __init__(self, source: ImageSource, size: int, progress: Progress) -> None:
        self.source, self.size, self.progress = source, size, progress
        self.unreadable: dict[str, str] = {}

    def in_memory(self) -> Array:
        """Decode into an ordinary array."""
        form = self.source.form
        kept = np.empty((len(self.source.names), self.size, self.size, form.channels), form.dtype)
        count = 0
        for image in self.images():
            if image is not None:
                kept[count] = image
                count += 1
        return kept[:count]

    def images(self) -> Iterator[Array | None]:
        """Yield each image's pixels in order, None for an unreadable one."""
        self.unreadable.clear()
        names = self.source.names
        for done, (name, result) in enumerate(
            zip(names, self.source.decode(self.size), strict=True), start=1
        ):
            if isinstance(result, str):
                self.unreadable[name] = result
            if done % 100 == 0 or done == len(names):
                self.progress("decoding images", done, len(names))
            yield None if isinstance(result, str) else result


class _Entry:
    """One source at one image size in the cache: the pixels (.npy) and their description (.json)."""

    def __init__(self, source: ImageSource, size: int) -> None:
        self.source, self.size, self.form = source, size, source.form
        part = [source.part] if source.part else []
        self.family = _hash(
            [str(source.place.resolve()), size, *([] if self.form is RGB else [self.form.name]), *part]
        )
        key = _hash([self.form.version, *source.identity()])
        self.pixels = cache_folder() / f"{self.family}-{key}.npy"
        self.description = self.pixels.with_suffix(".json")

    def read(self, *, check: bool = True) -> DecodedImages | None:
        """Open the entry; None when there is none or it is incomplete, an error when it is damaged."""
        try:
            described = parse_json_with_sum(self.description.read_text(encoding="utf-8"))
            unreadable = dict(described["unreadable"])
            images = np.load(self.pixels, mmap_mode="r")
            shape = (len(self.source.names) - len(unreadable), self.size, self.size, self.form.channels)
            if images.shape != shape or images.dtype != self.form.dtype:
                return None
            found = DecodedImages(images, unreadable, str(described["digest"]))
        except FileNotFoundError:
            return None
        except Exception as error:  # numpy parses a header as Python: a damaged one raises almost anything
            raise _DamagedEntryError from error
        if check and not self._is_intact(images, described):
            raise _DamagedEntryError
        return None if self.source.is_repaired(unreadable, self.size) else found

    def _is_intact(self, images: Array, described: dict[str, Any]) -> bool:
        """Compare the file with its checksums; one of a version without them gets them, if it is intact."""
        sums = _block_sums(self.pixels)
        if "sums" in described:
            return bool(described["sums"] == sums)
        if hashlib.sha256(np.ascontiguousarray(images).data).hexdigest() != described["digest"]:
            return False
        with suppress(UnseenError):
            write_text(self.description, json_with_sum({**described, "sums": sums}), private=True)
        return True

    def write(self, decoding: _Decoding) -> None:
        """Decode into the entry, then remove what it replaces."""
        digest, sums = hashlib.sha256(), list[str]()

        def fill(temporary: Path) -> None:
            self._fill(temporary, decoding, digest)
            sums.extend(_block_sums(temporary))

        write_atomically(self.pixels, fill, private=True)
        about: dict[str, Any] = {
            "folder": str(self.source.place.resolve()),
            "size": self.size,
            "unreadable": decoding.unreadable,
        }
        about |= {"digest": digest.hexdigest(), "sums": sums}
        write_text(self.description, json_with_sum(about), private=True)
        self._remove_others()

    def _fill(self, temporary: Path, decoding: _Decoding, digest: Any) -> None:
        """Write the images one by one (a full disk is then an error, not a crash), the count at the end."""
        with temporary.open("wb") as out:
            start = self._write_header(out, len(self.source.names))
            for image in decoding.images():
                if image is not None:
                    pixels = np.ascontiguousarray(image, self.form.dtype).data
                    out.write(pixels)
                    digest.update(pixels)
            out.seek(0)
            if self._write_header(out, len(self.source.names) - len(decoding.unreadable)) != start:
                raise AssertionError("the header of a .npy file changed its length")

    def _write_header(self, out: IO[bytes], count: int) -> int:
        shape = (count, self.size, self.size, self.form.channels)
        header = {"descr": self.form.dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(out, header)
        return out.tell()

    def _remove_others(self) -> None:
        """Remove older entries of the same folder and size, and what killed processes left behind."""
        for old in self.pixels.parent.glob(f"{self.family}-*"):
            if old.stem != self.pixels.stem:
                with suppress(OSError):
                    old.unlink()
        for leftover in self.pixels.parent.glob(".*-*.npy"):
            with suppress(OSError):
                if time.time() - leftover.stat().st_mtime > _LEFTOVER_SECONDS:
                    leftover.unlink()


def _block_sums(path: Path) -> list[str]:
    """Return the checksum of every block of a file, of which only a few are in memory at once."""

    def sum_block(start: int) -> str:
        with path.open("rb") as file:
            file.seek(start)
            return crc_of(file.read(_BLOCK))

    return list(map_in_threads(sum_block, range(0, path.stat().st_size, _BLOCK)))


def _hash(parts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]
