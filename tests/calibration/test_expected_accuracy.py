"""Average thresholded confidence from histograms, against the samples themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit

from unseen.calibration.expected_accuracy import (
    accuracy_of,
    confidence_sums,
    correct_accuracy,
    estimate_accuracy,
    find_shift,
    fraction_above,
    left_out_errors,
    threshold_bin,
)


def drawn(seed, *, samples=400, skill=1.0, classes=4):
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, classes, samples)
    logits = generator.normal(size=(samples, classes)) + 2 * skill * np.eye(classes)[targets]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return probabilities, targets


def thresholded(probabilities, targets, new):
    """Garg et al. on the samples: as many sources below the threshold as there are wrong answers."""
    confidence = np.sort(probabilities.max(axis=1))
    wrong = int((probabilities.argmax(axis=1) != targets).sum())
    return (new.max(axis=1) >= confidence[wrong]).mean()


@given(seed=st.integers(0, 1000), skill=st.floats(0.3, 2))
@settings(max_examples=25, deadline=None)
def test_estimates_are_those_of_the_samples_within_two_bins(seed, skill):
    known, targets = drawn(seed)
    new, truth = drawn(seed + 1, skill=skill)
    source, other = confidence_sums(known, targets), confidence_sums(new, truth)
    found = fraction_above(other, threshold_bin(source))
    busiest = np.sort(other.sum(axis=0))[-2:].sum() / other.sum()
    assert found == pytest.approx(thresholded(known, targets, new), abs=busiest + 1e-9)
    assert fraction_above(source, threshold_bin(source)) == pytest.approx(accuracy_of(source), abs=0.02)
    assert accuracy_of(other) == pytest.approx((new.argmax(axis=1) == truth).mean())


def test_errors_leave_one_source_out_and_widen_the_interval():
    sources = {name: confidence_sums(*drawn(seed)) for seed, name in enumerate("abc")}
    outside = {"far": confidence_sums(*drawn(9, skill=0.2))}
    errors = left_out_errors(sources, outside)
    assert errors.keys() == {"a", "b", "c", "far"}
    others = threshold_bin(sources["b"] + sources["c"])
    assert errors["a"] == fraction_above(sources["a"], others) - accuracy_of(sources["a"])
    bin = threshold_bin(sum(sources.values()))
    narrow, wide = (estimate_accuracy(sources["a"], bin, found) for found in ({}, errors))
    worst = max(map(abs, errors.values()))
    assert narrow.accuracy == wide.accuracy
    assert narrow.low - wide.low == pytest.approx(worst) or wide.low == 0
    assert left_out_errors({"a": sources["a"]}) == {} == left_out_errors({})


accuracies = st.floats(0.01, 0.99)


@given(points=st.lists(st.tuples(accuracies, accuracies), min_size=1, max_size=6), estimate=accuracies)
def test_a_correction_is_the_mean_difference_of_log_odds(points, estimate):
    shift = find_shift(points)
    assert shift == pytest.approx(np.mean([logit(found) - logit(truth) for found, truth in points]))
    assert correct_accuracy(estimate, shift) == pytest.approx(expit(logit(estimate) - shift))


def test_one_domain_corrects_itself_and_no_shift_changes_nothing():
    assert correct_accuracy(0.9, find_shift([(0.9, 0.7)])) == pytest.approx(0.7)
    assert correct_accuracy(0.95, find_shift([(0.9, 0.7)])) > 0.8
    assert correct_accuracy(1.0, 0.0) == 1 and correct_accuracy(1.0, find_shift([(1.0, 1.0)])) == 1
    counts = confidence_sums(*drawn(0))
    plain, moved = (estimate_accuracy(counts, 1000, {}, shift=shift) for shift in (0.0, 1.0))
    assert moved.accuracy == pytest.approx(expit(logit(plain.accuracy) - 1))
    assert moved.low < moved.accuracy < moved.high
