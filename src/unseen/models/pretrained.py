"""Where pretrained weights lie: files in DATA_ROOT/weights, named after the network."""

from __future__ import annotations

from pathlib import Path

from unseen.errors import UnseenError
from unseen.models.norms import GROUP_NORM

IMAGENET = "imagenet"
"""In the place of a file of weights: the network's ImageNet weights below the data root."""
_FILES = ("{}_imagenet_features", "{}_imagenet", "{}")
_SUFFIXES = (".safetensors", ".pth", ".pt")
_FOLDER = "weights"


def find_weights(model: str, root: Path | None) -> Path | None:
    """Find a network's ImageNet weights in DATA_ROOT/weights."""
    if root is None:
        return None
    plain = model.removesuffix(GROUP_NORM)
    names = [pattern.format(plain) + suffix for pattern in _FILES for suffix in _SUFFIXES]
    return next((root / _FOLDER / name for name in names if (root / _FOLDER / name).is_file()), None)


def weights_place(model: str) -> str:
    """Where a network's weights are looked for first."""
    return f"{_FOLDER}/{_FILES[1].format(model)}{_SUFFIXES[0]}"


def weights_file(weights: str | None, model: str, root: Path | None) -> Path | None:
    """Turn what the user named, a file or `imagenet`, into a file; None = start at random."""
    if weights is None:
        return None
    if weights != IMAGENET:
        return Path(weights)
    found = find_weights(model, root)
    if found is None:
        below = f"below {root}" if root else "below a folder that --data-root or UNSEEN_DATA names"
        raise UnseenError(f"there are no ImageNet weights for {model}: put {weights_place(model)} {below}")
    return found
