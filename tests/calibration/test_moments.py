"""Moments of features against numpy and scikit-learn, pooled and summed over clients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import mahalanobis
from sklearn.covariance import oas

from unseen.calibration.measurement import Measurement
from unseen.calibration.moments import MOST_DIMENSIONS, Gaussian, Moments, project


def moments_of(features, logits=None):
    features = np.asarray(features, dtype=float)
    logits = np.zeros((len(features), 1)) if logits is None else logits
    measurement = Measurement("moments", features=features.shape[1])
    return measurement.moments(measurement.sums(logits, np.zeros(0), features), len(features))


@given(
    sizes=st.lists(st.integers(1, 20), min_size=2, max_size=5),
    width=st.sampled_from([1, 3, 90]),
    seed=st.integers(0, 99),
)
@settings(max_examples=20, deadline=None)
def test_the_sum_over_clients_is_that_of_the_pooled_samples(sizes, width, seed):
    features = np.random.default_rng(seed).normal(2, 3, (sum(sizes), width))
    parts = np.split(features, np.cumsum(sizes)[:-1])
    total = sum(map(moments_of, parts[1:]), moments_of(parts[0]))
    pooled = moments_of(features)
    assert isinstance(total, Moments) and total.samples == pooled.samples
    assert total.gaussian.mean == pytest.approx(project(features).mean(axis=0), rel=1e-9, abs=1e-9)
    assert total.feature_std == pytest.approx(features.std(axis=0), rel=1e-6, abs=1e-6)
    assert total.gaussian.covariance == pytest.approx(pooled.gaussian.covariance, rel=1e-9, abs=1e-9)
    assert total.gaussian.distances(features) == pytest.approx(pooled.gaussian.distances(features), rel=1e-9)


def test_mean_and_covariance_are_those_of_numpy_shrunk_as_by_scikit_learn():
    features = np.random.default_rng(0).normal(size=(50, 7)) @ np.diag(np.arange(1.0, 8))
    found = moments_of(features).gaussian
    expected, _ = oas(features)
    assert found.mean == pytest.approx(features.mean(axis=0))
    assert found.covariance == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_distances_are_those_of_scipy_over_the_root_of_the_dimensions():
    generator = np.random.default_rng(1)
    gaussian = moments_of(generator.normal(size=(60, 5))).gaussian
    points = generator.normal(3, 2, (4, 5))
    inverse = np.linalg.inv(gaussian.covariance)
    expected = [mahalanobis(point, gaussian.mean, inverse) / np.sqrt(5) for point in points]
    assert gaussian.distances(points) == pytest.approx(expected)


def test_long_features_are_projected_and_distances_at_home_are_about_one():
    features = np.random.default_rng(2).normal(size=(2000, 3 * MOST_DIMENSIONS))
    gaussian = moments_of(features).gaussian
    assert gaussian.covariance.shape == (MOST_DIMENSIONS, MOST_DIMENSIONS)
    assert (gaussian.distances(features) ** 2).mean() == pytest.approx(1, abs=0.1)
    assert gaussian.distances(features + 2).mean() > 1.5


def test_predictions_are_counted_per_class():
    logits = np.eye(3)[[0, 2, 2, 1, 2]]
    assert moments_of(np.ones((5, 2)), logits).predicted.tolist() == [1, 1, 3]


def test_constant_features_have_a_distance():
    gaussian = moments_of(np.ones((9, 3))).gaussian
    assert np.isfinite(gaussian.distances(np.zeros((1, 3)))).all()
    assert isinstance(gaussian, Gaussian)
