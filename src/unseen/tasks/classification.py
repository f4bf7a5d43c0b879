"""Classification: one class per sample, trained by cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unseen.errors import UnseenError
from unseen.tasks.base import Reduction, Task, register_task

if TYPE_CHECKING:
    from torch import Tensor

    from unseen.tasks.accumulators import MetricAccumulator


@register_task
class Classification(Task):
    """One class per sample."""

    name = "classification"
    summary = "one class per sample: cross-entropy, chosen by accuracy"
    metrics = ("accuracy", "worst_class_accuracy", "loss")
    primary_metric = "accuracy"
    curve_metrics = ("accuracy",)
    has_classes = True
    standardizes_targets = False
    output_names = ("probabilities", "logits")
    takes_mixed_targets = True

    def count_outputs(self, classes: Sequence[str]) -> int:
        """Return one logit per class."""
        return len(classes)

    def loss(
        self, outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, reduction: Reduction = "mean"
    ) -> Tensor:
        """Compute the cross-entropy of logits with class numbers, or with probabilities (n x classes)."""
        from torch.nn import functional as F

        return F.cross_entropy(outputs, targets, reduction=reduction, label_smoothing=label_smoothing)

    def make_accumulator(self, outputs: int, *, target_scale: float = 1.0) -> MetricAccumulator:
        """Create an empty confusion matrix."""
        from unseen.tasks.accumulators import ClassificationAccumulator

        return ClassificationAccumulator(outputs, self)

    def to_target_unit(self, outputs: Tensor, mean: float, std: float) -> Tensor:
        """Leave logits as they are."""
        return outputs

    def served_outputs(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Return probabilities and logits."""
        return outputs.softmax(dim=1), outputs

    def check_classes(self, source: str, classes: Sequence[str]) -> None:
        """Refuse fewer than two classes."""
        if len(classes) < 2:
            seen = ", ".join(classes) or "none"
            raise UnseenError(
                f"{source}: classification needs at least two classes; found {len(classes)} ({seen})"
            )
