"""Regression: one quantity per sample, trained by squared error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unseen.tasks.base import Reduction, Task, register_task

if TYPE_CHECKING:
    from torch import Tensor

    from unseen.tasks.accumulators import MetricAccumulator


@register_task
class Regression(Task):
    """One quantity per sample."""

    name = "regression"
    summary = "one quantity per sample: squared error, chosen by Pearson's r"
    metrics = ("pearson_r", "rmse", "loss")
    primary_metric = "pearson_r"
    curve_metrics = ("pearson_r", "rmse")
    has_classes = False
    standardizes_targets = True
    output_names = ("values",)
    takes_mixed_targets = True

    def count_outputs(self, classes: Sequence[str]) -> int:
        """Return 1."""
        return 1

    def loss(
        self, outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, reduction: Reduction = "mean"
    ) -> Tensor:
        """Compute the squared error; label smoothing has no meaning here."""
        from torch.nn import functional as F

        return F.mse_loss(outputs.squeeze(1), targets, reduction=reduction)

    def make_accumulator(self, outputs: int, *, target_scale: float = 1.0) -> MetricAccumulator:
        """Create empty moments; errors are reported in the unit that `target_scale` gives."""
        from unseen.tasks.accumulators import RegressionAccumulator

        return RegressionAccumulator(target_scale, self)

    def to_target_unit(self, outputs: Tensor, mean: float, std: float) -> Tensor:
        """Undo the standardization."""
        return outputs * std + mean

    def served_outputs(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Return the values."""
        return (outputs,)
