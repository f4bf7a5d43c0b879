"""The data set: samples of named domains in one array, and views of the rows that one client may see.

All samples of all domains are in one array (images as uint8, height x width x channels; tables as float32),
so that a batch of any client is a single gather, and the array can be a memory-mapped file or shared memory.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unseen.data.grouping import group_keys
from unseen.errors import UsageError, unknown_name
from unseen.tasks import TASKS, Task

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Column:
    """A column of a raw table: numbers, or level numbers of the text values in `levels`; NaN is missing."""

    name: str
    levels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class DataSet:
    """Samples, targets and the domain of each sample.

    inputs      uint8 (n, height, width, channels) for images, float32 (n, columns) for tables;
                float32 images are measured values, already normalized and passed to networks unchanged
    task        name of the task: what is predicted
    targets     int64 class numbers, or float32 values for regression
    domain_of   for each sample the position of its domain in `domains`
    classes     class names in the order of their numbers; empty for regression
    notes       what the loader did that a user should know (files left out, values filled in)
    fingerprint identifies the content: the same data gives the same text on every machine
    columns     what the columns of a raw table mean; empty for images and encoded tables
    group_of    for each sample the position of its group in `groups`, -1 for none: groups cut across domains,
                and the worst of them is reported next to the worst domain; None where the data declares none
    split_group_of  for each sample the key of its group (original image, patient): samples with the same key
                are the same thing, in whatever domain, and a split by group never separates them; None where
                the data names no such groups. It is no part of the fingerprint
    split_of    for each sample its part (`Split`) where the owner of the samples has decided it, as in a
                coordinator's placeholder; -1: not decided
    views       0 for ordinary data. With cached features, `inputs` is float16 (n, views, ...): what a frozen
                network computed from each sample, first as it is and then from augmented versions of it
    """

    name: str
    task: str
    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    domain_of: Indices
    domains: tuple[str, ...]
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fingerprint: str = field(default="")
    columns: tuple[Column, ...] = ()
    group_of: Indices | None = None
    groups: tuple[str, ...] = ()
    split_group_of: Indices | None = None
    split_of: Indices | None = None
    views: int = 0

    def __post_init__(self) -> None:
        for name in ("group_of", "split_group_of", "split_of"):
            array = getattr(self, name)
            if array is not None and len(array) != len(self.targets):
                raise ValueError(f"{name} must have the length of targets")
        if not len(self.inputs) == len(self.targets) == len(self.domain_of):
            raise ValueError("inputs, targets and domain_of must have the same length")
        self.task_type.check_classes(self.name, self.classes)
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", _fingerprint(self))

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def is_image(self) -> bool:
        """Whether samples are images (else rows of a table)."""
        return self.inputs.ndim == 4 and not self.views

    @property
    def has_content(self) -> bool:
        """Whether the samples are here; those of a coordinator's placeholder are at the sites."""
        return any(self.inputs.strides)

    @property
    def repeats_groups(self) -> bool:
        """Whether some group for splits has several samples, so that a split by sample may separate it."""
        keys = self.split_group_of
        return keys is not None and len(np.unique(keys)) < len(keys)

    @property
    def is_measured(self) -> bool:
        """Whether samples are images of measured values, which are neither scaled nor augmented."""
        return self.is_image and self.inputs.dtype != np.uint8

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as a network sees it: (channels, height, width) or (columns,)."""
        shape = self.inputs.shape[2 if self.views else 1 :]
        if len(shape) == 3:
            height, width, channels = shape
            return channels, height, width
        return tuple(shape)

    @property
    def outputs(self) -> int:
        """Count the numbers that a model predicts per sample."""
        return self.task_type.count_outputs(self.classes)

    @property
    def task_type(self) -> Task:
        """The task object that `task` names."""
        return TASKS[self.task]

    def as_task(self, task: str | None) -> DataSet:
        """Interpret the targets for another task of the same kind; None keeps the task."""
        if task is None or task == self.task:
            return self
        TASKS[task].require_same_targets(self.task_type, self.name)
        return replace(self, task=task)

    def indices(self, domain: str) -> Indices:
        """Return the positions of a domain's samples."""
        if domain not in self.domains:
            raise unknown_name("domain", domain, self.domains)
        return np.flatnonzero(self.domain_of == self.domains.index(domain))

    def class_counts(self) -> dict[str, dict[str, int]]:
        """Count samples per domain and class; empty for regression."""
        if not self.task_type.has_classes:
            return {}
        counts = np.zeros((len(self.domains), len(self.classes)), dtype=np.int64)
        np.add.at(counts, (self.domain_of, self.targets), 1)
        return {
            domain: dict(zip(self.classes, row.tolist(), strict=True))
            for domain, row in zip(self.domains, counts, strict=True)
        }

    def require_hold_out(
        self, held_out: tuple[str, ...], among: tuple[str, ...] = (), validate_on: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """Check the names of the held-out domains and return the others, the sources.

        among        the domains that sources are taken from; empty = all
        validate_on  domains for model selection, neither sources nor held out
        """
        for kind, names in (
            ("domain to hold out", held_out),
            ("source domain", among),
            ("validation domain", validate_on),
        ):
            for name in names:
                if name not in self.domains:
                    raise unknown_name(kind, name, self.domains)
        for name in validate_on:
            if name in held_out:
                raise UsageError(f"domain {name!r} cannot be held out and used for validation: name it once")
        wanted, outside = among or self.domains, {*held_out, *validate_on}
        sources = tuple(name for name in self.domains if name in wanted and name not in outside)
        if not sources:
            every = "all source domains asked for" if among else f"all domains of {self.name}"
            raise UsageError(f"{every} are held out: nothing is left to train on")
        return sources


def _fingerprint(data: DataSet) -> str:
    described = (data.task, data.domains, data.classes, data.inputs.shape, data.columns)
    digest = hashlib.sha256(repr(described).encode())
    groups = () if data.group_of is None else (data.group_of,)
    for array in (data.inputs, data.targets, data.domain_of, *groups):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def from_arrays(
    inputs: npt.NDArray[Any],
    targets: npt.NDArray[Any] | Sequence[Any],
    domains: npt.NDArray[Any] | Sequence[Any],
    *,
    name: str = "arrays",
    groups: npt.NDArray[Any] | Sequence[Any] | None = None,
) -> DataSet:
    """Create a data set from arrays.

    inputs   images as uint8 (n, height, width) or (n, height, width, channels),
             or numbers (n, columns), used as they are
    targets  class names or numbers (integers, booleans, text), or floating point values for regression
    domains  the name of each sample's domain
    groups   the name of each sample's group (original image, patient), which splits never separate
    """
    inputs, labels, places = np.asarray(inputs), np.asarray(targets), np.asarray(domains).astype(str)
    if not len(inputs) == len(labels) == len(places):
        lengths = f"{len(inputs)}, {len(labels)} and {len(places)}"
        raise UsageError(f"inputs, targets and domains must have the same length, not {lengths}")
    if inputs.dtype == np.uint8 and inputs.ndim in (3, 4):
        stored = inputs if inputs.ndim == 4 else inputs[..., None]
    elif inputs.ndim == 2 and np.issubdtype(inputs.dtype, np.number):
        stored = inputs.astype(np.float32)
    else:
        raise UsageError(
            f"inputs of shape {inputs.shape} and type {inputs.dtype} are neither images (uint8, n x height x "
            "width [x channels]) nor rows of numbers (n x columns)"
        )
    if groups is not None and len(groups) != len(labels):
        raise UsageError(f"groups must have the length of targets: {len(labels)}, not {len(groups)}")
    names, domain_of = np.unique(places, return_inverse=True)
    common: dict[str, Any] = {
        "name": name,
        "inputs": np.ascontiguousarray(stored),
        "domain_of": domain_of.astype(np.int64),
        "domains": tuple(names.tolist()),
    }
    if groups is not None:
        common["split_group_of"] = group_keys(
            [str(group) for group in np.asarray(groups).tolist()], places.tolist()
        )
    if np.issubdtype(labels.dtype, np.floating):
        return DataSet(task="regression", targets=labels.astype(np.float32), **common)
    classes, numbers = np.unique(labels, return_inverse=True)
    return DataSet(
        task="classification",
        targets=numbers.astype(np.int64),
        classes=tuple(str(label) for label in classes.tolist()),
        **common,
    )


class Batch(NamedTuple):
    """Raw inputs (images: uint8, n x channels x height x width, stored channels last), targets, domains."""

    inputs: Tensor
    targets: Tensor
    domains: Tensor


class Samples:
    """A view of some rows of a data set; gathering a batch copies only that batch.

    task_type, classes, domain_names  metadata of the data set; its other rows are not accessible
    views                             as in the data set
    """

    def __init__(self, data: DataSet, indices: Indices) -> None:
        self.task_type = data.task_type
        self.classes = data.classes
        self.domain_names = data.domains
        self.views = data.views
        inputs = _as_tensor(data.inputs)
        self._inputs = inputs.flatten(0, 1) if data.views else inputs
        self._targets = _as_tensor(data.targets)
        self._domains = _as_tensor(data.domain_of)
        self._rows = torch.from_numpy(np.ascontiguousarray(indices, dtype=np.int64))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def targets(self) -> Tensor:
        """All targets of the view, in order."""
        return self._targets[self._rows]

    @property
    def domains(self) -> Tensor:
        """The domain number of every sample of the view, in order."""
        return self._domains[self._rows]

    def gather(self, positions: Tensor, views: Tensor | None = None) -> Batch:
        """Copy the samples at these positions of the view.

        views  with cached features, which of its versions is taken of each; the unchanged one if not given
        """
        rows = self._rows[positions]
        if self.views:
            first = rows * self.views
            inputs = self._inputs.index_select(0, first if views is None else first + views).float()
        else:
            inputs = self._inputs.index_select(0, rows)
        if inputs.ndim == 4:
            inputs = inputs.permute(0, 3, 1, 2)
        return Batch(inputs, self._targets.index_select(0, rows), self._domains.index_select(0, rows))


def _as_tensor(array: npt.NDArray[Any]) -> Tensor:
    """Share memory with a NumPy array; torch only reads it, so a read-only memory map is fine."""
    if not array.flags.writeable:
        _silence_read_only_warning()
    return torch.from_numpy(array)


@cache
def _silence_read_only_warning() -> None:
    """Trigger and hide torch's once-per-process warning about read-only arrays; nothing writes to them."""
    array = np.zeros(1)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        torch.from_numpy(array)


class JoinedSamples(Samples):
    """The samples of a view, then those of a raw batch; gathering copies only the requested ones.

    Inputs keep their dtype, and images the memory layout of the data set.
    """

    def __init__(self, own: Samples, others: Batch) -> None:
        self.task_type, self.classes, self.domain_names = own.task_type, own.classes, own.domain_names
        self._own, self._others, self.views = own, others, own.views

    def __len__(self) -> int:
        return len(self._own) + len(self._others.targets)

    @property
    def targets(self) -> Tensor:
        """All targets, those of the view first."""
        return torch.cat([self._own.targets, self._others.targets])

    @property
    def domains(self) -> Tensor:
        """The domain number of every sample, those of the view first."""
        return torch.cat([self._own.domains, self._others.domains])

    def gather(self, positions: Tensor, views: Tensor | None = None) -> Batch:
        """Copy the samples at these positions, in their order; of others there is one version each."""
        mine = positions < len(self._own)
        places = torch.cat([mine.nonzero(), (~mine).nonzero()]).squeeze(1)
        own = self._own.gather(positions[mine], None if views is None else views[mine])
        rows = positions[~mine] - len(self._own)
        parts = zip(own, (part.index_select(0, rows) for part in self._others), strict=True)
        inputs, targets, domains = (_scatter(torch.cat(pair), places) for pair in parts)
        return Batch(inputs, targets, domains)


def _scatter(values: Tensor, places: Tensor) -> Tensor:
    """Put row i in place `places[i]`; images come out channels last."""
    layout = torch.channels_last if values.ndim == 4 else torch.contiguous_format
    return torch.empty_like(values, memory_format=layout).index_copy_(0, places, values)
