"""Training, validation and test samples of every source domain.

A sample's label depends on the seed and its domain alone, so that every partition into clients, every
method and every choice of held-out domain evaluates a source domain on the same samples. In a split by group
it depends on the seed and its group alone: the same original image is on the same side in every domain and
at every site, without any exchange between sites.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import DataSet, Indices
from unseen.errors import UsageError
from unseen.seeding import derive_seed, numpy_generator


class Split(IntEnum):
    """What a sample is used for."""

    TRAIN = 0
    VALIDATION = 1
    TEST = 2


@dataclass(frozen=True)
class SplitFractions:
    """Fractions of every source domain; the rest is for training.

    by_group  never separate samples of the same group, where the data names groups
    """

    validation: float = 0.1
    test: float = 0.1
    by_group: bool = False

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
    every class can keep one sample for training. Regression is shuffled as one class. A split by
    group follows `split_groups`.
    """
    rows = data.indices(domain)
    if len(rows) and (labels := _split_by_group(data, rows, fractions, seed=seed)) is not None:
        _require_training(labels, domain)
        return labels
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


def _split_by_group(
    data: DataSet, rows: Indices, fractions: SplitFractions, *, seed: int
) -> npt.NDArray[np.int8] | None:
    """Label a domain's samples by their groups; None where the split is by sample."""
    if data.split_of is not None and (data.split_of[rows] >= 0).all():
        return data.split_of[rows].astype(np.int8)
    if fractions.by_group and data.split_group_of is not None:
        return split_groups(data.split_group_of[rows], fractions, seed=seed)
    return None


def split_groups(keys: Indices, fractions: SplitFractions, *, seed: int) -> npt.NDArray[np.int8]:
    """Label samples by the keys of their groups, each group as a whole.

    The hash of seed and key is a number u in [0, 1): validation where u < v, test where u < v + t, training
    otherwise, with the fractions v and t. So they are met in expectation, not exactly, and no group's label
    depends on which other groups there are.
    """
    different, positions = np.unique(keys, return_inverse=True)
    hashed = [derive_seed(seed, "split group", int(key)) / 2**63 for key in different]
    bounds = [fractions.validation, fractions.validation + fractions.test]
    parts = np.array([Split.VALIDATION, Split.TEST, Split.TRAIN], dtype=np.int8)
    return parts[np.searchsorted(bounds, hashed, side="right")][positions]


def _require_training(labels: npt.NDArray[np.int8], domain: str) -> None:
    """Refuse a split by group that leaves a domain without training samples."""
    if not (labels == Split.TRAIN).any():
        raise UsageError(
            f"no group of domain {domain!r} falls in its training part: too few groups for these fractions; "
            "lower --validation and --test, choose another --seed, or use --split sample"
        )


def fingerprint_groups(keys: Indices) -> str:
    """Identify the groups of all samples."""
    return hashlib.sha256(np.ascontiguousarray(keys).tobytes()).hexdigest()[:16]


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
