"""The metrics: what they are called, how they are shown, and how they follow from accumulated sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from unseen.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor


class Metric:
    """One number that describes predictions on some samples. Stateless, pickled by name.

    name              its key in records and in result.json
    label             its name in running text, tables and figures
    summary           one line for `unseen list metrics`
    tasks             names of the tasks that report it; tasks derived from those report it too
    is_fraction       whether it is a fraction of one, shown in percent
    higher_is_better  whether larger values are better
    bounds            the least and the largest possible value; of a fraction 0 and 1
    """

    name: ClassVar[str]
    label: ClassVar[str]
    summary: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]]
    is_fraction: ClassVar[bool] = False
    higher_is_better: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    def compute(self, sums: Any) -> float:
        """Compute the metric from an accumulator (`MetricAccumulator` of one of its tasks); NaN = undefined.

        What `batch_sums` returned, added up over all samples, is `sums.extra[self.name]`.
        """
        raise NotImplementedError

    def batch_sums(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Return sums over a batch that the task's accumulator lacks, as a vector of fixed length, or None.

        They are added up over batches and sites, so a participating site sends them too.
        """
        return None

    def __reduce__(self) -> tuple[Callable[[str], Metric], tuple[str]]:
        """Pickle by name, so that workers use their own registered object."""
        return _get_metric, (self.name,)


METRICS: Registry[Metric] = Registry("metric", group="unseen.metrics")
AnyMetric = TypeVar("AnyMetric", bound=Metric)


def register_metric(metric: type[AnyMetric]) -> type[AnyMetric]:
    """Register one object of the decorated class under its name."""
    METRICS.register(metric.name)(metric())
    return metric


def _get_metric(name: str) -> Metric:
    return METRICS[name]


@register_metric
class Accuracy(Metric):
    """Fraction of samples whose predicted class is right."""

    name, label, tasks, is_fraction = "accuracy", "accuracy", ("classification",), True
    summary = "fraction of samples whose predicted class is right"

    def compute(self, sums: Any) -> float:
        """Divide the diagonal of the confusion matrix by the number of samples."""
        return int(sums.confusion.diagonal().sum()) / max(int(sums.count), 1)


@register_metric
class WorstClassAccuracy(Metric):
    """Accuracy of the worst class that occurs."""

    name, label, tasks, is_fraction = (
        "worst_class_accuracy",
        "worst class accuracy",
        ("classification",),
        True,
    )
    summary = "accuracy of the worst class that occurs"

    def compute(self, sums: Any) -> float:
        """Take the smallest accuracy of a class with samples."""
        return min((value for value in sums.per_class() if not math.isnan(value)), default=math.nan)


@register_metric
class MeanLoss(Metric):
    """Mean of the task's loss, without label smoothing."""

    name, label, tasks, higher_is_better = "loss", "loss", ("classification", "regression"), False
    summary = "mean of the task's loss, without label smoothing"

    def compute(self, sums: Any) -> float:
        """Divide the summed loss by the number of samples."""
        return float(sums.loss / max(sums.count, 1))


@register_metric
class PearsonR(Metric):
    """Pearson's correlation of truth and prediction."""

    name, label, tasks, bounds = "pearson_r", "Pearson r", ("regression",), (-1.0, 1.0)
    summary = "Pearson's correlation of truth and prediction; undefined where one of them is constant"

    def compute(self, sums: Any) -> float:
        """Divide the covariance by both standard deviations."""
        n, t, p, tt, pp, tp, _ = sums.moments.tolist()
        n = max(n, 1.0)
        variance_t, variance_p = tt / n - (t / n) ** 2, pp / n - (p / n) ** 2
        spread = math.sqrt(max(variance_t, 0.0) * max(variance_p, 0.0))
        return (tp / n - t * p / n**2) / spread if spread > 1e-12 else math.nan


@register_metric
class RootMeanSquaredError(Metric):
    """Root mean squared error in the target's unit."""

    name, label, tasks, higher_is_better = "rmse", "RMSE", ("regression",), False
    summary = "root mean squared error in the target's unit"

    def compute(self, sums: Any) -> float:
        """Scale the error of standardized values back."""
        return math.sqrt(float(sums.moments[6]) / max(sums.count, 1)) * float(sums.scale)


_POOLED, _WORST_GROUP = "pooled_", "worst_group_"
"""Prefixes of metrics over groups: of all samples together, and of the group where the metric is worst."""


def metric_label(name: str) -> str:
    """Return a metric's name in running text."""
    if name.startswith(_POOLED):
        return f"{metric_label(name.removeprefix(_POOLED))} of all samples"
    if name.startswith(_WORST_GROUP):
        return f"worst group {metric_label(name.removeprefix(_WORST_GROUP))}"
    return METRICS[name].label if name in METRICS else name.replace("_", " ")


def is_fraction(name: str) -> bool:
    """Return whether a metric is a fraction of one, shown in percent; unknown ones are judged by name."""
    base = name.removeprefix(_POOLED).removeprefix(_WORST_GROUP)
    return METRICS[base].is_fraction if base in METRICS else base.endswith("accuracy")


def metric_bounds(name: str) -> tuple[float, float]:
    """Return the least and the largest value that a metric can have."""
    if is_fraction(name):
        return 0.0, 1.0
    return METRICS[name].bounds if name in METRICS else Metric.bounds


def goodness(name: str, value: float | None) -> float:
    """Orient a metric's value so that larger is better; an undefined one is the worst."""
    if value is None or math.isnan(value):
        return -math.inf
    return value if name not in METRICS or METRICS[name].higher_is_better else -value
