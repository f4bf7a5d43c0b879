"""Lists of augmentations: `NAME[:VALUE]+NAME`, applied in order; their registry, levels and settings."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_type_hints

import torch
from torch import Tensor

from unseen.errors import UsageError
from unseen.registry import Registry

Level = Literal["images", "stages", "features", "logits"]
"""What an augmentation changes, and how it is called.

images    function(images, generator) -> images, or `Mixed` where the targets change too
stages    function(maps, generator) -> maps, for outputs (n, channels, positions) of the first two stages
features  function(features, targets, head) -> the features from which the loss is computed
logits    function(logits) -> a term that is added to the loss
"""
Augmentation = Callable[..., Any]
A = TypeVar("A", bound=Augmentation)
JOIN, GIVEN = "+", ":"


class Mixed(NamedTuple):
    """Images that are part themselves, part their partner in the batch.

    partner  position of the image that was mixed in, per image
    share    weight of the image's own target; the rest is its partner's
    """

    images: Tensor
    partner: Tensor
    share: Tensor


class Between(NamedTuple):
    """Bounds of a setting, both allowed, and what it means."""

    low: float
    high: float
    meaning: str


@dataclass(frozen=True)
class Traits:
    """What users of an augmentation must know of it.

    mixes_samples  whether what becomes of a sample depends on others of its batch
    mixes_targets  whether targets change: classes become probabilities
    """

    level: Level = "images"
    mixes_samples: bool = False
    mixes_targets: bool = False


def acts_on(level: Level, *, mixes_samples: bool = False, mixes_targets: bool = False) -> Callable[[A], A]:
    """Declare the traits of an augmentation; without it, it changes every image by itself."""

    def declare(function: A) -> A:
        vars(function)["traits"] = Traits(level, mixes_samples or mixes_targets, mixes_targets)
        return function

    return declare


class AugmentationRegistry(Registry[Augmentation]):
    """The augmentations; a value of `--augment` is a list of their names."""

    def check(self, value: str) -> None:
        """Refuse unknown names and settings anywhere in the list."""
        parse_augmentations(value)


AUGMENTATIONS = AugmentationRegistry(
    "augmentation",
    group="unseen.augmentations",
    builtin=(
        "unseen.data.augment",
        "unseen.data.augmentation.crop_and_colour",
        "unseen.data.augmentation.policies",
        "unseen.data.augmentation.sample_mixing",
        "unseen.data.augmentation.feature_styles",
        "unseen.data.augmentation.head_penalties",
    ),
)


@dataclass(frozen=True)
class Step:
    """One augmentation of a list with its settings."""

    name: str
    function: Augmentation
    settings: dict[str, float] = field(default_factory=dict)

    @property
    def traits(self) -> Traits:
        """Traits that the function declares."""
        found: Traits = vars(self.function).get("traits", Traits())
        return found

    def __call__(self, *inputs: Any) -> Any:
        """Apply the augmentation."""
        return self.function(*inputs, **self.settings)


@dataclass(frozen=True)
class AugmentationList:
    """The steps of a list, in order, without `none`."""

    steps: tuple[Step, ...]

    def at(self, level: Level) -> tuple[Step, ...]:
        """Return the steps of one level."""
        return tuple(step for step in self.steps if step.traits.level == level)

    @property
    def in_network(self) -> tuple[Step, ...]:
        """The steps that act on what the network computes."""
        return tuple(step for step in self.steps if step.traits.level != "images")

    @property
    def mixing_samples(self) -> str:
        """Names of the steps through which samples of a batch affect each other; empty if there are none."""
        return _names(step for step in self.steps if step.traits.mixes_samples)

    @property
    def mixing_targets(self) -> str:
        """Names of the steps that change targets; empty if there are none."""
        return _names(step for step in self.steps if step.traits.mixes_targets)


@lru_cache(maxsize=64)
def parse_augmentations(text: str) -> AugmentationList:
    """Read a list such as `crop:0.5+flip+mixstyle`; refuse unknown names and impossible settings."""
    steps = []
    for part in text.split(JOIN):
        name, *values = part.strip().split(GIVEN)
        if not name:
            raise UsageError(
                f"--augment {text!r} lacks a name: give names joined by +, such as standard+mixup"
            )
        steps.append(Step(name, AUGMENTATIONS[name], _settings(name, values)))
    return AugmentationList(tuple(step for step in steps if step.name != "none"))


def augment_batch(
    steps: Iterable[Step], images: Tensor, targets: Tensor, generator: torch.Generator, *, classes: int = 0
) -> tuple[Tensor, Tensor]:
    """Apply steps of the level `images` in order; return images and targets.

    classes  number of classes; 0 where targets are quantities
    """
    for step in steps:
        changed = step(images, generator)
        if isinstance(changed, Mixed):
            images, targets = changed.images, mix_targets(changed, targets, classes=classes)
        else:
            images = changed
    return images, targets


def mix_targets(mixed: Mixed, targets: Tensor, *, classes: int = 0) -> Tensor:
    """Compute share * y_i + (1 - share) * y_partner, of quantities or of probabilities (n x classes).

    The cross-entropy with such probabilities is the two-label one,
    share * CE(y_i) + (1 - share) * CE(y_partner).
    """
    if not targets.is_floating_point():
        targets = torch.nn.functional.one_hot(targets, classes).to(mixed.images.dtype)
    share = mixed.share.to(targets).view(-1, *([1] * (targets.ndim - 1)))
    return torch.lerp(targets[mixed.partner], targets, share)


def settings_of(function: Augmentation) -> list[tuple[str, float, Between]]:
    """Return name, default and bounds of every setting, in the order of `name:value:value`."""
    own = [
        (name, parameter)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    hints = get_type_hints(function, include_extras=True) if own else {}
    return [
        (name, parameter.default, bounds)
        for name, parameter in own
        for bounds in get_args(hints[name])
        if isinstance(bounds, Between)
    ]


def _settings(name: str, values: list[str]) -> dict[str, float]:
    known = settings_of(AUGMENTATIONS[name])
    if len(values) > len(known):
        takes = ", ".join(key for key, *_ in known)
        raise UsageError(
            f"augmentation {name!r} takes {f'{len(known)} values ({takes})' if known else 'no value'}, not "
            f"{len(values)}: {GIVEN.join([name, *values])}"
        )
    return {
        key: _read(f"{key!r} of augmentation {name!r}", value, type(default), bounds)
        for value, (key, default, bounds) in zip(values, known, strict=False)
    }


def _read(what: str, value: str, kind: type[float], bounds: Between) -> float:
    try:
        number = kind(value)
    except ValueError:
        number = math.nan
    if not bounds.low <= number <= bounds.high:
        whole = "a whole number" if kind is int else "a number"
        raise UsageError(f"{what} must be {whole} from {bounds.low:g} to {bounds.high:g}, not {value!r}")
    return number


def _names(steps: Iterable[Step]) -> str:
    return ", ".join(dict.fromkeys(step.name for step in steps))
