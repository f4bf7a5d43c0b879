"""Training, validation and test samples of every source domain.

A sample's label depends on the seed and its domain alone, so that every partition into clients, every
method and every choice of held-out domain evaluates a source domain on the same samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import DataSet, Indices
from unseen.errors import UsageError
from unseen.seeding import numpy_generator


class Split(IntEnum):
    """What a sample is used for."""

    TRAIN = 0
    VALIDATION = 1
    TEST = 2


@dataclass(frozen=True)
class SplitFractions:
    """Fractions of every source domain; the rest is for training."""

    validation: float = 0.1
    test: float = 0.1

    def __post_init__(self) -> None:
        for name, value in (("validation", self.validation), ("test", self.test)):
            if not 0 <= value < 1:
                raise UsageError(f"{name} fraction {value} is impossible; use a number from 0 up to below 1")
        if self.validation + self.test >= 1:
            raise UsageError(
                f"validation fraction {self.validation} and test fraction {self.test} leave nothing to train "
                "on; their sum must be below 1"
            )


def split_domain(data: DataSet, domain: str, fractions: SplitFractions, *, seed: int) -> npt.NDArray[np.int8]:
    """Label the domain's samples, in the order of `data.indices(domain)`.

    Classes keep their proportions in every split; the fractions of the whole domain are met as far as
    every class can keep one sample for training. Regression is shuffled as one class.
    """
    rows = data.indices(domain)
    labels = np.full(len(rows), Split.TRAIN, dtype=np.int8)
    if not len(rows):
        return labels
    generator = numpy_generator(seed, "split", domain)
    classes = data.targets[rows] if data.task_type.has_classes else np.zeros(len(rows), dtype=np.int64)
    order = generator.permutation(len(rows))
    order = order[np.argsort(classes[order], kind="stable")]
    _, starts, counts = np.unique(classes[order], return_index=True, return_counts=True)
    place_in_class = np.arange(len(rows)) - np.repeat(starts, counts)

    taken = np.zeros_like(counts)
    for split, fraction in ((Split.VALIDATION, fractions.validation), (Split.TEST, fractions.test)):
        wanted = apportion(round(fraction * len(rows)), counts / len(rows), generator=generator)
        ends = taken + np.minimum(wanted, counts - 1 - taken)
        chosen = (place_in_class >= np.repeat(taken, counts)) & (place_in_class < np.repeat(ends, counts))
        labels[order[chosen]] = split
        taken = ends
    return labels


def apportion(
    total: int,
    fractions: npt.NDArray[np.float64],
    *,
    generator: np.random.Generator,
    at_least: Indices | None = None,
) -> Indices:
    """Divide `total` by `fractions` (they sum to 1), each client within one of its exact quota.

    The largest remainders are rounded up, equal ones in random order. Clients with a minimum `at_least` get
    it first, at the cost of those farthest above their quota.
    """
    quotas = total * fractions
    counts = np.floor(quotas + 1e-9).astype(np.int64)
    promised = np.zeros(len(fractions), dtype=np.int64) if at_least is None else at_least
    counts = np.maximum(counts, promised)
    lottery = generator.permutation(len(fractions))
    missing = total - int(counts.sum())
    if missing > 0:
        order = np.lexsort((lottery, np.round(counts - quotas, 9)))
        counts[order[:missing]] += 1
    while missing < 0:
        order = np.lexsort((lottery, np.round(quotas - counts, 9)))
        givers = order[counts[order] > promised[order]][:-missing]
        if not len(givers):
            raise ValueError(f"{total} cannot give every client its minimum")
        counts[givers] -= 1
        missing += len(givers)
    return counts
