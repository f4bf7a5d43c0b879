"""Tasks (what is predicted, and the loss) and metrics (how predictions are described). Imports no torch."""

from unseen.tasks.base import TASKS, Reduction, Task, curve_metrics, primary_metric, register_task
from unseen.tasks.metrics import (
    METRICS,
    Metric,
    goodness,
    is_fraction,
    metric_bounds,
    metric_label,
    register_metric,
)

__all__ = [
    "METRICS",
    "TASKS",
    "Metric",
    "Reduction",
    "Task",
    "curve_metrics",
    "goodness",
    "is_fraction",
    "metric_bounds",
    "metric_label",
    "primary_metric",
    "register_metric",
    "register_task",
]
