"""Views on a data set: the rows that one client, or one evaluation, can see and nothing else."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unseen.data.dataset import DataSet, Indices


class Batch(NamedTuple):
    """Raw inputs (images: uint8, n x channels x height x width, stored channels last), targets, domains."""

    inputs: Tensor
    targets: Tensor
    domains: Tensor


class Samples:
    """A view on some rows of a data set; gathering a batch copies just that batch.

    task_type, classes, domain_names  what the data set says of itself; its other rows cannot be asked for
    """

    def __init__(self, data: DataSet, indices: Indices) -> None:
        self.task_type = data.task_type
        self.classes = data.classes
        self.domain_names = data.domains
        self._inputs = _as_tensor(data.inputs)
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

    def gather(self, positions: Tensor) -> Batch:
        """Copy the samples at these positions of the view."""
        rows = self._rows[positions]
        inputs = self._inputs.index_select(0, rows)
        if inputs.ndim == 4:
            inputs = inputs.permute(0, 3, 1, 2)
        return Batch(inputs, self._targets.index_select(0, rows), self._domains.index_select(0, rows))


def _as_tensor(array: npt.NDArray[Any]) -> Tensor:
    """Share memory with a NumPy array; torch only reads it, so a read-only memory map will do."""
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
    """The samples of a view, then those of a raw batch; gathering copies just what is asked for.

    Bytes stay bytes and images keep the memory layout that a data set's own have.
    """

    def __init__(self, own: Samples, others: Batch) -> None:
        self.task_type, self.classes, self.domain_names = own.task_type, own.classes, own.domain_names
        self._own, self._others = own, others

    def __len__(self) -> int:
        return len(self._own) + len(self._others.targets)

    @property
    def targets(self) -> Tensor:
        """All targets, the own ones first."""
        return torch.cat([self._own.targets, self._others.targets])

    @property
    def domains(self) -> Tensor:
        """The domain number of every sample, the own ones first."""
        return torch.cat([self._own.domains, self._others.domains])

    def gather(self, positions: Tensor) -> Batch:
        """Copy the samples at these positions, in their order."""
        mine = positions < len(self._own)
        places = torch.cat([mine.nonzero(), (~mine).nonzero()]).squeeze(1)
        own = self._own.gather(positions[mine])
        rows = positions[~mine] - len(self._own)
        parts = zip(own, (part.index_select(0, rows) for part in self._others), strict=True)
        inputs, targets, domains = (_scatter(torch.cat(pair), places) for pair in parts)
        return Batch(inputs, targets, domains)


def _scatter(values: Tensor, places: Tensor) -> Tensor:
    """Put row i in place `places[i]`; images come out channels last."""
    layout = torch.channels_last if values.ndim == 4 else torch.contiguous_format
    return torch.empty_like(values, memory_format=layout).index_copy_(0, places, values)
