"""ECE, Brier score and NLL from sums, against scikit-learn and a literal ECE."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss

from unseen.calibration.reliability import (
    describe_reliability,
    log_softmax,
    proper_scores,
    reliability_sums,
)


def literal_ece(chances, targets):
    confidence, right = chances.max(1), chances.argmax(1) == targets
    total = 0.0
    for number in range(15):
        inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), cut=st.integers(0, 80))
def test_against_sklearn_and_split_over_two_clients(seed, cut):
    generator = np.random.default_rng(seed)
    logits, targets = 3 * generator.normal(size=(80, 3)), generator.integers(0, 3, 80)
    logs = log_softmax(logits)
    chances = np.exp(logs)
    halves = [slice(0, cut), slice(cut, 80)]
    sums = sum(reliability_sums(chances[half], targets[half]) for half in halves)
    proper = sum(proper_scores(logs[half], targets[half]) for half in halves)
    found = describe_reliability(sums, proper)
    assert found["ece"] == pytest.approx(literal_ece(chances, targets), abs=1e-9)
    assert found["nll"] == pytest.approx(log_loss(targets, chances, labels=[0, 1, 2]), abs=1e-9)
    brier = brier_score_loss(targets, chances, labels=[0, 1, 2], scale_by_half=False)
    assert found["brier"] == pytest.approx(brier, abs=1e-9)
    assert sum(count for count, _, _ in found["bins"]) == 80


def test_the_truth_is_calibrated_and_certain_errors_are_not():
    generator = np.random.default_rng(0)
    chance = generator.uniform(0.5, 1, 40_000)
    targets = (generator.uniform(size=40_000) > chance).astype(np.int64)
    chances = np.stack([chance, 1 - chance], axis=1)
    assert describe_reliability(reliability_sums(chances, targets), np.zeros(2))["ece"] < 0.015
    sure = np.array([[1.0, 0.0]] * 4)
    sums = reliability_sums(sure, np.array([1, 1, 1, 0]))
    assert describe_reliability(sums, np.zeros(2))["ece"] == 0.75
