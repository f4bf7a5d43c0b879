"""Tasks and metrics: what they declare agrees with what accumulators compute, and importing them is light."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from unseen.data import from_arrays
from unseen.errors import UnseenError, UsageError
from unseen.evaluation.evaluate import GroupedAccumulator
from unseen.tasks import METRICS, TASKS, goodness, is_fraction, metric_bounds, metric_label, primary_metric
from unseen.tasks.regression import Regression

NAMES = ("classification", "regression")


def batch(task: str, count: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    if TASKS[task].has_classes:
        return torch.randn(count, 4, generator=generator), torch.randint(4, (count,), generator=generator)
    return torch.randn(count, 1, generator=generator), torch.randn(count, generator=generator)


@pytest.mark.parametrize("name", NAMES)
def test_accumulators_compute_the_declared_metrics_in_their_order_the_primary_one_first(name: str) -> None:
    task = TASKS[name]
    sums = task.make_accumulator(4)
    sums.add(*batch(name))
    assert tuple(sums.metrics()) == task.metrics
    assert task.metrics[0] == task.primary_metric == primary_metric(name)
    assert set(task.curve_metrics) <= set(task.metrics) <= set(METRICS)


@pytest.mark.parametrize("name", NAMES)
def test_the_evaluated_loss_is_the_task_s_loss(name: str) -> None:
    outputs, targets = batch(name)
    sums = TASKS[name].make_accumulator(4)
    sums.add(outputs, targets)
    assert sums.metrics()["loss"] == pytest.approx(float(TASKS[name].loss(outputs, targets)))


class Huber(Regression):
    """Regression by another loss."""

    def loss(self, outputs, targets, *, label_smoothing=0.0, reduction="mean"):
        return F.huber_loss(outputs.squeeze(1), targets, reduction=reduction)


def test_a_task_derived_from_regression_reports_its_own_loss() -> None:
    outputs, targets = batch("regression")
    left, right = Huber().make_accumulator(1), Huber().make_accumulator(1)
    left.add(outputs[:7], targets[:7])
    right.add(outputs[7:], targets[7:])
    left.merge(Huber().make_accumulator(1).from_arrays(right.to_arrays()))
    assert left.metrics()["loss"] == pytest.approx(float(F.huber_loss(outputs.squeeze(1), targets)))


def test_the_losses_are_those_of_torch_to_the_bit() -> None:
    outputs, targets = batch("classification")
    loss = TASKS["classification"].loss(outputs, targets, label_smoothing=0.1)
    assert torch.equal(loss, F.cross_entropy(outputs, targets, label_smoothing=0.1))
    outputs, targets = batch("regression")
    assert torch.equal(TASKS["regression"].loss(outputs, targets), F.mse_loss(outputs.squeeze(1), targets))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("grouped", [False, True])
def test_sums_survive_the_way_through_arrays(name: str, grouped: bool) -> None:
    def make() -> GroupedAccumulator:
        return GroupedAccumulator(np.arange(20) % 3 - 1, lambda: TASKS[name].make_accumulator(4))

    sums, empty = (make() if grouped else TASKS[name].make_accumulator(4) for _ in range(2))
    sums.add(*batch(name))
    again = empty.from_arrays(sums.to_arrays())
    assert again.metrics() == sums.metrics() and again.numbers == sums.numbers
    again.merge(sums)
    assert again.count == 40


@pytest.mark.parametrize(("name", "key"), [("classification", "confusion"), ("regression", "moments")])
def test_sums_of_another_shape_are_refused(name: str, key: str) -> None:
    arrays = TASKS[name].make_accumulator(4).to_arrays()
    with pytest.raises(UnseenError, match="shape"):
        TASKS[name].make_accumulator(4).from_arrays({**arrays, key: np.zeros(3)})
    with pytest.raises(UnseenError, match="expected"):
        TASKS[name].make_accumulator(4).from_arrays({})


def test_tasks_and_metrics_travel_by_name() -> None:
    for entry in (TASKS["regression"], METRICS["rmse"]):
        assert pickle.loads(pickle.dumps(entry)) is entry
    sums = TASKS["classification"].make_accumulator(3)
    sums.add(torch.eye(3), torch.arange(3))
    assert pickle.loads(pickle.dumps(sums)).metrics() == sums.metrics()


def test_targets_of_one_kind_are_not_read_as_the_other() -> None:
    data = from_arrays(np.zeros((4, 2)), np.array([0, 1, 0, 1]), ["a", "a", "b", "b"])
    assert data.as_task(None) is data and data.as_task("classification") is data
    with pytest.raises(UsageError, match="--task regression predicts quantities, but arrays has classes"):
        data.as_task("regression")


@pytest.mark.parametrize(
    ("metric", "label", "fraction", "bounds"),
    [
        ("accuracy", "accuracy", True, (0.0, 1.0)),
        ("worst_class_accuracy", "worst class accuracy", True, (0.0, 1.0)),
        ("pooled_accuracy", "accuracy of all samples", True, (0.0, 1.0)),
        ("worst_group_pearson_r", "worst group Pearson r", False, (-math.inf, math.inf)),
        ("pearson_r", "Pearson r", False, (-1.0, 1.0)),
        ("rmse", "RMSE", False, (-math.inf, math.inf)),
        ("some_metric", "some metric", False, (-math.inf, math.inf)),
    ],
)
def test_every_metric_has_a_label_and_a_scale(
    metric: str, label: str, fraction: bool, bounds: tuple[float, float]
) -> None:
    assert (metric_label(metric), is_fraction(metric), metric_bounds(metric)) == (label, fraction, bounds)


def test_smaller_is_better_for_errors_and_nothing_is_worse_than_undefined() -> None:
    assert goodness("rmse", 1.0) > goodness("rmse", 2.0) > goodness("rmse", None)
    assert goodness("accuracy", 0.2) > goodness("accuracy", 0.1) > goodness("accuracy", math.nan)


def test_tasks_metrics_and_rules_load_no_torch() -> None:
    code = (
        "import sys; from unseen.tasks import TASKS, METRICS;"
        "from unseen.evaluation.selection import list_rules;"
        "list(TASKS), list(METRICS), list_rules(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
