"""Settings of medical images: which grey values are shown, and which slices of a volume are taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unseen.errors import UsageError
from unseen.hparams import Settings, setting

Pixels = npt.NDArray[np.uint8]
Values = npt.NDArray[np.floating[Any]]
AXES = ("sagittal", "coronal", "axial")
"""Directions across which a volume is cut, in the order of its axes."""
_WORDS = ("auto", "middle", "all")


@dataclass(frozen=True)
class MedicalSettings(Settings):
    """Settings of medical images."""

    window: str = setting(
        "auto",
        "grey values shown, as CENTER/WIDTH such as 40/400; auto: the DICOM file's own window, else all "
        "values; of a NIfTI volume its 0.5th to 99.5th percentile",
    )
    slices: str = setting(
        "auto",
        "slices of a volume or frames of a file: middle, all, or a number of evenly spaced ones in the "
        "middle half; auto: middle for NIfTI, while DICOM files with several frames are refused",
    )
    axis: str = setting("axial", "how a NIfTI volume is cut: axial, coronal or sagittal")

    def __post_init__(self) -> None:
        _ = self.center_and_width
        if self.slices not in _WORDS and not (self.slices.isdecimal() and int(self.slices)):
            raise UsageError(f"slices={self.slices} is none of {', '.join(_WORDS)} and no positive number")
        if self.axis not in AXES:
            raise UsageError(f"axis={self.axis} is none of {', '.join(AXES)}")

    @property
    def center_and_width(self) -> tuple[float, float] | None:
        """The window's center and width; None for `auto`."""
        if self.window == "auto":
            return None
        try:
            center, width = map(float, self.window.split("/"))
        except ValueError:
            raise UsageError(
                f"window={self.window} is neither auto nor CENTER/WIDTH, such as 40/400"
            ) from None
        if not width >= 1:
            raise UsageError(f"window={self.window} has a width below 1")
        return center, width

    def count_slices(self, available: int) -> int:
        """Return how many of the available slices are used."""
        if self.slices == "all":
            return available
        return min(int(self.slices), available) if self.slices.isdecimal() else 1

    def choose_slices(self, available: int) -> list[int]:
        """Choose slices: all, or some that are evenly spaced in the middle half, where the body is."""
        count = self.count_slices(available)
        if self.slices == "all":
            return list(range(available))
        if count == available:
            return list(range(count))
        return [int(available * (0.25 + 0.5 * (number + 0.5) / count)) for number in range(count)]


def apply_window(values: Values, center: float, width: float, function: str = "LINEAR") -> Pixels:
    """Map values to 0..255 as DICOM PS3.3 C.11.2.1.2 defines it.

    function  LINEAR: y = 255 ((x - (c - 0.5)) / (w - 1) + 0.5), cut at both ends; LINEAR_EXACT: without the
              halves; SIGMOID: y = 255 / (1 + exp(-4 (x - c) / w))
    """
    if function == "SIGMOID":
        share = 1 / (1 + np.exp(np.clip(-4 * (values - center) / width, -50, 50)))
    elif function == "LINEAR_EXACT":
        share = (values - center) / width + 0.5
    elif width > 1:
        share = (values - (center - 0.5)) / (width - 1) + 0.5
    else:
        share = (values > center - 0.5).astype(np.float32)
    shown: Pixels = np.rint(np.clip(share, 0, 1) * 255).astype(np.uint8)
    return shown


def apply_range(values: Values, low: float, high: float) -> Pixels:
    """Map values from low..high to 0..255."""
    if not high > low:
        return np.zeros(values.shape, np.uint8)
    shown: Pixels = np.rint(np.clip((values - low) / (high - low), 0, 1) * 255).astype(np.uint8)
    return shown
