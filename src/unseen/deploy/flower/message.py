"""Messages between coordinator and site: a JSON header and named arrays, and their wire format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unseen.engine.experiment import UPDATE_DTYPES
from unseen.errors import UnseenError

if TYPE_CHECKING:
    from flwr.app import RecordDict

Arrays = dict[str, npt.NDArray[Any]]


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
    """Read a message from Flower's record type."""
    try:
        header = json.loads(str(record.config_records["facts"]["json"]))
        arrays = {name: array.numpy() for name, array in record.array_records["arrays"].items()}
    except (KeyError, ValueError, TypeError) as error:
        raise UnseenError(
            f"a message could not be read ({error}); run the same version of Unseen everywhere"
        ) from error
    return SiteMessage(header, arrays)


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
