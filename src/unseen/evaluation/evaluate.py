"""Evaluate a network on samples, in large batches and without gradients; metrics per group of samples.

Groups cut across domains (regions, urban and rural). As in WILDS, a group's samples are pooled over all
domains of a split, and so is the average next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy.typing as npt
import torch
from torch import Tensor, nn

from unseen.data import Batch, Indices, Samples
from unseen.fileio import Record
from unseen.models import Network, blocked_maps
from unseen.tasks import goodness
from unseen.tasks.accumulators import Arrays, MetricAccumulator, Metrics
from unseen.tasks.detail_accumulators import detail_of

EVALUATION_BATCH = 128


def predict_batches(
    network: nn.Module,
    samples: Samples,
    *,
    prepare: Callable[[Batch], Batch],
    batch_size: int = EVALUATION_BATCH,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (outputs, targets) for all samples, in their order."""
    network.eval()
    with torch.inference_mode():
        for positions in torch.arange(len(samples)).split(batch_size):
            batch = prepare(samples.gather(positions))
            with blocked_maps():
                outputs = network(batch.inputs)
            yield outputs, batch.targets


class WithFeatures(nn.Module):
    """Returns a network's features after its outputs, in one matrix."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs and features of every sample."""
        return torch.cat(self.network.outputs_and_features(inputs), dim=1)


def evaluate(
    network: nn.Module, samples: Samples, *, prepare: Callable[[Batch], Batch], accumulator: MetricAccumulator
) -> MetricAccumulator:
    """Add the network's outputs on all samples to an accumulator, and return it."""
    for outputs, targets in predict_batches(network, samples, prepare=prepare):
        accumulator.add(outputs, targets)
    return accumulator


class GroupedAccumulator(MetricAccumulator):
    """One accumulator per group, for samples that come in a known order.

    group_of  the group number of every sample, in order; -1 counts for the whole only
    make      creates an empty accumulator
    """

    def __init__(self, group_of: Indices, make: Callable[[], MetricAccumulator]) -> None:
        self._coming = torch.from_numpy(group_of.copy())
        self._make = make
        self.groups: dict[int, MetricAccumulator] = {}

    @property
    def count(self) -> int:
        """The number of samples."""
        return sum(group.count for group in self.groups.values())

    @property
    def numbers(self) -> int:
        """The number of stored values."""
        return sum(group.numbers for group in self.groups.values())

    @property
    def detail_numbers(self) -> int:
        """The number of values that a measurement adds."""
        return sum(group.detail_numbers for group in self.groups.values())

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch, each sample to its group."""
        groups, self._coming = self._coming[: len(targets)], self._coming[len(targets) :]
        for number in groups.unique().tolist():
            chosen = (groups == number).to(targets.device)
            self.groups.setdefault(number, self._make()).add(outputs[chosen], targets[chosen])

    def merge(self, other: GroupedAccumulator) -> None:
        """Add another site's sums, group by group."""
        for number, group in sorted(other.groups.items()):
            self.groups.setdefault(number, self._make()).merge(group)

    def merge_groups(self) -> MetricAccumulator:
        """Merge all groups into one accumulator."""
        total = self._make()
        for _, group in sorted(self.groups.items()):
            total.merge(group)
        return total

    def metrics(self) -> Metrics:
        """Compute the metrics of all samples together."""
        return self.merge_groups().metrics()

    def copy(self) -> GroupedAccumulator:
        """Copy the sums, so that others can be added to them."""
        twin = GroupedAccumulator(self._coming.numpy(), self._make)
        twin.merge(self)
        return twin

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the sums of every group, named GROUP/NAME."""
        return {
            f"{number}/{name}": array
            for number, group in sorted(self.groups.items())
            for name, array in group.to_arrays().items()
        }

    def from_arrays(self, arrays: Arrays) -> Self:
        """Load sums of another site."""
        groups: dict[int, dict[str, npt.NDArray[Any]]] = {}
        for key, array in arrays.items():
            number, _, name = key.partition("/")
            groups.setdefault(int(number), {})[name] = array
        self.groups = {number: self._make().from_arrays(found) for number, found in groups.items()}
        return self


def score_groups(
    splits: Sequence[str], accumulators: Sequence[MetricAccumulator], names: Sequence[str]
) -> list[Record]:
    """Describe every group of every split over all its domains; the group None is all samples together."""
    pooled: dict[str, GroupedAccumulator] = {}
    for split, found in zip(splits, accumulators, strict=True):
        assert isinstance(found, GroupedAccumulator)
        if split in pooled:
            pooled[split].merge(found)
        else:
            pooled[split] = found.copy()
    return [
        {"split": split, "group": group, "count": found.count, "metrics": found.metrics()} | _details(found)
        for split, whole in pooled.items()
        for group, found in [(None, whole), *_named_groups(whole, names)]
    ]


def _details(sums: MetricAccumulator) -> Record:
    """Return the detailed metrics of a group, where they were measured."""
    whole = detail_of(sums.merge_groups() if isinstance(sums, GroupedAccumulator) else sums)
    return {"details": whole.details().values} if whole and whole.details().values else {}


def summarize_groups(evaluation: Mapping[str, Any] | None, split: str, metric: str) -> Record:
    """Return the metric over all samples of a split, in its worst group, and that group's name; or nothing.

    A group whose metric cannot be computed (a constant prediction correlates with nothing) is the worst.
    """
    found = [score for score in (evaluation or {}).get("groups", ()) if score["split"] == split]
    if not found:
        return {}
    values = {score["group"]: score["metrics"].get(metric) for score in found}
    average = values.pop(None)
    worst = min(values, key=lambda group: goodness(metric, values[group]), default=None)
    return {"pooled": average, "worst": values.get(worst), "group": worst}


def _named_groups(
    accumulator: GroupedAccumulator, names: Sequence[str]
) -> list[tuple[str, MetricAccumulator]]:
    return [(names[number], part) for number, part in sorted(accumulator.groups.items()) if number >= 0]
