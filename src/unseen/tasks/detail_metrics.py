"""Detailed metrics, computed once at the end of a run: of the whole ranking or of all errors.

They need histograms or sums that the accumulator of every round lacks, so they are metrics of a
`DetailAccumulator` and in no list of a task: records have them in `details`, next to `metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from unseen.calibration.ranking import (
    Ranked,
    RankingMetric,
    auroc,
    average_precision,
    over_classes,
    sensitivity_at_specificity,
)
from unseen.calibration.reliability import expected_calibration_error
from unseen.tasks.metrics import Metric


class Detail(NamedTuple):
    """The values of a set's detailed metrics, and the widths of those that come from histograms."""

    values: dict[str, float]
    widths: dict[str, float]


class DetailMetric(Metric):
    """A metric of a `DetailAccumulator`; `needs` names the sums without which it is left out.

    NaN where it is undefined: without positive or negative samples, or where the truth is constant.
    """

    needs: ClassVar[str] = ""

    def compute(self, sums: Any) -> float:
        """Compute the metric; NaN = undefined."""
        return self.measure(sums).value

    def measure(self, sums: Any) -> Ranked:
        """Compute the metric and its width, which is 0 of an exact one."""
        return Ranked(self.compute(sums), 0.0)


class MacroF1(DetailMetric):
    """Mean over the classes that occur, in truth or prediction, of the F1 score."""

    name, label, tasks, is_fraction = "macro_f1", "macro F1", ("classification",), True
    summary, needs = "mean of the F1 scores of the classes that occur", "ranking"

    def compute(self, sums: Any) -> float:
        """Take 2 TP / (2 TP + FP + FN) of every class from the confusion matrix."""
        confusion = sums.plain.confusion
        total = confusion.sum(dim=0) + confusion.sum(dim=1)
        return float((2 * confusion.diagonal().double() / total)[total > 0].mean())


class BalancedAccuracy(DetailMetric):
    """Mean of the accuracies of the classes that occur."""

    name, label, tasks, is_fraction = "balanced_accuracy", "balanced accuracy", ("classification",), True
    summary, needs = "mean of the accuracies of the classes that occur", "ranking"

    def compute(self, sums: Any) -> float:
        """Average the recalls."""
        known = [value for value in sums.plain.per_class() if not math.isnan(value)]
        return sum(known) / len(known) if known else math.nan


_RANKINGS: dict[str, RankingMetric] = {
    "auroc": auroc,
    "auprc": average_precision,
    "sensitivity_at_specificity_95": sensitivity_at_specificity,
}


class _RankingDetail(DetailMetric):
    """A metric of one class against the rest, from histograms of its probability; averaged over classes."""

    tasks, is_fraction, needs = ("classification",), True, "ranking"

    def measure(self, sums: Any) -> Ranked:
        """Average over the classes; of two classes, the second alone."""
        return over_classes(_RANKINGS[self.name], sums.sums["ranking"])


class AUROC(_RankingDetail):
    """Area under the ROC curve."""

    name, label = "auroc", "AUROC"
    summary = "area under the ROC curve, one class against the rest; of two classes, of the second"


class AUPRC(_RankingDetail):
    """Area under the precision-recall curve."""

    name, label = "auprc", "AUPRC"
    summary = "average precision, one class against the rest; of two classes, of the second"


class Sensitivity(_RankingDetail):
    """Sensitivity at a specificity of 95 %."""

    name, label = "sensitivity_at_specificity_95", "sensitivity at 95 % specificity"
    summary = "largest sensitivity of a threshold with specificity of at least 95 %"


class _CalibrationDetail(DetailMetric):
    """A measure of calibration of the scaled probabilities."""

    tasks, higher_is_better, needs = ("classification",), False, "proper_after"


class CalibrationError(_CalibrationDetail):
    """Expected calibration error."""

    name, label, is_fraction = "ece", "ECE", True
    summary = "expected calibration error of the scaled probabilities, 15 bins of equal width"

    def compute(self, sums: Any) -> float:
        """Average |accuracy - confidence| over the bins."""
        return expected_calibration_error(sums.sums["reliability_after"])


class Brier(_CalibrationDetail):
    """Brier score."""

    name, label, bounds = "brier", "Brier score", (0.0, 2.0)
    summary = "mean squared distance of the scaled probabilities to the one-hot truth"

    def compute(self, sums: Any) -> float:
        """Divide the sum by the samples."""
        return float(sums.sums["proper_after"][1] / max(sums.count, 1))


class LogLikelihood(_CalibrationDetail):
    """Negative log-likelihood."""

    name, label = "nll", "NLL"
    summary = "mean negative log-likelihood of the scaled probabilities"

    def compute(self, sums: Any) -> float:
        """Divide the sum by the samples."""
        return float(sums.sums["proper_after"][0] / max(sums.count, 1))


class MeanAbsoluteError(DetailMetric):
    """Mean absolute error in the target's unit."""

    name, label, tasks, higher_is_better = "mae", "MAE", ("regression",), False
    summary, needs = "mean absolute error in the target's unit", "absolute"

    def compute(self, sums: Any) -> float:
        """Scale the mean error of standardized values back."""
        return float(sums.sums["absolute"][0] / max(sums.count, 1) * getattr(sums.plain, "scale", 1.0))


class R2(DetailMetric):
    """Coefficient of determination."""

    name, label, tasks = "r2", "R2", ("regression",)
    summary, needs, bounds = "1 - squared error / variance of the truth", "absolute", (-math.inf, 1.0)

    def compute(self, sums: Any) -> float:
        """Divide the sum of squared errors by that of squared deviations from the mean."""
        n, t, _, tt, _, _, square = sums.plain.moments.tolist()
        variance = tt - t * t / max(n, 1.0)
        return 1 - square / variance if variance > 1e-12 * max(tt, 1e-300) else math.nan


DETAIL_METRICS: dict[str, DetailMetric] = {
    metric.name: metric
    for metric in (
        *(AUROC(), AUPRC(), MacroF1(), BalancedAccuracy(), Sensitivity()),
        *(CalibrationError(), Brier(), LogLikelihood(), MeanAbsoluteError(), R2()),
    )
}


def compute_details(sums: Any) -> Detail:
    """Compute every detailed metric that an accumulator has the sums for."""
    found = {
        name: metric.measure(sums) for name, metric in DETAIL_METRICS.items() if metric.needs in sums.sums
    }
    return Detail(
        {name: each.value for name, each in found.items()},
        {name: each.width for name, each in found.items() if each.width},
    )


def detail_goodness(name: str, value: float | None) -> float:
    """Orient a detailed metric's value so that larger is better; an undefined one is the worst."""
    if value is None or math.isnan(value):
        return -math.inf
    return value if DETAIL_METRICS[name].higher_is_better else -value


def find_worst(values: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, Any]]:
    """Return for every detailed metric the domain or group where it is worst, and its value there.

    values  domain or group -> its metrics; one where a metric is undefined does not count
    """
    names = dict.fromkeys(name for metrics in values.values() for name in metrics)
    worst: dict[str, dict[str, Any]] = {}
    for name in names:
        known = {
            where: metrics[name]
            for where, metrics in values.items()
            if detail_goodness(name, metrics.get(name)) > -math.inf
        }
        if known:
            where = min(known, key=lambda each: detail_goodness(name, known[each]))
            worst[name] = {"where": where, "value": known[where]}
    return worst
