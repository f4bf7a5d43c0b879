"""Messages between coordinator and site: a JSON header and named arrays, and their wire format."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unseen.engine.experiment import UPDATE_DTYPES
from unseen.errors import UnseenError
from unseen.printable import printable

if TYPE_CHECKING:
    from flwr.app import Array, RecordDict

Arrays = dict[str, npt.NDArray[Any]]
LARGEST_HEADER = 16_000_000
"""Bytes of JSON; the largest that a site sends are the class names of its summary."""
MOST_ARRAYS = 100_000
KINDS = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
"""Types of numbers that messages carry, in this machine's byte order: those of all tensor operations."""


@dataclass(frozen=True)
class SiteMessage:
    """A header of JSON values (NaN is allowed) and arrays by name."""

    header: dict[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Approximate size on the wire."""
        return len(json.dumps(self.header)) + sum(array.nbytes for array in self.arrays.values())

    def below(self, prefix: str) -> dict[str, Tensor]:
        """Return the arrays whose names start with `prefix`, as tensors without the prefix."""
        return {
            name.removeprefix(prefix): to_tensor(array)
            for name, array in self.arrays.items()
            if name.startswith(prefix)
        }


def to_flower_record(message: SiteMessage) -> RecordDict:
    """Convert a message to Flower's record type."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {name: Array(np.asarray(array, order="C")) for name, array in message.arrays.items()}
    return RecordDict(
        {"arrays": ArrayRecord(arrays), "facts": ConfigRecord({"json": json.dumps(message.header)})}
    )


def from_flower_record(record: RecordDict) -> SiteMessage:
    """Read a message from Flower's record type; whatever cannot be read is an UnseenError.

    The sender chose every byte: nothing is allocated that it has not sent, and no type of Python's own is
    built but those of JSON.
    """
    try:
        header = _read_header(record.config_records["facts"]["json"])
        found = record.array_records["arrays"]
        if len(found) > MOST_ARRAYS:
            raise ValueError(f"{len(found)} arrays, at most {MOST_ARRAYS} are read")
        arrays = {str(name): read_array(array) for name, array in found.items()}
    except Exception as error:
        raise UnseenError(
            f"a message could not be read ({printable(str(error) or type(error).__name__, longest=200)}); "
            "run the same version of Unseen everywhere"
        ) from error
    return SiteMessage(header, arrays)


def _read_header(text: object) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > LARGEST_HEADER:
        raise ValueError(f"its header is not a text of at most {LARGEST_HEADER} characters")
    header = json.loads(text)
    if not isinstance(header, dict):
        raise ValueError(f"its header is a {type(header).__name__}, expected an object")
    return header


def read_array(array: Array) -> npt.NDArray[Any]:
    """Read an array from the bytes of NumPy's format, checked against their number before any is allocated.

    `numpy.load` believes the size in the format's own header and allocates it.
    """
    data = array.data
    if array.stype != "numpy.ndarray":
        raise ValueError(f"an array is stored as {printable(array.stype, longest=40)}")
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, by_columns, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"an array has version {version} of NumPy's format")
    if dtype.name not in KINDS or not dtype.isnative or dtype.subdtype is not None:
        raise ValueError(f"an array has numbers of type {printable(str(dtype), longest=40)}")
    start, count = file.tell(), math.prod(shape)
    if any(size < 0 for size in shape) or count * dtype.itemsize != len(data) - start:
        raise ValueError(f"an array has {len(data) - start} bytes, its shape says {count * dtype.itemsize}")
    values = np.frombuffer(data, dtype=dtype, count=count, offset=start) if count else np.empty(0, dtype)
    return values.reshape(shape, order="F" if by_columns else "C")


def to_arrays(tensors: Mapping[str, Tensor], *, prefix: str = "") -> Arrays:
    """Convert tensors to arrays, their names prefixed by `prefix`."""
    return {prefix + name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def to_tensor(array: npt.NDArray[Any]) -> Tensor:
    """Convert an array to a tensor that owns its memory (Flower's arrays are read-only)."""
    return torch.from_numpy(np.array(array))


def pack_weights(weights: Tensor, dtype: str) -> npt.NDArray[Any]:
    """Convert weights to the job's dtype; NumPy has no bfloat16, so its bits are sent as int16."""
    cast = weights.detach().cpu().to(UPDATE_DTYPES[dtype])
    return cast.view(torch.int16).numpy() if dtype == "bfloat16" else cast.numpy()


def unpack_weights(array: npt.NDArray[Any], dtype: str) -> Tensor:
    """Convert received weights back to float32."""
    tensor = to_tensor(array)
    if dtype == "bfloat16" and tensor.dtype is torch.int16:
        tensor = tensor.view(torch.bfloat16)
    if tensor.dtype is not UPDATE_DTYPES[dtype]:
        raise UnseenError(f"sent its weights as {array.dtype}, the job says {dtype}")
    return tensor.to(torch.float32)
