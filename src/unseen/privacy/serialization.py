"""Bytes, lists of bytes and JSON values as tensors, the only form that messages can carry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.errors import UnseenError


def join_parts(parts: Sequence[bytes]) -> Tensor:
    """Join byte strings in one tensor: their number, their lengths, then the strings."""
    head = np.array([len(parts), *map(len, parts)], dtype="<i8").tobytes()
    return torch.frombuffer(bytearray(b"".join([head, *parts])), dtype=torch.uint8)


def count_parts(value: Tensor) -> int:
    """Read the number of byte strings from a tensor of `join_parts`."""
    return int.from_bytes(value[:8].numpy().tobytes(), "little", signed=True)


def split_parts(value: Tensor) -> list[bytes]:
    """Split the byte strings of `join_parts`; refuse a truncated message."""
    whole = value.numpy().tobytes()
    number = count_parts(value)
    place = 8 * (number + 1)
    if number < 0 or len(whole) < place:
        raise UnseenError("a message with ciphertexts is truncated or changed")
    lengths = np.frombuffer(whole[8:place], dtype="<i8")
    ends = place + np.cumsum(lengths)
    if bool((lengths < 0).any()) or (int(ends[-1]) if number else place) != len(whole):
        raise UnseenError("a message with ciphertexts is truncated or changed")
    return [whole[end - length : end] for length, end in zip(lengths, ends, strict=True)]


def tensor_to_bytes(value: Tensor) -> bytes:
    """Return the bytes of a uint8 tensor."""
    data: bytes = value.contiguous().numpy().astype(np.uint8, copy=False).tobytes()
    return data


def bytes_to_tensor(data: bytes) -> Tensor:
    """Convert bytes to a uint8 tensor, for messages."""
    values: Any = np.frombuffer(data, dtype=np.uint8).copy()
    return torch.from_numpy(values)


def json_to_tensor(contents: list[Any]) -> Tensor:
    """Convert JSON values to a uint8 tensor, for messages."""
    return torch.frombuffer(bytearray(json.dumps(contents).encode()), dtype=torch.uint8)


def json_from_tensor(value: Tensor) -> list[Any]:
    """Read the JSON values of `json_to_tensor`."""
    contents: list[Any] = json.loads(tensor_to_bytes(value))
    return contents
