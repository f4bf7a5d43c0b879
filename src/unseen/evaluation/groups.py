"""Groups that cut across domains (regions, town and country): each one's metrics, and the worst of them.

As in WILDS, a group's samples are pooled over all domains of a split, and so is the average beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unseen.data import Indices
from unseen.evaluation.tally import Metrics, Tally

Record = dict[str, Any]


class GroupedTally:
    """One tally a group, for samples that come in a known order.

    group_of  the group number of every sample to come; -1 counts for the whole only
    make      makes an empty tally
    """

    def __init__(self, group_of: Indices, make: Callable[[], Tally]) -> None:
        self._coming = torch.from_numpy(group_of.copy())
        self._make = make
        self.groups: dict[int, Tally] = {}

    @property
    def count(self) -> int:
        """How many samples were tallied."""
        return sum(tally.count for tally in self.groups.values())

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Tally a batch, sample by sample in its group."""
        groups, self._coming = self._coming[: len(targets)], self._coming[len(targets) :]
        for number in groups.unique().tolist():
            chosen = (groups == number).to(targets.device)
            self.groups.setdefault(number, self._make()).add(outputs[chosen], targets[chosen])

    def merge(self, other: GroupedTally) -> None:
        """Add another site's sums, group by group."""
        for number, tally in sorted(other.groups.items()):
            self.groups.setdefault(number, self._make()).merge(tally)

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return sum(tally.numbers for tally in self.groups.values())

    def whole(self) -> Tally:
        """All groups together, as one tally."""
        total = self._make()
        for _, tally in sorted(self.groups.items()):
            total.merge(tally)
        return total

    def metrics(self) -> Metrics:
        """The metrics of all samples together."""
        return self.whole().metrics()

    def copy(self) -> GroupedTally:
        """The same sums, to be added to."""
        twin = GroupedTally(self._coming.numpy(), self._make)
        twin.merge(self)
        return twin


def group_scores(splits: Sequence[str], tallies: Sequence[Tally], names: Sequence[str]) -> list[Record]:
    """Describe every group of every split over all its domains; the group None is all samples together."""
    pooled: dict[str, GroupedTally] = {}
    for split, tally in zip(splits, tallies, strict=True):
        assert isinstance(tally, GroupedTally)
        if split in pooled:
            pooled[split].merge(tally)
        else:
            pooled[split] = tally.copy()
    return [
        {"split": split, "group": group, "count": tally.count, "metrics": tally.metrics()}
        for split, whole in pooled.items()
        for group, tally in [(None, whole), *_named(whole, names)]
    ]


def group_metrics(evaluation: Mapping[str, Any] | None, split: str, metric: str) -> Record:
    """The metric over all samples of a split, in its worst group, and that group's name; or nothing.

    A group whose metric cannot be computed (a constant prediction correlates with nothing) is the worst.
    """
    found = [score for score in (evaluation or {}).get("groups", ()) if score["split"] == split]
    if not found:
        return {}
    values = {score["group"]: score["metrics"].get(metric) for score in found}
    average = values.pop(None)
    worst = min(values, key=lambda group: _or_lowest(values[group]), default=None)
    return {"pooled": average, "worst": values.get(worst), "group": worst}


def _or_lowest(value: float | None) -> float:
    return -math.inf if value is None or math.isnan(value) else value


def _named(tally: GroupedTally, names: Sequence[str]) -> list[tuple[str, Tally]]:
    return [(names[number], part) for number, part in sorted(tally.groups.items()) if number >= 0]
