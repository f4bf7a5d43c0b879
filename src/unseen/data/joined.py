"""A client's own samples together with some that came from elsewhere, as one view."""

from __future__ import annotations

import torch
from torch import Tensor

from unseen.data.samples import Batch, Samples


class JoinedSamples(Samples):
    """The samples of a view, then those of a raw batch; gathering copies just what is asked for.

    Bytes stay bytes and images keep the memory layout that a data set's own have.
    """

    def __init__(self, own: Samples, others: Batch) -> None:
        self.task, self.classes, self.domain_names = own.task, own.classes, own.domain_names
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
        inputs, targets, domains = (_scattered(torch.cat(pair), places) for pair in parts)
        return Batch(inputs, targets, domains)


def _scattered(values: Tensor, places: Tensor) -> Tensor:
    """Put row i in place `places[i]`; images come out channels last."""
    layout = torch.channels_last if values.ndim == 4 else torch.contiguous_format
    return torch.empty_like(values, memory_format=layout).index_copy_(0, places, values)
