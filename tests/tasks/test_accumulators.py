from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from unseen.tasks.accumulators import ClassificationAccumulator, RegressionAccumulator

SIZES = st.integers(2, 60)


def _outputs(count, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator)
    return logits, torch.randint(classes, (count,), generator=generator)


@given(SIZES, st.integers(2, 6), st.integers(0, 1000))
def test_classification_metrics_equal_their_definitions(count, classes, seed):
    logits, targets = _outputs(count, classes, seed)
    sums = ClassificationAccumulator(classes)
    sums.add(logits, targets)
    right = logits.argmax(dim=1) == targets
    metrics = sums.metrics()
    assert metrics["accuracy"] == pytest.approx(right.double().mean().item())
    assert metrics["loss"] == pytest.approx(F.cross_entropy(logits, targets).item(), rel=1e-4)
    per_class = [right[targets == c].double().mean().item() for c in range(classes) if (targets == c).any()]
    assert metrics["worst_class_accuracy"] == pytest.approx(min(per_class))
    assert sums.count == count


@given(SIZES, st.integers(0, 1000), st.floats(0.1, 100))
def test_regression_metrics_equal_their_definitions(count, seed, scale):
    generator = np.random.default_rng(seed)
    truth, predicted = generator.normal(size=count), generator.normal(size=count)
    sums = RegressionAccumulator(scale=scale)
    sums.add(torch.from_numpy(predicted)[:, None], torch.from_numpy(truth))
    metrics = sums.metrics()
    assert metrics["pearson_r"] == pytest.approx(np.corrcoef(truth, predicted)[0, 1], abs=1e-6)
    assert metrics["rmse"] == pytest.approx(scale * math.sqrt(np.mean((truth - predicted) ** 2)))


@given(SIZES, st.integers(0, 1000))
def test_sums_of_parts_add_up_to_the_whole(count, seed):
    logits, targets = _outputs(count, 3, seed)
    cut = count // 2
    whole, left, right = (
        ClassificationAccumulator(3),
        ClassificationAccumulator(3),
        ClassificationAccumulator(3),
    )
    whole.add(logits, targets)
    left.add(logits[:cut], targets[:cut])
    right.add(logits[cut:], targets[cut:])
    left.merge(right)
    assert torch.equal(left.confusion, whole.confusion)
    assert left.metrics()["loss"] == pytest.approx(whole.metrics()["loss"], rel=1e-5)


def test_a_class_that_does_not_occur_has_no_accuracy():
    sums = ClassificationAccumulator(3)
    sums.add(torch.eye(3)[:2], torch.tensor([0, 1]))
    assert sums.per_class()[:2] == [1.0, 1.0] and math.isnan(sums.per_class()[2])
    assert sums.metrics()["worst_class_accuracy"] == 1.0


def test_a_constant_prediction_has_no_correlation():
    sums = RegressionAccumulator()
    sums.add(torch.ones(4, 1), torch.arange(4.0))
    assert math.isnan(sums.metrics()["pearson_r"])
