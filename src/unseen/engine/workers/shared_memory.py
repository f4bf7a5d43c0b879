"""Arrays shared by several processes: plain files, mapped into each of them.

They are in shared memory where that is large enough, else in the temporary folder on disk. The files are
unlinked as soon as all processes have opened them, so that nothing is left behind, even after a crash.
"""

from __future__ import annotations

import mmap
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
_SHARED_MEMORY = Path("/dev/shm")
_MARGIN = 1.2


@dataclass(frozen=True)
class MappedArray:
    """Location of an array, in a form that can be sent to another process."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0

    def open(self, *, writable: bool = False) -> Array:
        """Map the array into this process."""
        if 0 in self.shape:
            return np.zeros(self.shape, dtype=self.dtype)
        mode: Any = "r+" if writable else "r"
        return np.memmap(self.path, dtype=self.dtype, mode=mode, shape=self.shape, offset=self.offset)


class SharedArrays:
    """A folder for shared arrays that exists only until they have been opened."""

    def __init__(self, expected_bytes: int) -> None:
        self.in_memory = _fits_in_memory(expected_bytes)
        self.folder = Path(tempfile.mkdtemp(prefix="unseen-", dir=_SHARED_MEMORY if self.in_memory else None))

    def new(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> MappedArray:
        """Create an array of zeros."""
        path = self.folder / name
        with path.open("wb") as file:
            file.truncate(max(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize, 1))
        return MappedArray(str(path), dtype, shape)

    def share(self, name: str, array: Array) -> MappedArray:
        """Describe an array that is a mapped file already, or copy it into one."""
        base: object = array.base
        if isinstance(array, np.memmap) and isinstance(base, mmap.mmap):
            return MappedArray(str(array.filename), array.dtype.str, array.shape, array.offset)
        mapped = self.new(name, array.shape, array.dtype.str)
        mapped.open(writable=True)[...] = array
        return mapped

    def unlink(self) -> None:
        """Remove the names; processes that opened the arrays keep them."""
        shutil.rmtree(self.folder, ignore_errors=True)


def as_arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Convert tensors to arrays, which pickle by value (torch would keep a file descriptor open for each)."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def as_tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """Convert arrays back to tensors."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _fits_in_memory(expected_bytes: int) -> bool:
    """Check whether shared memory has room, and using it leaves the machine enough memory."""
    if not _SHARED_MEMORY.is_dir():
        return False
    try:
        available = next(
            int(line.split()[1]) * 1024
            for line in Path("/proc/meminfo").read_text().splitlines()
            if line.startswith("MemAvailable:")
        )
    except (OSError, StopIteration):
        available = 0
    room = min(shutil.disk_usage(_SHARED_MEMORY).free, available // 2)
    return expected_bytes * _MARGIN < room
