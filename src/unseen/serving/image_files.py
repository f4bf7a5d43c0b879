"""Images to predict for: found in any layout, read as the model expects them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unseen.data.images.decode import IMAGE_SUFFIXES, Pixels, decode_image
from unseen.data.tables.table_reader import TABLE_SUFFIXES
from unseen.errors import UnseenError, UsageError
from unseen.serving.saved_model import ModelCard


class FoundImages(NamedTuple):
    """Images below a folder, by their names there, and the number of other files, which are skipped."""

    folder: Path
    names: tuple[str, ...]
    passed_over: int


def find_images(path: Path) -> FoundImages:
    """List one image or all images at any depth, sorted; hidden files and folders are skipped."""
    if path.is_file():
        if path.suffix.lower() in TABLE_SUFFIXES:
            raise UsageError(f"{path} is a table, but the model was trained on images: give images")
        return FoundImages(path.parent, (path.name,), 0)
    if not path.is_dir():
        raise UnseenError(f"no such folder or file: {path}; expected a folder of images, or one image")
    names: list[str] = []
    passed_over = 0
    for folder, files in _walk(path):
        images = [
            name for name in files if name.lower().endswith(IMAGE_SUFFIXES) and not _is_special(folder / name)
        ]
        passed_over += len(files) - len(images)
        names += [(folder / name).relative_to(path).as_posix() for name in images]
    if not names:
        others = f" ({passed_over} other files)" if passed_over else ""
        raise UnseenError(f"{path}: no images{others}; expected files ending in {', '.join(IMAGE_SUFFIXES)}")
    return FoundImages(path, tuple(sorted(names)), passed_over)


def image_input(card: ModelCard) -> tuple[int, int]:
    """Return how many channels (1 or 3) the model's images have, and their side."""
    if len(card.input_shape) != 3:
        raise UsageError(f"model {card.model!r} was trained on rows of a table, not on images")
    channels, height, width = card.input_shape
    if card.measured:
        raise UnseenError(
            f"model {card.model!r} was trained on measured values ({card.data}), not on image files: use "
            "SavedModel.outputs with arrays"
        )
    if channels not in (1, 3) or height != width:
        raise UnseenError(
            f"model {card.model!r} takes images of {height}x{width} pixels and {channels} channels; files "
            "can be read for square ones of 1 or 3 channels only: use SavedModel.outputs with arrays"
        )
    return channels, height


def read_image(path: Path, *, size: int, channels: int) -> Pixels:
    """Decode one file to (size, size, channels); one channel is the luminance of the three."""
    pixels = decode_image(path, size)
    return pixels if channels == 3 else np.asarray(Image.fromarray(pixels).convert("L"))[..., None]


def as_batch(images: Sequence[Pixels]) -> Tensor:
    """Stack images as networks expect them: uint8, n x channels x height x width, stored channels last."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


def _walk(top: Path) -> list[tuple[Path, list[str]]]:
    """List all visible folders below, links to folders too, each folder once."""
    found: list[tuple[Path, list[str]]] = []
    seen: set[str] = set()
    for folder, folders, files in os.walk(top, followlinks=True, onerror=_refuse):
        place = os.path.realpath(folder)
        if place in seen:
            folders.clear()
            continue
        seen.add(place)
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        found.append((Path(folder), [name for name in files if not _is_hidden(name)]))
    return found


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))


def _is_special(path: Path) -> bool:
    """Recognize a pipe, socket or device: reading it may wait for ever. Broken links are left to decoding."""
    return path.exists() and not path.is_file()


def _refuse(error: OSError) -> None:
    raise UnseenError(f"could not list {error.filename}: {error.strerror}") from error
