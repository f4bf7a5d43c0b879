"""Which augmentations a run can have: by its data, its task, its method and how it is computed."""

from __future__ import annotations

from typing import Any

from unseen.config import RunConfig
from unseen.data import DataSet
from unseen.data.augmentation import parse_augmentations
from unseen.errors import UsageError
from unseen.methods.base import Method

_BEFORE_LISTS = ("none", "standard", "crop-flip", "shift")
"""Names that rows of a table have always ignored."""


def check_augmentation(config: RunConfig, data: DataSet, method: Method[Any]) -> None:
    """Refuse augmentations that the data, the task or the method cannot have."""
    if config.augment is None:
        return
    steps, given = parse_augmentations(config.augment), f"--augment {config.augment}"
    if data.is_measured and steps.at("images"):
        raise UsageError(
            f"{given} changes pixels of 8 bits; {data.name} contains measured values: use --augment none"
        )
    if not data.is_image and steps.at("images") and config.augment not in _BEFORE_LISTS:
        raise UsageError(f"{given} changes images, and {data.name} is a table: use --augment none")
    if config.compile and (inside := steps.at("stages") + steps.at("features")):
        raise UsageError(f"--augment {inside[0].name} cannot be compiled: leave out --compile")
    mixing = steps.mixing_targets
    if mixing and not data.task_type.takes_mixed_targets:
        raise UsageError(
            f"--augment {mixing} mixes targets, which --task {data.task} does not take: leave it out"
        )
    if mixing and data.task_type.has_classes and not method.accepts_mixed_targets:
        raise UsageError(
            f"--augment {mixing} gives samples two labels, and {method.name} needs one label per sample: "
            "leave it out, or use another --method"
        )


def default_augmentation(data: DataSet, method: Method[Any] | None = None) -> str:
    """Augment photographs; small digits, measured values and tables stay as they are.

    A head in closed form is found on the samples as they are.
    """
    trains = method is None or method.default_train != "head"
    photographs = data.is_image and not data.is_measured and data.input_shape[-1] > 32 and trains
    return "standard" if photographs else "none"
