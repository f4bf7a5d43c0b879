"""AUROC, average precision and sensitivity from histograms, against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from unseen.calibration.histograms import count_bins, fraction_edges
from unseen.calibration.ranking import (
    auroc,
    average_precision,
    count_ranking,
    over_classes,
    sensitivity_at_specificity,
)

EDGES = fraction_edges(64)


def best_sensitivity(truth, scores):
    false_positive_rate, sensitivity, _ = roc_curve(truth, scores, drop_intermediate=False)
    return sensitivity[1 - false_positive_rate >= 0.95].max()


ORACLES = {
    "auroc": (auroc, roc_auc_score),
    "auprc": (average_precision, average_precision_score),
    "sensitivity": (sensitivity_at_specificity, best_sensitivity),
}


@pytest.mark.parametrize("name", ORACLES)
@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), samples=st.integers(2, 200), ties=st.booleans())
def test_equals_sklearn_on_binned_scores_and_is_within_its_width_of_the_rest(name, seed, samples, ties):
    metric, oracle = ORACLES[name]
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, 2, samples)
    truth[:2] = 0, 1
    scores = 1 / (1 + np.exp(-generator.normal(2.0 * truth - 1, 2.0)))
    scores = np.round(scores, 1) if ties else scores
    found = metric(count_bins(scores[truth == 1], EDGES), count_bins(scores[truth == 0], EDGES))
    binned = np.searchsorted(EDGES, scores, side="right")
    assert found.value == pytest.approx(oracle(truth, binned), abs=1e-9)
    assert abs(found.value - oracle(truth, scores)) <= found.width + 1e-9


def test_classes_are_averaged_one_against_the_rest_and_missing_ones_left_out():
    generator = np.random.default_rng(0)
    targets = np.repeat([0, 1, 3], 40)
    logits = generator.normal(size=(120, 4)) + 2 * np.eye(4)[targets]
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = over_classes(auroc, count_ranking(chances, targets))
    expected = np.mean([roc_auc_score(targets == number, chances[:, number]) for number in (0, 1, 3)])
    assert abs(found.value - expected) <= found.width + 1e-9
    assert found.width < 0.005


def test_of_two_classes_the_second_is_the_positive_one():
    chances = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    found = over_classes(auroc, count_ranking(chances, np.array([0, 1, 1, 1])))
    assert found.value == 1.0


@pytest.mark.parametrize("name", ORACLES)
def test_undefined_without_negative_samples(name):
    only = np.array([0, 3, 1])
    assert math.isnan(ORACLES[name][0](only, np.zeros(3, dtype=np.int64)).value)
