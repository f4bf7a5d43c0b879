"""Reading named tensors from a weights file, safely: no code in the file is ever run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen.errors import UnseenError

_TORCH_SUFFIXES = (".pt", ".pth", ".bin")
_WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts put the weights into a larger checkpoint."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file, or a torch file that holds nothing but tensors, as {name: tensor}."""
    if not path.is_file():
        raise UnseenError(f"no such weights file: {path}")
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        tensors = _read_safetensors(path)
    elif suffix in _TORCH_SUFFIXES:
        tensors = _read_torch(path)
    else:
        raise UnseenError(
            f"{path} is a weights file of unknown kind; expected .safetensors, {', '.join(_TORCH_SUFFIXES)}"
        )
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UnseenError(f"{path}: tensor {name!r} holds values that are not finite; use another file")
    return tensors


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise UnseenError(
            f"{path} is not a readable safetensors file ({_first_line(error)}); get the file anew"
        ) from error


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # garbage makes the unpickler fail in any way at all
        raise UnseenError(
            f"{path} is not a torch file of plain tensors ({_first_line(error)}); save a state_dict, "
            "best as .safetensors"
        ) from error
    for key in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content or not all(map(_is_named_tensor, content.items())):
        raise UnseenError(f"{path} holds no {{name: tensor}} table; save a model's state_dict")
    return {name.removeprefix("module."): tensor for name, tensor in content.items()}


def _is_named_tensor(item: tuple[object, object]) -> bool:
    return isinstance(item[0], str) and isinstance(item[1], Tensor)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
