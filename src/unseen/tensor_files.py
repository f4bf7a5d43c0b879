"""Tensors in safetensors files with a checksum over names, types, shapes, values and metadata."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unseen.checksums import Crc
from unseen.errors import UnseenError
from unseen.fileio import write_atomically

_SUM = "checksum"


class DamagedFileError(UnseenError):
    """A file whose content differs from its checksum, or that is no longer a file of its kind."""


@dataclass(frozen=True)
class TensorFile:
    """The content of a file of tensors; `checked` is False for files of versions without checksums."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    checked: bool


def save_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    *,
    private: bool = False,
) -> None:
    """Replace `path` with these tensors and texts and their checksum, atomically.

    private  keep the file from other users
    """
    whole = _without_shared_memory({name: tensor.detach().cpu() for name, tensor in tensors.items()})
    texts = dict(metadata or {})
    texts |= {_SUM: _checksum(whole, texts)}
    write_atomically(path, lambda target: _save_file(whole, target, texts), private=private)


def load_tensors(path: Path) -> TensorFile:
    """Read a file of tensors; a damaged one raises `DamagedFileError`, whose text is the reason."""
    try:
        with safe_open(path, framework="pt") as file:
            texts = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except OSError as error:
        raise DamagedFileError(error.strerror or str(error)) from error
    except (SafetensorError, ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise DamagedFileError(f"not a safetensors file: {error}") from error
    expected = texts.pop(_SUM, None)
    if expected is not None and expected != _checksum(tensors, texts):
        raise DamagedFileError("its checksum differs")
    return TensorFile(tensors, texts, checked=expected is not None)


def _save_file(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write the file; what the disk refuses becomes an OSError, not an error of safetensors."""
    try:
        save_file(tensors, path, metadata)
        _sort_metadata(path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        code = int(number[1])
        raise OSError(code, os.strerror(code)) from error


def _sort_metadata(path: Path) -> None:
    """Put the texts in the header in order: safetensors writes them in a random one."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(length)
        if len(text) == length:
            file.seek(8)
            file.write(text)


def _without_shared_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy what safetensors cannot write: views of other memory, and a tensor that is given twice."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        whole = tensor.contiguous()
        memory = whole.untyped_storage()
        if memory.data_ptr() in seen or memory.nbytes() != whole.nbytes:
            whole = whole.clone()
        seen.add(whole.untyped_storage().data_ptr())
        found[name] = whole
    return found


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    found = Crc()
    shapes: list[Any] = [
        [name, str(tensors[name].dtype), list(tensors[name].shape)] for name in sorted(tensors)
    ]
    found.add(json.dumps([shapes, sorted(metadata.items())]).encode())
    for name in sorted(tensors):
        found.add(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return str(found)
