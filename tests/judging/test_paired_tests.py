"""DeLong, McNemar and the paired t-test against slow definitions, SciPy and the bootstrap."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, ttest_1samp
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from unseen.judging.paired_tests import (
    Stratum,
    combine_areas,
    delong_test,
    find_rankings,
    mcnemar_test,
    paired_mean_test,
)


def kernel(positives, negatives):
    """Every pair: 1 where the positive is above, a half for a tie."""
    difference = positives[:, None] - negatives[None, :]
    return (difference > 0) + 0.5 * (difference == 0)


def slow_delong(scores, own):
    """DeLong's estimate written down pair by pair: areas and covariance of two models."""
    m, n = own.sum(), (~own).sum()
    pairs = [kernel(each[own], each[~own]) for each in scores]
    areas = np.array([each.mean() for each in pairs])
    over = np.cov(np.stack([each.mean(axis=1) for each in pairs]))
    under = np.cov(np.stack([each.mean(axis=0) for each in pairs]))
    return areas, over / m + under / n


def draw(seed, samples, classes, *, ties):
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, classes, samples)
    targets[: 2 * classes] = np.repeat(np.arange(classes), 2)
    truth = np.eye(classes)[targets]
    scores = [truth * strength + generator.normal(size=truth.shape) for strength in (0.7, 1.2)]
    return targets, [np.round(each, 1) if ties else each for each in scores]


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000), samples=st.integers(12, 80), classes=st.integers(2, 4), ties=st.booleans()
)
def test_areas_and_covariances_are_those_of_all_pairs(seed, samples, classes, ties):
    targets, scores = draw(seed, samples, classes, ties=ties)
    found = find_rankings(scores, targets, least=2)
    chosen = [1] if classes == 2 else range(classes)
    for row, number in enumerate(chosen):
        own = targets == number
        areas, covariance = slow_delong([each[:, number] for each in scores], own)
        assert found.areas[row] == pytest.approx(areas, abs=1e-12)
        assert found.covariance[row] == pytest.approx(covariance, abs=1e-12)
        assert found.counts[row].tolist() == [own.sum(), (~own).sum()]
        for model, each in enumerate(scores):
            assert found.areas[row, model] == pytest.approx(roc_auc_score(own, each[:, number]))
            assert found.precision[row, model] == pytest.approx(average_precision_score(own, each[:, number]))
            false, true, _ = roc_curve(own, each[:, number], drop_intermediate=False)
            assert found.sensitivity[row, model] == pytest.approx(true[1 - false >= 0.95].max())
    assert found.areas[-1] == pytest.approx(found.areas[:-1].mean(axis=0))


def test_the_variance_of_a_mean_over_classes_is_that_of_the_bootstrap():
    targets, scores = draw(3, 400, 3, ties=False)
    found = find_rankings(scores, targets, least=2)
    generator, repeated = np.random.default_rng(0), []
    for _ in range(400):
        rows = generator.integers(0, len(targets), len(targets))
        repeated.append(find_rankings([each[rows] for each in scores], targets[rows], least=2).areas[-1])
    expected = np.cov(np.stack(repeated).T)
    assert found.covariance[-1] == pytest.approx(expected, rel=0.2, abs=2.5e-5)


def test_few_samples_have_no_area():
    targets = np.array([0] * 20 + [1] * 3 + [2] * 7)
    scores = [np.random.default_rng(0).normal(size=(30, 3))]
    found = find_rankings(scores, targets, least=5)
    assert np.isnan(found.areas[1]).all() and np.isnan(found.covariance[1]).all()
    assert np.isfinite(found.areas[[0, 2, 3]]).all()
    assert found.areas[3, 0] == pytest.approx(found.areas[[0, 2], 0].mean())
    assert np.isnan(find_rankings(scores, targets, least=25).areas).all()
    assert math.isnan(delong_test(None).p_value)


def test_delong_holds_its_level_and_finds_what_is_there():
    def p_value(seed, gain):
        generator = np.random.default_rng(seed)
        targets = np.repeat([0, 1], 60)
        shared = generator.normal(size=120) + targets
        scores = [np.stack([-x, x], axis=1) for x in (
            shared + generator.normal(size=120), shared + generator.normal(size=120) + gain * targets
        )]  # fmt: skip
        found = find_rankings(scores, targets, least=2)
        return delong_test(Stratum(found.areas[-1], found.covariance[-1], 120)).p_value

    assert 0.02 <= np.mean([p_value(seed, 0.0) < 0.05 for seed in range(400)]) <= 0.085
    assert np.mean([p_value(seed, 2.0) < 0.05 for seed in range(50)]) > 0.9


def test_sites_combine_by_their_samples_and_independent_errors_add_up():
    sites = [
        Stratum(np.array([0.8, 0.9]), np.array([[4e-4, 1e-4], [1e-4, 3e-4]]), 100),
        Stratum(np.array([0.6, 0.6]), np.array([[9e-4, 0.0], [0.0, 8e-4]]), 300),
        Stratum(np.array([np.nan, np.nan]), np.full((2, 2), np.nan), 50),
    ]
    found = combine_areas(sites)
    assert found.areas == pytest.approx([0.65, 0.675])
    assert found.covariance == pytest.approx(sites[0].covariance / 16 + sites[1].covariance * 9 / 16)
    variance = (4e-4 + 3e-4 - 2e-4) / 16 + (17e-4) * 9 / 16
    tested = delong_test(found)
    assert tested.difference == pytest.approx(0.025)
    assert tested.p_value == pytest.approx(math.erfc(0.025 / math.sqrt(2 * variance)))
    assert tested.high - tested.low == pytest.approx(2 * 1.959964 * math.sqrt(variance), rel=1e-6)
    assert combine_areas(sites[2:]) is None


def test_a_model_compared_with_itself_shows_no_difference():
    targets, scores = draw(1, 60, 2, ties=False)
    found = find_rankings([scores[0], scores[0]], targets, least=2)
    tested = delong_test(Stratum(found.areas[-1], found.covariance[-1], 60))
    assert (tested.difference, tested.p_value) == (0.0, 1.0)


@given(worse=st.integers(0, 60), better=st.integers(0, 60), both=st.integers(0, 50))
def test_mcnemar_is_the_exact_binomial_test(worse, better, both):
    samples = worse + better + both
    tested = mcnemar_test(worse, better, samples)
    if not samples:
        assert math.isnan(tested.p_value)
        return
    expected = binomtest(worse, worse + better).pvalue if worse + better else 1.0
    assert tested.p_value == pytest.approx(expected, abs=1e-12)
    assert tested.difference == pytest.approx((better - worse) / samples)
    assert -1 <= tested.low <= tested.difference <= tested.high <= 1


def test_mcnemar_takes_large_numbers():
    assert mcnemar_test(5200, 4900, 100_000).p_value == pytest.approx(
        binomtest(4900, 10_100).pvalue, rel=1e-6
    )


@given(values=st.lists(st.floats(-100, 100), min_size=2, max_size=40))
def test_the_paired_test_of_errors_is_the_t_test(values):
    array = np.array(values)
    tested = paired_mean_test(array.sum(), (array**2).sum(), len(array))
    if array.std() < 1e-5 * (1 + abs(array.mean())):
        return
    expected = ttest_1samp(array, 0)
    assert tested.p_value == pytest.approx(expected.pvalue, rel=1e-4, abs=1e-9)
    interval = expected.confidence_interval(0.95)
    assert (tested.low, tested.high) == pytest.approx((interval.low, interval.high), rel=1e-4, abs=1e-6)
