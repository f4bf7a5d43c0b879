"""Cached features: what the frozen part of a network computes from every sample, once, as a data set.

Features of a sample and of its augmented versions (views) are float16 in a memory-mapped file of the cache
folder. It is filled in blocks of consecutive samples, only those that a run needs, and other runs on the same
data go on from there. Every block has a checksum: a damaged or unfinished one is computed again.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from unseen.data import DataSet, Indices, Samples
from unseen.data.sources import Progress, no_progress
from unseen.fileio import cache_folder, make_folder
from unseen.models import set_precision
from unseen.models.folding import fold_batch_norm
from unseen.models.splitting import FrozenPart
from unseen.seeding import torch_generator
from unseen.training.preprocessing import Preprocessor

BLOCK = 64
"""Samples that are computed together. A block's views are drawn by its number, whatever else is computed."""
_VERSION = 2
Array = npt.NDArray[Any]


def cache_features(
    data: DataSet,
    frozen: FrozenPart,
    prepare: Preprocessor,
    *,
    training: Indices,
    evaluation: Indices,
    views: int,
    progress: Progress = no_progress,
) -> tuple[DataSet, str]:
    """Replace a data set's samples with their features; return it with a note on the size of the cache.

    training    samples that need every view
    evaluation  samples that need only the first, without augmentation
    views       versions of each sample: itself and `views` - 1 augmented ones
    """
    set_precision(frozen, prepare.precision)
    extract = _Extractor(data, frozen.to(prepare.device), prepare)
    shape = extract.stored_shape()
    blocks = -(-len(data) // BLOCK)
    needed = np.zeros((blocks, views), dtype=bool)
    needed[np.unique(training // BLOCK)] = True
    needed[np.unique(evaluation // BLOCK), 0] = True
    size = int(needed.sum()) * BLOCK * int(np.prod(shape)) * 2
    versions = f"{views} versions of each training image" if views > 1 else "every image"
    note = f"features of {versions} before the trained part: {size / 2**20:,.0f} MiB cached"
    key = _key(data, frozen, prepare)
    if not data.has_content:
        empty = np.broadcast_to(np.zeros((), dtype=np.float16), (len(data), views, *shape))
        return _with_features(data, empty, views, key), note
    extract = extract.make_faster(training[:2])
    try:
        inputs = _FeatureFile(key, (len(data), views, *shape)).fill(needed, extract, progress)
    except OSError as error:
        inputs = np.zeros((len(data), views, *shape), dtype=np.float16)
        for block, view in _each(np.argwhere(needed), progress):
            inputs[_rows(block, len(data)), view] = extract(block, view)
        note += f"; kept in memory only, since the cache cannot be written ({error.strerror})"
    return _with_features(data, inputs, views, key), note


def _with_features(data: DataSet, inputs: Array, views: int, key: str) -> DataSet:
    return replace(data, inputs=inputs, views=views, columns=(), fingerprint=f"{data.fingerprint}-{key}")


@dataclass(frozen=True)
class _Extractor:
    """Computes the features of one block of samples in one view."""

    data: DataSet
    frozen: FrozenPart
    prepare: Preprocessor

    def __call__(self, block: int, view: int) -> Array:
        samples = Samples(self.data, np.arange(len(self.data))[_rows(block, len(self.data))])
        # The held-out domain passes through here like all others: no statistic of it is computed.
        generator = torch_generator(0, "cached view", view, block) if view else None
        batch = self.prepare(samples.gather(torch.arange(len(samples))), generator)
        with torch.inference_mode():
            found = self.frozen(batch.inputs)
        return _to_stored(found).cpu().numpy()

    def make_faster(self, few: Indices) -> _Extractor:
        """Fold batch norm into convolutions, in float32 only: coarser products would round in another way.

        few  training samples on which both forms must agree; held-out ones decide nothing
        """
        if self.prepare.precision != "float32" or not len(few):
            return self
        samples = Samples(self.data, few)
        sample = self.prepare(samples.gather(torch.arange(len(samples)))).inputs
        return replace(self, frozen=fold_batch_norm(self.frozen, sample))

    def stored_shape(self) -> tuple[int, ...]:
        """Compute the shape of one sample's features as they are stored."""
        sample = Samples(self.data, np.arange(1)).gather(torch.arange(1))
        with torch.inference_mode():
            return tuple(_to_stored(self.frozen(self.prepare(sample).inputs)).shape[1:])


def _to_stored(found: Tensor) -> Tensor:
    """Convert to the stored form: float16, maps with channels last, as images are stored."""
    limit = torch.finfo(torch.float16).max
    found = found.float().clamp(-limit, limit).to(torch.float16)
    return (found.permute(0, 2, 3, 1) if found.ndim == 4 else found).contiguous()


class _FeatureFile:
    """The features of one data set and one frozen network in a sparse file, with a checksum per block."""

    def __init__(self, key: str, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.blocks = (-(-shape[0] // BLOCK), shape[1])
        self.path = cache_folder() / f"features-{key}-{shape[1]}.npy"

    def fill(
        self, needed: npt.NDArray[np.bool_], extract: Callable[[int, int], Array], progress: Progress
    ) -> Array:
        """Compute the needed blocks that are missing or damaged, and return the features."""
        make_folder(self.path.parent, private=True)
        with _wait_for(FileLock(self.path.with_suffix(".lock")), progress):
            features = self._open(self.path, self.shape, np.float16)
            checks = self._open(self.path.with_suffix(".sums.npy"), self.blocks, np.uint64)
            missing = [
                (block, view)
                for block, view in np.argwhere(needed)
                if checks[block, view] == 0
                or checks[block, view] != _checksum(features[_rows(block, self.shape[0]), view])
            ]
            for block, view in _each(np.asarray(missing), progress):
                found, first = extract(block, view), block * BLOCK
                _write(features, [(first + row, view) for row in range(len(found))], found)
                _write(checks, [(block, view)], np.array([_checksum(found)], dtype=np.uint64))
        opened: Array = np.load(self.path, mmap_mode="r")
        return opened

    @staticmethod
    def _open(path: Path, shape: tuple[int, ...], dtype: Any) -> np.memmap[Any, Any]:
        """Open an array; a file that is absent, damaged or of another shape is made anew, with zeros."""
        try:
            found: np.memmap[Any, Any] = np.load(path, mmap_mode="r")
            if found.shape == shape and found.dtype == dtype and found.flags.c_contiguous:
                return found
        except Exception:  # numpy parses a header as Python: a damaged one raises almost anything
            pass
        path.unlink(missing_ok=True)  # a run that has the damaged file open keeps its own copy
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "wb") as file:
            header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + int(np.prod(shape)) * np.dtype(dtype).itemsize)
        made: np.memmap[Any, Any] = np.load(path, mmap_mode="r")
        return made


def _write(target: np.memmap[Any, Any], places: Sequence[tuple[int, int]], values: Array) -> None:
    """Write values into the file of an array, one for each place of its first two axes.

    Not through the mapping: there a full disk would end the process, here it is an error.
    """
    with Path(str(target.filename)).open("r+b", buffering=0) as file:
        for (row, view), value in zip(places, values, strict=True):
            file.seek(target.offset + row * target.strides[0] + view * target.strides[1])
            content = np.ascontiguousarray(value)
            if file.write(content.data) != content.nbytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def _wait_for(lock: FileLock, progress: Progress) -> Iterator[None]:
    """Hold the lock; say so where another run computes the same features first."""
    try:
        lock.acquire(timeout=1)
    except Timeout:
        progress("waiting for features that another run computes", 0, 1)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _rows(block: int, count: int) -> slice:
    return slice(int(block) * BLOCK, min((int(block) + 1) * BLOCK, count))


def _each(missing: npt.NDArray[Any], progress: Progress) -> Iterator[tuple[int, int]]:
    """Yield (block, view) pairs and report how far the work is."""
    for done, (block, view) in enumerate(missing.tolist(), start=1):
        yield block, view
        progress("computing features", done, len(missing))


def _checksum(values: Array) -> int:
    """Hash a block; never 0, which stands for a block that was not computed."""
    digest = hashlib.blake2b(np.ascontiguousarray(values).data, digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def _key(data: DataSet, frozen: FrozenPart, prepare: Preprocessor) -> str:
    """Identify the features: samples, frozen weights, where they are cut, and how images are prepared."""
    digest = hashlib.sha256(
        repr(
            (
                _VERSION,
                data.fingerprint,
                frozen.network.model_name,
                frozen.stage,
                prepare.normalize,
                prepare.augmentation,
                prepare.precision,
                prepare.device.type,
            )
        ).encode()
    )
    for name, tensor in sorted(frozen.network.state_dict().items()):
        if not name.startswith("head.") and not (frozen.stage and name.startswith(f"{frozen.stage}.")):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:20]
