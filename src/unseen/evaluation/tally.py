"""Metrics as sums: every site tallies its own samples, and tallies of several sites simply add up.

So a metric over a domain that is split over many clients is exact, and only sums travel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.data import Task

Metrics = dict[str, float]
PRIMARY: dict[Task, str] = {"classification": "accuracy", "regression": "pearson_r"}
"""The metric that selection maximises, per task."""


class Tally(Protocol):
    """Sums over samples from which the metrics of a task follow."""

    @property
    def count(self) -> int:
        """How many samples were tallied."""

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Tally a batch of model outputs."""

    def merge(self, other: Self) -> None:
        """Add another site's sums."""

    def metrics(self) -> Metrics:
        """Compute the task's metrics."""

    @property
    def numbers(self) -> int:
        """How many numbers it holds, which all travel."""


@dataclass
class ClassificationTally:
    """A confusion matrix (rows: truth, columns: prediction) and the sum of the cross-entropy."""

    classes: int
    confusion: Tensor = field(init=False)
    loss: float = 0.0

    def __post_init__(self) -> None:
        self.confusion = torch.zeros(self.classes, self.classes, dtype=torch.int64)

    @property
    def count(self) -> int:
        """How many samples were tallied."""
        return int(self.confusion.sum())

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Tally a batch of logits."""
        self.loss += float(F.cross_entropy(outputs, targets, reduction="sum"))
        cells = targets * self.classes + outputs.argmax(dim=1)
        self.confusion += torch.bincount(cells, minlength=self.classes**2).view_as(self.confusion).cpu()

    def merge(self, other: ClassificationTally) -> None:
        """Add another site's sums."""
        self.confusion += other.confusion
        self.loss += other.loss

    def metrics(self) -> Metrics:
        """Accuracy, accuracy of the worst class that occurs, and mean cross-entropy."""
        occurring = [value for value in self.per_class() if not math.isnan(value)]
        count = max(self.count, 1)
        return {
            "accuracy": int(self.confusion.diagonal().sum()) / count,
            "worst_class_accuracy": min(occurring, default=math.nan),
            "loss": self.loss / count,
        }

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return self.confusion.numel() + 1

    def per_class(self) -> list[float]:
        """Accuracy of every class; NaN for a class that does not occur."""
        right, total = self.confusion.diagonal().double(), self.confusion.sum(dim=1).double()
        accuracies: list[float] = (right / total).tolist()
        return accuracies


@dataclass
class RegressionTally:
    """Moments of standardised truth and prediction; `scale` brings the error back to the target's own unit.

    Standardised by the sources' mean and deviation, the moments of large targets do not cancel.
    """

    scale: float = 1.0
    moments: Tensor = field(default_factory=lambda: torch.zeros(7, dtype=torch.float64))

    @property
    def count(self) -> int:
        """How many samples were tallied."""
        return int(self.moments[0])

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Tally a batch of standardised predictions and targets."""
        p, t = outputs.reshape(-1).double().cpu(), targets.reshape(-1).double().cpu()
        ones = torch.ones_like(t)
        terms = torch.stack([ones, t, p, t * t, p * p, t * p, (t - p).square()])
        self.moments += terms.sum(dim=1)

    def merge(self, other: RegressionTally) -> None:
        """Add another site's sums."""
        self.moments += other.moments

    def metrics(self) -> Metrics:
        """Pearson's r (NaN where truth or prediction is constant), root mean squared error, mean loss."""
        n, t, p, tt, pp, tp, error = self.moments.tolist()
        n = max(n, 1.0)
        variance_t, variance_p = tt / n - (t / n) ** 2, pp / n - (p / n) ** 2
        spread = math.sqrt(max(variance_t, 0.0) * max(variance_p, 0.0))
        pearson = (tp / n - t * p / n**2) / spread if spread > 1e-12 else math.nan
        return {"pearson_r": pearson, "rmse": math.sqrt(error / n) * self.scale, "loss": error / n}

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return self.moments.numel()


def make_tally(task: Task, outputs: int, *, target_scale: float = 1.0) -> Tally:
    """Make an empty tally for a task."""
    if task == "classification":
        return ClassificationTally(outputs)
    return RegressionTally(target_scale)
