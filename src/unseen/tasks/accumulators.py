"""Metrics as sums: every site accumulates over its own samples, and accumulators of several sites add up.

So a metric over a domain that is split over many clients is exact, and only sums are sent.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

import numpy.typing as npt
import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.printable import printable
from unseen.tasks.base import TASKS, Task
from unseen.tasks.metrics import Metric
from unseen.tasks.regression import Regression

Metrics = dict[str, float]
Arrays = Mapping[str, npt.NDArray[Any]]
_EXTRA, _LOSS = "extra:", "loss"


class MetricAccumulator(ABC):
    """Sums over samples from which the metrics of a task follow."""

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of samples."""

    @property
    @abstractmethod
    def numbers(self) -> int:
        """The number of stored values, all of which a site sends."""

    @property
    def detail_numbers(self) -> int:
        """The number of those values that only a measurement adds (see `DetailAccumulator`)."""
        return 0

    @abstractmethod
    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch of model outputs."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Add another site's sums."""

    @abstractmethod
    def metrics(self) -> Metrics:
        """Compute the task's metrics."""

    @abstractmethod
    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the sums, for sending."""

    @abstractmethod
    def from_arrays(self, arrays: Arrays) -> Self:
        """Load sums that `to_arrays` returned elsewhere; refuse those of another shape or type."""

    def explain_impossible(self, count: int, per_class: Sequence[int] | None = None) -> str:
        """Explain why these cannot be the sums of so many samples, or of so many per class; "" if they can.

        Nothing here finds a site that invents its predictions: only sums that no predictions have.
        """
        return "" if self.count == count else f"sums over {self.count} samples, the census says {count}"


class _TaskAccumulator(MetricAccumulator):
    """An accumulator of one task: its own sums, and those that registered metrics ask for.

    extra  name of a metric -> sum of its `batch_sums`
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.extra: dict[str, Tensor] = {}
        self._summing = [
            metric for metric in task.reported_metrics if type(metric).batch_sums is not Metric.batch_sums
        ]

    @property
    def numbers(self) -> int:
        """The number of stored values."""
        return sum(value.size for value in self.to_arrays().values())

    def metrics(self) -> Metrics:
        """Compute every metric that the task reports."""
        return {metric.name: metric.compute(self) for metric in self.task.reported_metrics}

    def _add_extra(self, outputs: Tensor, targets: Tensor) -> None:
        for metric in self._summing:
            sums = metric.batch_sums(outputs, targets)
            if sums is not None:
                self._increase(metric.name, sums.double().cpu())

    def _merge_extra(self, other: _TaskAccumulator) -> None:
        for name, sums in other.extra.items():
            self._increase(name, sums)

    def _increase(self, name: str, sums: Tensor) -> None:
        self.extra[name] = self.extra[name] + sums if name in self.extra else sums

    def _extra_arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {_EXTRA + name: sums.numpy() for name, sums in self.extra.items()}

    def _take_extra(self, arrays: Arrays, own: Collection[str]) -> None:
        """Load the metrics' own sums; refuse any other array but the accumulator's `own`."""
        self.extra = {}
        for name, sums in arrays.items():
            metric = name.removeprefix(_EXTRA)
            if name not in own and (not name.startswith(_EXTRA) or metric not in self._extra_names):
                raise UnseenError(f"sent sums named {printable(name, longest=80)!r}, which no metric has")
            if name not in own:
                self.extra[metric] = torch.from_numpy(sums.copy()).double()

    @property
    def _extra_names(self) -> set[str]:
        return {metric.name for metric in self._summing}

    def _explain_extra(self) -> str:
        """Explain why no metric follows from the sums; "" if all do."""
        if not all(bool(torch.isfinite(sums).all()) for sums in self.extra.values()):
            return "sums of a metric that are not finite"
        try:
            self.metrics()
        except Exception as error:  # a metric's own code, on sums that are not its own
            return f"sums from which no metric follows ({type(error).__name__})"
        return ""


class ClassificationAccumulator(_TaskAccumulator):
    """A confusion matrix (rows: truth, columns: prediction) and the sum of the loss."""

    def __init__(self, classes: int, task: Task | None = None) -> None:
        super().__init__(task or TASKS["classification"])
        self.classes = classes
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64)
        self.loss = 0.0

    @property
    def count(self) -> int:
        """The number of samples."""
        return int(self.confusion.sum())

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch of logits."""
        self.loss += float(self.task.loss(outputs, targets, reduction="sum"))
        cells = targets * self.classes + outputs.argmax(dim=1)
        self.confusion += torch.bincount(cells, minlength=self.classes**2).view_as(self.confusion).cpu()
        self._add_extra(outputs, targets)

    def merge(self, other: ClassificationAccumulator) -> None:
        """Add another site's sums."""
        self.confusion += other.confusion
        self.loss += other.loss
        self._merge_extra(other)

    def per_class(self) -> list[float]:
        """Compute the accuracy of every class; NaN for a class that does not occur."""
        right, total = self.confusion.diagonal().double(), self.confusion.sum(dim=1).double()
        accuracies: list[float] = (right / total).tolist()
        return accuracies

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the confusion matrix, the loss and the metrics' own sums."""
        loss = torch.tensor([self.loss], dtype=torch.float64)
        return {"confusion": self.confusion.numpy(), "loss": loss.numpy(), **self._extra_arrays()}

    def from_arrays(self, arrays: Arrays) -> Self:
        """Load sums of another site."""
        self.confusion = _taken(arrays, "confusion", self.confusion)
        self.loss = float(_taken(arrays, "loss", torch.zeros(1, dtype=torch.float64)))
        self._take_extra(arrays, ("confusion", "loss"))
        return self

    def explain_impossible(self, count: int, per_class: Sequence[int] | None = None) -> str:
        """Compare the confusion matrix with the number of samples, of each class where that is known."""
        if bool((self.confusion < 0).any()) or bool((self.confusion > count).any()):
            return f"a confusion matrix with numbers outside of 0 to {count}"
        if reason := super().explain_impossible(count):
            return reason
        rows = self.confusion.sum(dim=1).tolist()
        if per_class is not None and rows != list(per_class):
            return f"a confusion matrix over {rows} samples per class, the census says {list(per_class)}"
        return self._explain_extra()


class RegressionAccumulator(_TaskAccumulator):
    """Moments of standardized truth and prediction; `scale` converts the error back to the target's unit.

    Standardized by the sources' mean and std, the moments of large targets do not cancel.
    """

    def __init__(self, scale: float = 1.0, task: Task | None = None) -> None:
        super().__init__(task or TASKS["regression"])
        self.scale = scale
        self.moments = torch.zeros(7, dtype=torch.float64)
        self._sums_loss = type(self.task).loss is not Regression.loss

    @property
    def count(self) -> int:
        """The number of samples."""
        return int(self.moments[0])

    @property
    def loss(self) -> float:
        """The sum of the loss: of squared errors, unless the task has a loss of another kind."""
        return float(self.extra[_LOSS]) if _LOSS in self.extra else float(self.moments[6])

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch of standardized predictions and targets."""
        p, t = outputs.reshape(-1).double().cpu(), targets.reshape(-1).double().cpu()
        ones = torch.ones_like(t)
        terms = torch.stack([ones, t, p, t * t, p * p, t * p, (t - p).square()])
        self.moments += terms.sum(dim=1)
        if self._sums_loss:
            self._increase(_LOSS, self.task.loss(outputs, targets, reduction="sum").double().cpu().reshape(1))
        self._add_extra(outputs, targets)

    def merge(self, other: RegressionAccumulator) -> None:
        """Add another site's sums."""
        self.moments += other.moments
        self._merge_extra(other)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the moments and the metrics' own sums."""
        return {"moments": self.moments.numpy(), **self._extra_arrays()}

    def from_arrays(self, arrays: Arrays) -> Self:
        """Load sums of another site."""
        self.moments = _taken(arrays, "moments", self.moments)
        self._take_extra(arrays, ("moments",))
        return self

    @property
    def _extra_names(self) -> set[str]:
        return super()._extra_names | ({_LOSS} if self._sums_loss else set())

    def explain_impossible(self, count: int, per_class: Sequence[int] | None = None) -> str:
        """Compare the moments with the number of samples and with one another.

        Moments of a diverged model may be infinite; where they are numbers, the sum of (t - p)^2 must be what
        the other moments give, and no variance is negative.
        """
        n, t, p, tt, pp, tp, square = self.moments.tolist()
        if n != count:
            return f"sums over {n:g} samples, the census says {count}"
        room = 1e-6 * (abs(tt) + abs(pp) + 1)
        if min(tt, pp, square) < 0 or tt * n - t * t < -room * n or pp * n - p * p < -room * n:
            return "moments that no numbers have"
        if math.isfinite(square) and abs(tt + pp - 2 * tp - square) > room:
            return "moments that contradict one another"
        return self._explain_extra()


def _taken(arrays: Arrays, name: str, like: Tensor) -> Tensor:
    """Copy a named array as a tensor of the given shape and type."""
    found = torch.from_numpy(arrays[name].copy()) if name in arrays else torch.empty(0)
    if found.shape != like.shape:
        raise UnseenError(f"sent {name} of shape {tuple(found.shape)}, expected {tuple(like.shape)}")
    if found.dtype is not like.dtype:
        raise UnseenError(f"sent {name} as {found.dtype}, expected {like.dtype}")
    return found
