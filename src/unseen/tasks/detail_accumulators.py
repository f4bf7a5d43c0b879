"""Sums in detail: a task's plain accumulator together with what a measurement adds."""

from __future__ import annotations

from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
from torch import Tensor

from unseen.calibration import Measurement, Sums
from unseen.errors import UnseenError
from unseen.printable import printable
from unseen.tasks.accumulators import Arrays, MetricAccumulator, Metrics
from unseen.tasks.base import Task
from unseen.tasks.detail_metrics import Detail, compute_details

PREFIX = "detail:"


class DetailAccumulator(MetricAccumulator):
    """The plain sums, unchanged, and those of a measurement by name.

    A site whose policy keeps the details sends the plain sums alone; `sums` is empty then.
    """

    def __init__(self, plain: MetricAccumulator, measurement: Measurement, outputs: int) -> None:
        self.plain, self.measurement, self.outputs = plain, measurement, outputs
        self.sums: Sums = measurement.zeros(outputs)

    @property
    def count(self) -> int:
        """The number of samples."""
        return self.plain.count

    @property
    def numbers(self) -> int:
        """The number of stored values, those of the measurement included."""
        return self.plain.numbers + self.detail_numbers

    @property
    def detail_numbers(self) -> int:
        """The number of values of the measurement."""
        return sum(array.size for array in self.sums.values())

    @property
    def loss(self) -> float:
        """The sum of the loss."""
        return float(cast(Any, self.plain).loss)

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch of model outputs, followed by features where the measurement sums those up."""
        outputs, features = outputs[:, : self.outputs], outputs[:, self.outputs :]
        self.plain.add(outputs, targets)
        with np.errstate(all="ignore"):
            found = self.measurement.sums(
                outputs.double().cpu().numpy(),
                targets.cpu().numpy(),
                features.double().cpu().numpy() if self.measurement.features else None,
            )
        for name, array in found.items():
            self.sums[name] = self.sums[name] + array

    def merge(self, other: DetailAccumulator) -> None:
        """Add another site's sums; where one has no details, nor has the sum."""
        self.plain.merge(other.plain)
        both = self.sums.keys() & other.sums.keys()
        self.sums = {name: array + other.sums[name] for name, array in self.sums.items() if name in both}

    def metrics(self) -> Metrics:
        """Compute the task's metrics, as the plain accumulator does."""
        return self.plain.metrics()

    def details(self) -> Detail:
        """Compute the detailed metrics; none where the site kept the details."""
        return compute_details(self)

    def without_details(self) -> Self:
        """Drop what the measurement adds."""
        self.sums = {}
        return self

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the plain sums, and those of the measurement under a prefix."""
        return self.plain.to_arrays() | {PREFIX + name: array for name, array in self.sums.items()}

    def from_arrays(self, arrays: Arrays) -> Self:
        """Load sums of another site."""
        expected = self.measurement.zeros(self.outputs)
        found = {name: array for name, array in arrays.items() if name.startswith(PREFIX)}
        self.plain.from_arrays({name: array for name, array in arrays.items() if name not in found})
        self.sums = {name.removeprefix(PREFIX): np.array(array) for name, array in found.items()}
        if self.sums and self.sums.keys() != expected.keys():
            odd = sorted(self.sums.keys() ^ expected.keys())[0]
            raise UnseenError(
                f"sent details with or without {printable(odd, longest=80)!r}, which do not fit"
            )
        for name, array in self.sums.items():
            if array.shape != expected[name].shape or array.dtype != expected[name].dtype:
                raise UnseenError(
                    f"sent {name} as {array.dtype} of shape {array.shape}, expected "
                    f"{expected[name].dtype} of shape {expected[name].shape}"
                )
        return self

    def explain_impossible(self, count: int, per_class: Any = None) -> str:
        """Compare plain sums and histograms with the number of samples."""
        return self.plain.explain_impossible(count, per_class) or self.measurement.explain_impossible(
            self.sums, count, self.outputs
        )


def measures(task: Task) -> bool:
    """Whether a task's outputs can be measured: logits of classes, or one quantity."""
    return task.output_names[:1] in (("probabilities",), ("values",))


def make_measured(
    task: Task, outputs: int, *, target_scale: float, measurement: Measurement | None
) -> MetricAccumulator:
    """Create an empty accumulator of a task, with details if a measurement asks for them."""
    plain = task.make_accumulator(outputs, target_scale=target_scale)
    return plain if measurement is None else DetailAccumulator(plain, measurement, outputs)


def detail_of(sums: MetricAccumulator) -> DetailAccumulator | None:
    """Return an accumulator as one with details, if it has any."""
    return sums if isinstance(sums, DetailAccumulator) and sums.sums else None
