"""Preprocessing: the order of batches, augmentation and normalization."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from unseen.data import Batch, Samples
from unseen.data.augmentation import AugmentationList, augment_batch, parse_augmentations
from unseen.data.transforms import Normalize
from unseen.models import Precision


def batch_positions(
    count: int, batch_size: int, *, generator: torch.Generator, batches: int | None = None
) -> Iterator[Tensor]:
    """Yield the positions of one epoch's batches in random order.

    A last batch of a single sample is merged with the one before it, because batch norm cannot process it.
    With `batches`, exactly that many full batches are drawn, from reshuffled data where it is short.
    """
    if batches is None:
        parts = list(torch.randperm(count, generator=generator).split(batch_size))
        if len(parts) > 1 and len(parts[-1]) == 1:
            parts[-2:] = [torch.cat(parts[-2:])]
        yield from parts
        return
    needed = batches * batch_size
    passes = [torch.randperm(count, generator=generator) for _ in range(-(-needed // count))]
    yield from torch.cat(passes)[:needed].split(batch_size)


def count_batches(count: int, batch_size: int, batches: int | None = None) -> int:
    """Count the batches that `batch_positions` yields."""
    if batches is not None:
        return batches
    parts = -(-count // batch_size)
    return parts - 1 if parts > 1 and count - (parts - 1) * batch_size == 1 else parts


_CPU = torch.device("cpu")
PREPARED_AT_ONCE = 64
"""Largest number of samples prepared together: more would evict the network's data from the cache."""


@dataclass(frozen=True)
class Preprocessor:
    """Moves a raw batch to the device and converts it to network inputs.

    Augmentation happens only where a generator is given, that is in training. With cached features it is
    a draw among the versions of each sample that were augmented before the frozen part of the network.

    augmentation  a list of names in `AUGMENTATIONS`; those that act inside the network do so in `ClientWork`
    classes       number of classes, for augmentations that mix targets; 0 = targets are quantities
    precision     of networks on these inputs (`Network.precision`)
    """

    normalize: Normalize
    augmentation: str = "none"
    device: torch.device = _CPU
    precision: Precision = "float32"
    classes: int = 0

    @property
    def augmentations(self) -> AugmentationList:
        """The steps that `augmentation` names."""
        return parse_augmentations(self.augmentation)

    def __call__(self, batch: Batch, generator: torch.Generator | None = None) -> Batch:
        """Move, augment (in training) and normalize a batch."""
        inputs, targets = self._to_device(batch.inputs), self._to_device(batch.targets)
        steps = self.augmentations.at("images")
        if generator is None or not steps or inputs.ndim != 4 or not len(inputs):
            inputs = self.normalize(inputs)
        else:
            images, targets = augment_batch(
                steps, self.normalize.scale(inputs), targets, generator, classes=self.classes
            )
            inputs = self.normalize.finish(images)
        return Batch(inputs, targets, self._to_device(batch.domains))

    def batches(
        self, samples: Samples, positions: Iterator[Tensor], generator: torch.Generator, *, at_once: int = 1
    ) -> Iterator[Batch]:
        """Yield the prepared batches at these positions.

        at_once  number of batches prepared together, which saves calls; one where augmentation draws for each
        """
        together = 1 if self.augmentations.at("images") or samples.views else max(at_once, 1)
        while group := list(islice(positions, together)):
            rows = torch.cat(group)
            drawn = samples.views > 1
            views = torch.randint(samples.views, rows.shape, generator=generator) if drawn else None
            whole = self(samples.gather(rows, views), generator)
            sizes = [len(part) for part in group]
            yield from map(Batch, *(values.split(sizes) for values in whole))

    def _to_device(self, values: Tensor) -> Tensor:
        """Copy values to the device; to a GPU asynchronously, through page-locked memory."""
        if self.device.type == "cuda":
            values = values.pin_memory()
        return values.to(self.device, non_blocking=True)
