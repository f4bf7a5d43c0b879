"""Data sets from Python objects of other libraries: torch data sets and those of Hugging Face `datasets`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import DataSet, from_arrays
from unseen.data.images.decode import UnreadableImageError, read_image, to_square
from unseen.data.images.listing import DEFAULT_IMAGE_SIZE
from unseen.errors import UsageError, unknown_name

_BATCH = 64


def from_torch(
    data: Mapping[str, Any] | Any,
    domains: Sequence[Any] | None = None,
    *,
    groups: Sequence[Any] | None = None,
    image_size: int | None = None,
    name: str = "torch",
) -> DataSet:
    """Create a data set from torch data sets.

    data        a data set per domain, {"photo": ImageFolder(...), ...}; or one data set whose samples are
                (input, target), with `domains`, or (input, target, domain). Inputs are PIL images, uint8 or
                [0, 1] float images (channels x height x width), or vectors of numbers
    domains     the domain of each sample of a single data set
    groups      the group of each sample (patient), in the order of the samples
    image_size  side of the squares that images are resized to; needed if they differ in size
    """
    parts = {"": data} if not isinstance(data, Mapping) else dict(data)
    inputs, targets, places = list[npt.NDArray[Any]](), list[Any](), list[str]()
    classes: list[str] = []
    for domain, part in parts.items():
        classes = _same_classes(classes, [str(label) for label in getattr(part, "classes", [])], domain)
        for position in range(len(part)):
            values = part[position]
            if not isinstance(values, tuple | list) or len(values) not in (2, 3):
                raise UsageError(
                    f"sample {position} of the data set is {type(values).__name__}; expected (input, target) "
                    "or (input, target, domain)"
                )
            inputs.append(_as_input(values[0], image_size))
            targets.append(values[1].item() if hasattr(values[1], "item") else values[1])
            places.append(_domain_of(domain, values, domains, position))
    if not inputs:
        raise UsageError("the data set has no samples")
    shapes = sorted({values.shape for values in inputs})
    if len(shapes) > 1:
        raise UsageError(
            f"inputs have different shapes, such as {shapes[0]} and {shapes[-1]}; give image_size=..."
        )
    if classes and all(isinstance(target, int) for target in targets):
        targets = [classes[target] for target in targets]
    return from_arrays(np.stack(inputs), targets, places, name=name, groups=groups)


def _same_classes(known: list[str], found: list[str], domain: str) -> list[str]:
    """Refuse data sets that number their classes differently: their targets would mean different things."""
    if known and found and known != found:
        raise UsageError(
            f"the data set of {domain!r} has the classes {', '.join(found)}, another one {', '.join(known)}: "
            "numbers of classes must mean the same in all"
        )
    return known or found


def _domain_of(domain: str, values: Sequence[Any], domains: Sequence[Any] | None, position: int) -> str:
    if domain:
        return domain
    if domains is not None:
        if position >= len(domains):
            raise UsageError(f"domains must have one entry per sample, not {len(domains)}")
        return str(domains[position])
    if len(values) == 3:
        return str(values[2])
    raise UsageError("no domains: give one data set per domain, domains=[...], or (input, target, domain)")


def _as_input(value: Any, size: int | None) -> npt.NDArray[Any]:
    """Convert an input to uint8 (height, width, channels), or to a row of numbers."""
    from PIL.Image import Image, fromarray

    if isinstance(value, Image):
        return to_square(value, size or DEFAULT_IMAGE_SIZE)
    array = np.asarray(value)
    if array.ndim == 1:
        return array.astype(np.float32)
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or array.shape[0] not in (1, 3):
        raise UsageError(
            f"an input has the shape {array.shape}; expected an image (1 or 3 channels x height x width) or "
            "a vector"
        )
    pixels = np.ascontiguousarray(_as_bytes(array).transpose(1, 2, 0))
    if size is None:
        return pixels
    resized = to_square(fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels), size)
    return resized[..., :1] if pixels.shape[2] == 1 else resized


def _as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Convert an image to uint8; refuse one that was normalized, as networks get normalized pixels anyway."""
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind != "f" or not (array.min() >= 0 and array.max() <= 1):
        raise UsageError(
            f"an image has {array.dtype} values from {array.min():g} to {array.max():g}; expected uint8, "
            "or floats in [0, 1]: leave Normalize out of the transform, pixels are normalized anyway"
        )
    pixels: npt.NDArray[np.uint8] = np.rint(array * 255).astype(np.uint8)
    return pixels


def from_datasets(
    data: Any,
    *,
    domain_column: str = "domain",
    target: str = "label",
    image_column: str = "image",
    group_column: str | None = None,
    image_size: int | None = None,
    name: str = "datasets",
) -> DataSet:
    """Create a data set from a `datasets.Dataset`, or from all splits of a `datasets.DatasetDict`.

    Images are read batch by batch and resized to squares; a label's class names come from its feature.
    """
    splits = list(data.values()) if isinstance(data, Mapping) else [data]
    columns = [image_column, target, domain_column, *([group_column] if group_column else [])]
    images = list[npt.NDArray[np.uint8]]()
    found: dict[str, list[Any]] = {column: [] for column in columns}
    for split in splits:
        if not hasattr(split, "features") or not hasattr(split, "iter"):
            raise UsageError(f"expected a datasets.Dataset, not {type(split).__name__}")
        for column in columns:
            if column not in split.features:
                raise unknown_name("column of the data set", column, split.features)
        for batch in _leave_encoded(split, image_column).select_columns(columns).iter(_BATCH):
            images.extend(_decode_cells(batch[image_column], len(images), image_size or DEFAULT_IMAGE_SIZE))
            for column in columns[1:]:
                found[column] += _name_classes(split.features[column], batch[column])
    if not images:
        raise UsageError("the data set has no samples")
    return from_arrays(
        np.stack(images),
        found[target],
        found[domain_column],
        name=name,
        groups=found[group_column] if group_column else None,
    )


def _leave_encoded(split: Any, image_column: str) -> Any:
    """Leave images encoded, so that a batch of large ones stays small."""
    feature = split.features[image_column]
    if not hasattr(feature, "decode"):
        raise UsageError(f"column {image_column!r} holds {feature}, expected images; give image_column=...")
    return split.cast_column(image_column, type(feature)(decode=False))


def _decode_cells(cells: Iterable[Any], start: int, size: int) -> Iterable[npt.NDArray[np.uint8]]:
    from pathlib import Path

    for number, cell in enumerate(cells, start=start):
        content = cell["bytes"] if cell["bytes"] is not None else Path(cell["path"])
        try:
            yield read_image(content, lambda image: to_square(image, size), size)
        except UnreadableImageError as error:
            raise UsageError(f"image {number} of the data set cannot be read ({error})") from error


def _name_classes(feature: Any, values: Sequence[Any]) -> list[Any]:
    """Name the classes of a label."""
    names = getattr(feature, "names", None)
    return [names[value] for value in values] if names else list(values)
