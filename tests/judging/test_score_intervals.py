"""Metrics against scikit-learn, and their intervals against SciPy and a bootstrap over samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, pearsonr
from sklearn import metrics as oracle

from unseen.calibration import Measurement
from unseen.calibration.ranking import average_precision, sensitivity_at_specificity
from unseen.judging.ranking_curves import average_precisions, sensitivities
from unseen.judging.score_intervals import area_score, compute_scores, mean_score, wilson
from unseen.tasks import TASKS
from unseen.tasks.detail_accumulators import DetailAccumulator


def sums_of(outputs, targets, *, scale=1.0):
    classes = outputs.shape[1]
    task = TASKS["classification" if classes > 1 else "regression"]
    found = DetailAccumulator(
        task.make_accumulator(classes, target_scale=scale), Measurement("metrics"), classes
    )
    found.add(torch.from_numpy(outputs), torch.from_numpy(targets))
    return found


def draw_classes(seed, samples, classes):
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, classes, samples)
    return generator.normal(size=(samples, classes)) + 1.5 * np.eye(classes)[targets], targets


def draw_values(seed, samples):
    generator = np.random.default_rng(seed)
    truth = generator.gamma(2.0, 1.0, samples)
    return (0.8 * truth + generator.standard_t(8, samples) * 0.5)[:, None], truth


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), samples=st.integers(20, 150), classes=st.integers(2, 5))
def test_classes_equal_scikit_learn(seed, samples, classes):
    outputs, targets = draw_classes(seed, samples, classes)
    found = compute_scores(sums_of(outputs, targets))
    predicted = outputs.argmax(axis=1)
    chances = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    assert found["accuracy"].value == pytest.approx(oracle.accuracy_score(targets, predicted))
    seen = sorted(set(targets) | set(predicted))
    f1 = oracle.f1_score(targets, predicted, average="macro", labels=seen, zero_division=0)
    assert found["macro_f1"].value == pytest.approx(f1)
    if set(predicted) <= set(targets):
        balanced = oracle.balanced_accuracy_score(targets, predicted)
        assert found["balanced_accuracy"].value == pytest.approx(balanced)
    loss = oracle.log_loss(targets, chances, labels=range(classes))
    assert found["nll"].value == pytest.approx(loss, abs=1e-9)
    truth = np.eye(classes)[targets]
    assert found["brier"].value == pytest.approx(((chances - truth) ** 2).sum(axis=1).mean())
    for score in found.values():
        assert math.isnan(score.value) or score.low - 1e-12 <= score.value <= score.high + 1e-12


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), samples=st.integers(10, 150), offset=st.sampled_from([0.0, 50.0]))
def test_values_equal_scikit_learn(seed, samples, offset):
    outputs, truth = draw_values(seed, samples)
    found = compute_scores(sums_of(outputs + offset, truth + offset, scale=3.0))
    predicted = outputs[:, 0]
    assert found["mae"].value == pytest.approx(3 * oracle.mean_absolute_error(truth, predicted))
    assert found["rmse"].value == pytest.approx(3 * math.sqrt(oracle.mean_squared_error(truth, predicted)))
    assert found["r2"].value == pytest.approx(oracle.r2_score(truth, predicted), abs=1e-8)
    expected = pearsonr(truth, predicted)
    assert found["pearson_r"].value == pytest.approx(expected.statistic, abs=1e-8)
    interval = expected.confidence_interval(0.95)
    assert found["pearson_r"][1:3] == pytest.approx((interval.low, interval.high), abs=1e-6)


@given(right=st.integers(0, 200), more=st.integers(0, 200))
def test_wilson_is_scipys(right, more):
    count = right + more
    found = wilson(right, count)
    if not count:
        assert math.isnan(found.value)
        return
    expected = binomtest(right, count).proportion_ci(0.95, "wilson")
    assert found[:3] == pytest.approx((right / count, expected.low, expected.high), abs=1e-9)


def repeat(measure, outputs, targets, *, draws=300):
    """Ends of the interval over samples drawn anew, per metric."""
    generator, repeated = np.random.default_rng(0), []
    for _ in range(draws):
        rows = generator.integers(0, len(targets), len(targets))
        repeated.append(measure(outputs[rows], targets[rows]))
    return {name: np.percentile([each[name] for each in repeated], (2.5, 97.5)) for name in repeated[0]}


def test_intervals_of_classes_are_those_of_the_bootstrap():
    outputs, targets = draw_classes(5, 400, 2)
    found = compute_scores(sums_of(outputs, targets))

    def measure(outputs, targets):
        details = sums_of(outputs, targets).details().values
        names = ("macro_f1", "balanced_accuracy", "auprc", "sensitivity_at_specificity_95", "brier", "nll")
        return {name: details[name] for name in (*names, "auroc")}

    for name, (low, high) in repeat(measure, outputs, targets).items():
        room = 0.35 * (high - low)
        assert found[name].low == pytest.approx(low, abs=room), name
        assert found[name].high == pytest.approx(high, abs=room), name


def test_intervals_of_values_are_those_of_the_bootstrap():
    outputs, truth = draw_values(7, 500)
    found = compute_scores(sums_of(outputs, truth))

    def measure(outputs, targets):
        scores = oracle.r2_score(targets, outputs[:, 0])
        errors = outputs[:, 0] - targets
        return {"r2": scores, "mae": np.abs(errors).mean(), "rmse": math.sqrt((errors**2).mean())}

    for name, (low, high) in repeat(measure, outputs, truth, draws=600).items():
        room = 0.2 * (high - low)
        assert found[name][1:3] == pytest.approx((low, high), abs=room), name


def test_the_interval_of_a_calibration_error_mostly_holds_the_error_of_many_samples():
    """The error of few samples is too large (0.10 on average here), which the interval corrects."""
    outputs, targets = draw_classes(999, 200_000, 3)
    true = sums_of(outputs * 2.5, targets).details().values["ece"]
    inside = 0
    for seed in range(40):
        outputs, targets = draw_classes(seed, 250, 3)
        score = compute_scores(sums_of(outputs * 2.5, targets))["ece"]
        inside += score.low <= true <= score.high
    assert inside >= 32


@given(seed=st.integers(0, 1000), bins=st.integers(2, 30))
def test_curves_of_many_tables_are_those_of_each(seed, bins):
    generator = np.random.default_rng(seed)
    tables = generator.integers(0, 6, (2, 5, bins))
    tables[:, :, 0] += 1
    positives, negatives = tables
    for many, single in (
        (average_precisions, average_precision),
        (sensitivities, sensitivity_at_specificity),
    ):
        expected = [single(p, n).value for p, n in zip(positives, negatives, strict=True)]
        assert many(positives.astype(float), negatives.astype(float)) == pytest.approx(expected)


def test_intervals_at_the_edges_stay_inside_and_are_not_empty():
    perfect = area_score(1.0, 0.0, 20)
    assert (perfect.value, perfect.high) == (1.0, 1.0) and 0.8 < perfect.low < 0.9
    assert area_score(0.0, 0.0, 20).low == 0.0
    assert math.isnan(area_score(math.nan, math.nan, 5).value)
    near = area_score(0.999, 1e-6, 100)
    assert 0.98 < near.low < 0.999 < near.high < 1
    assert mean_score(0.0, 0.0, 10, low=0.0)[:3] == (0.0, 0.0, 0.0)
    one_class = compute_scores(sums_of(np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([0, 0])))
    assert math.isnan(one_class["auroc"].value) and one_class["accuracy"].value == 0.5
