"""Lists of augmentations, and those that they may name beyond the ones of `unseen.data.augment`."""

from unseen.data.augmentation.augmentation_list import (
    AUGMENTATIONS,
    AugmentationList,
    Between,
    Mixed,
    acts_on,
    augment_batch,
    parse_augmentations,
    settings_of,
)

__all__ = [
    "AUGMENTATIONS",
    "AugmentationList",
    "Between",
    "Mixed",
    "acts_on",
    "augment_batch",
    "parse_augmentations",
    "settings_of",
]
