"""The base of tasks: one object that knows the loss, the metrics, the targets and the outputs of a task.

Everything that differs between tasks asks the object, so a new task is one registered subclass. Its name is
what configurations, records and model files hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from unseen.errors import UsageError
from unseen.registry import Registry
from unseen.tasks.metrics import METRICS, Metric

if TYPE_CHECKING:
    from torch import Tensor

    from unseen.tasks.accumulators import MetricAccumulator

Reduction = Literal["mean", "sum", "none"]


class Task(ABC):
    """A kind of prediction. Stateless: one object per registered name, pickled by that name.

    name                  what `--task`, configurations and records call it
    summary               one line for `unseen list tasks`
    metrics               names of its metrics in the order of records; registered ones for this task follow
    primary_metric        the metric that selection rules maximize and that headlines show
    curve_metrics         the metrics whose course over the rounds is drawn
    has_classes           whether targets are class numbers (int64) instead of quantities (float32)
    standardizes_targets  whether the targets of tables are scaled to mean 0 and std 1
    output_names          names of what an exported model returns, in the order of `served_outputs`
    takes_mixed_targets   whether `loss` accepts blends of targets: quantities, or probabilities of classes
                          (n x classes) instead of numbers
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    primary_metric: ClassVar[str]
    curve_metrics: ClassVar[tuple[str, ...]]
    has_classes: ClassVar[bool]
    standardizes_targets: ClassVar[bool]
    output_names: ClassVar[tuple[str, ...]]
    takes_mixed_targets: ClassVar[bool] = False

    @abstractmethod
    def count_outputs(self, classes: Sequence[str]) -> int:
        """Return how many numbers a model predicts per sample."""

    @abstractmethod
    def loss(
        self, outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, reduction: Reduction = "mean"
    ) -> Tensor:
        """Compute the training loss; evaluation calls it without label smoothing and with reduction `sum`."""

    @abstractmethod
    def make_accumulator(self, outputs: int, *, target_scale: float = 1.0) -> MetricAccumulator:
        """Create an empty accumulator.

        outputs       how many numbers a model predicts per sample
        target_scale  std by which targets were divided
        """

    @abstractmethod
    def to_target_unit(self, outputs: Tensor, mean: float, std: float) -> Tensor:
        """Convert raw outputs of a network to the unit of the targets before they were standardized."""

    @abstractmethod
    def served_outputs(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Convert outputs in the target's unit to the outputs of an exported model."""

    def check_classes(self, source: str, classes: Sequence[str]) -> None:  # noqa: B027 (optional)
        """Refuse a data set whose classes do not fit the task."""

    @cached_property
    def reported_metrics(self) -> tuple[Metric, ...]:
        """The metrics in the order of records: the primary one, the task's others, those that plugins add."""
        added = [name for name in METRICS if self._reports(METRICS[name])]
        return tuple(METRICS[name] for name in dict.fromkeys((self.primary_metric, *self.metrics, *added)))

    def _reports(self, metric: Metric) -> bool:
        return any(isinstance(self, type(TASKS[name])) for name in metric.tasks)

    def require_same_targets(self, other: Task, source: str) -> None:
        """Refuse to read the targets of a data set made for another task as this task's."""
        if self.has_classes != other.has_classes:
            kinds = {True: "classes", False: "quantities"}
            raise UsageError(
                f"--task {self.name} predicts {kinds[self.has_classes]}, but {source} has "
                f"{kinds[other.has_classes]}; use --task {other.name}"
            )

    def __reduce__(self) -> tuple[Callable[[str], Task], tuple[str]]:
        """Pickle by name, so that workers use their own registered object."""
        return _get_task, (self.name,)


TASKS: Registry[Task] = Registry(
    "task", group="unseen.tasks", builtin=("unseen.tasks.classification", "unseen.tasks.regression")
)
AnyTask = TypeVar("AnyTask", bound=Task)


def register_task(task: type[AnyTask]) -> type[AnyTask]:
    """Register one object of the decorated class under its name."""
    TASKS.register(task.name)(task())
    return task


def primary_metric(task: str) -> str:
    """Return the primary metric of a recorded task; accuracy if the task's plugin is not loaded here."""
    return TASKS[task].primary_metric if task in TASKS else "accuracy"


def curve_metrics(task: str) -> tuple[str, ...]:
    """Return the metrics of a recorded task that are drawn over the rounds."""
    return TASKS[task].curve_metrics if task in TASKS else (primary_metric(task),)


def _get_task(name: str) -> Task:
    return TASKS[name]
