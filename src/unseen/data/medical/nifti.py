"""NIfTI volumes: 2-D slices, cut along the patient's own axes and shown as radiologists view them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unseen.data.images.decode import UnreadableImageError
from unseen.data.images.image_sources import Use
from unseen.data.medical.windowing import AXES, MedicalSettings, Pixels, Values, apply_range, apply_window
from unseen.errors import missing_extra

SUFFIXES = (".nii", ".nii.gz")
_LOW, _HIGH = 0.5, 99.5
"""Percentiles of a volume's values that are shown as black and white."""
_MOST_VOXELS = 1 << 30
"""Beyond it a small compressed file could fill the memory."""


def require_nibabel() -> Any:
    """Import nibabel, or say how to install it."""
    try:
        import nibabel
    except ImportError as error:
        raise missing_extra("nibabel", "medical", "reading NIfTI") from error
    return nibabel


def read_nifti(path: Path, images: int, use: Use[Any], settings: MedicalSettings) -> list[Any]:
    """Cut the chosen slices of a volume and return what `use` makes of each, or the reason why it cannot."""
    try:
        volume = _open(path)
        axis = AXES.index(settings.axis)
        chosen = settings.choose_slices(_shape(volume)[axis])
        return [use(Image.fromarray(pixels)) for pixels in _cut(_values(volume), axis, chosen, settings)]
    except UnreadableImageError as error:
        return [str(error)] * images


def count_nifti(path: Path, settings: MedicalSettings) -> int:
    """Count the slices of a volume that are used; 1 where its header cannot be read."""
    try:
        return settings.count_slices(_shape(_open(path))[AXES.index(settings.axis)])
    except UnreadableImageError:
        return 1


def _open(path: Path) -> Any:
    """Open a volume with its axes to right, anterior and superior; check its size before taking memory."""
    nibabel = require_nibabel()
    try:
        volume = nibabel.load(path)
        _shape(volume)
        return nibabel.as_closest_canonical(volume)  # reads the values where an axis is turned
    except UnreadableImageError:
        raise
    except Exception as error:  # a damaged file fails with almost any kind of exception
        raise UnreadableImageError(f"not a NIfTI volume ({_first_line(error)})") from error


def _shape(volume: Any) -> tuple[int, int, int]:
    """Return the three sides; a fourth axis of length 1 is ignored."""
    shape = tuple(volume.shape)
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) != 3:
        raise UnreadableImageError(f"of shape {' x '.join(map(str, volume.shape))}; expected a single volume")
    if math.prod(map(int, shape)) > _MOST_VOXELS:
        raise UnreadableImageError(
            f"of shape {' x '.join(map(str, shape))}; at most {_MOST_VOXELS} voxels are read"
        )
    return shape[0], shape[1], shape[2]


def _values(volume: Any) -> Values:
    try:
        values: Values = np.asarray(volume.dataobj, dtype=np.float32).reshape(_shape(volume))
    except UnreadableImageError:
        raise
    except Exception as error:  # as above
        raise UnreadableImageError(f"its values cannot be read ({_first_line(error)})") from error
    return values


def _cut(values: Values, axis: int, chosen: list[int], settings: MedicalSettings) -> list[Pixels]:
    """Cut slices with one range of grey values for the whole volume."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise UnreadableImageError("it has no finite value")
    low, high = np.percentile(finite, (_LOW, _HIGH))
    pictures = []
    for at in chosen:
        plane = np.nan_to_num(np.take(values, at, axis=axis), nan=float(low))
        shown = (
            apply_range(plane, float(low), float(high))
            if settings.center_and_width is None
            else apply_window(plane, *settings.center_and_width)
        )
        # axes run to right, anterior, superior; columns of a picture run to left or posterior, rows downwards
        pictures.append(np.ascontiguousarray(shown[::-1, ::-1].T))
    return pictures


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:160] if lines else type(error).__name__
