"""Tests of a site against simulations: p-values under their null hypotheses, and power beyond them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import mahalanobis
from scipy.stats import chi2, kstest, ncf
from test_moments import moments_of

from unseen.calibration.expected_accuracy import AccuracyEstimate, confidence_sums
from unseen.calibration.histograms import count_bins
from unseen.calibration.moments import Gaussian
from unseen.calibration.site_reference import (
    DISTANCE_EDGES,
    ENERGY_EDGES,
    SiteReference,
    energies,
    find_limit,
    fit_reference,
    left_out_gaussians,
)
from unseen.calibration.site_test import (
    CARE,
    FIT,
    UNFIT,
    SiteDifference,
    compare_site,
    count_p_value,
    judge,
    mean_p_value,
    source_p_values,
)
from unseen.errors import UnseenError

SIZE = 4


def squared_distance(gaussian, mean):
    return float(gaussian.squared_distances(mean[None])[0])


@pytest.mark.parametrize("allowed", [0.0, 0.5])
def test_p_values_of_the_mean_are_uniform_where_the_site_is_as_far_as_allowed(allowed):
    generator = np.random.default_rng(0)
    shift = np.zeros(SIZE)
    shift[0] = np.sqrt(allowed)
    found = []
    for _ in range(400):
        sources = generator.normal(size=(200, SIZE))
        gaussian = Gaussian(sources.mean(axis=0), np.cov(sources.T), len(sources))
        here = (generator.normal(size=(50, SIZE)) + shift).mean(axis=0)
        found.append(mean_p_value(squared_distance(gaussian, here), gaussian, samples=50, allowed=allowed))
    assert kstest(found, "uniform").pvalue > 0.01


def test_p_values_of_the_mean_are_scipys_and_never_leave_their_range():
    gaussian = Gaussian(np.zeros(SIZE), np.eye(SIZE), 100)
    statistic = 20 * 1.25 / SIZE * (100 - SIZE) / 99  # 1 / 20 = 1 / 25 + 1 / 100
    expected = ncf.sf(statistic, SIZE, 100 - SIZE, 20 * 0.7)
    assert mean_p_value(1.25, gaussian, samples=25, allowed=0.7) == pytest.approx(expected)
    for allowed in (0.0, 1e-9, 1e-3, 1.0, 1e4, 1e8):
        for squared in (0.0, 0.5, 2e4, 1e12):
            assert 0 <= mean_p_value(squared, gaussian, samples=10**6, allowed=allowed) <= 1
        assert mean_p_value(allowed / 2, gaussian, samples=10**6, allowed=allowed) > 0.05


def test_false_alarms_by_the_number_of_unusual_samples_are_as_rare_as_they_say():
    generator = np.random.default_rng(1)
    alarms = []
    for _ in range(400):
        limit = find_limit([count_bins(generator.gamma(2, size=60), DISTANCE_EDGES)], DISTANCE_EDGES)
        beyond = int(limit.beyond(generator.gamma(2, size=80)).sum())
        alarms.append(count_p_value(beyond, samples=80, limit=limit) < 0.05)
    assert np.mean(alarms) <= 0.07


def test_a_limit_is_that_of_the_worst_source_or_none_with_too_few_samples():
    near, far = (np.linspace(0.1, top, 100) for top in (1, 2))
    limit = find_limit([count_bins(each, DISTANCE_EDGES) for each in (near, far)], DISTANCE_EDGES)
    assert limit.value == pytest.approx(np.sort(far)[95], rel=0.01) and limit.value >= np.sort(far)[95]
    assert (limit.samples, limit.rank) == (100, 96)
    none = find_limit([count_bins(near[:10], DISTANCE_EDGES)], DISTANCE_EDGES)
    assert none.value is None and not none.beyond(far).any()
    assert count_p_value(5, samples=9, limit=none) == 1


def test_energy_is_high_where_no_class_is_likely():
    logits = np.array([[0.0, 0.0], [10.0, 0.0], [1000.0, 0.0]])
    assert energies(logits) == pytest.approx([-np.log(2), -np.log(np.exp(10) + 1), -1000])


def made_site(generator, centre, *, samples=120):
    features = generator.normal(size=(samples, SIZE)) + centre
    targets = generator.integers(0, 3, samples)
    logits = generator.normal(size=(samples, 3)) + 3 * np.eye(3)[targets]
    return features, logits, targets


def made_reference(sources):
    moments = {name: moments_of(features, logits) for name, (features, logits, _) in sources.items()}
    others = left_out_gaussians(moments)
    scores = {}
    for name, (features, logits, targets) in sources.items():
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        scores[name] = {
            "distance": count_bins(others[name].distances(features), DISTANCE_EDGES),
            "energy": count_bins(energies(logits), ENERGY_EDGES),
            "confidence": confidence_sums(chances, targets),
        }
    return fit_reference(moments, scores)


def compared(reference, site):
    features, logits, _ = site
    beyond = {
        "distance": int(reference.limits["distance"].beyond(reference.gaussian.distances(features)).sum()),
        "energy": int(reference.limits["energy"].beyond(energies(logits)).sum()),
    }
    return compare_site(reference, moments_of(features, logits), beyond, classes=("x", "y", "z"))


@pytest.fixture(scope="module")
def reference():
    generator = np.random.default_rng(2)
    centres = {"a": (-0.5, 0, 0, 0), "b": (0.5, 0, 0, 0), "c": (0, 0.7, 0, 0)}
    return made_reference({name: made_site(generator, centre) for name, centre in centres.items()})


def test_other_samples_of_a_source_are_no_different_and_a_far_site_is(reference):
    generator = np.random.default_rng(3)
    for _ in range(20):
        assert not compared(reference, made_site(generator, (0.5, 0, 0, 0), samples=300)).different
    far = compared(reference, made_site(generator, (0, 0, 3, 0)))
    assert far.different and far.distance > far.allowed
    assert far.features[0].name == "feature 3" and far.features[0].change == pytest.approx(3, abs=0.5)


def test_a_wider_site_of_the_same_mean_is_different(reference):
    features, logits, targets = made_site(np.random.default_rng(4), (0, 0, 0, 0))
    found = compared(reference, (4 * features, logits, targets))
    assert found.p_values["distance"] < 1e-3 and found.different


def test_the_classes_that_moved_are_named(reference):
    features, logits, targets = made_site(np.random.default_rng(5), (0, 0, 0, 0))
    logits = logits + np.array([0, 9, 0])
    assert compared(reference, (features, logits, targets)).classes[0].name == "y"


def test_a_reference_survives_json(reference):
    again = SiteReference.from_dict(reference.to_dict())
    assert again.limits == reference.limits and again.left_out == reference.left_out
    assert again.gaussian.covariance == pytest.approx(reference.gaussian.covariance, rel=1e-9)
    assert again.threshold == reference.threshold and again.accuracy == reference.accuracy
    for change in (
        {"covariance": [1.0]},
        {"within": [1.0]},
        {"means": {"a": [1.0]}},
        {"means": {"x": [0.0] * SIZE}},
    ):
        with pytest.raises(UnseenError, match="unreadable moments"):
            SiteReference.from_dict(reference.to_dict() | change)


def test_with_one_source_there_is_no_yardstick():
    reference = made_reference({"a": made_site(np.random.default_rng(6), (0, 0, 0, 0))})
    assert reference.left_out == {} and reference.allowed == 0
    found = compared(reference, made_site(np.random.default_rng(7), (2, 0, 0, 0)))
    assert found.different and not found.yardstick
    assert "only source" in " ".join(judge(found, None, None, samples=100).reasons)


def test_p_values_of_being_a_source_hold_their_level_whatever_its_spread():
    generator = np.random.default_rng(8)
    spreads = {"narrow": 0.3, "wide": 2.0}
    flags = {name: [] for name in spreads}
    for _ in range(300):
        drawn = {name: made_site(generator, (0, 0, 0, 0), samples=150) for name in spreads}
        scaled = {name: (spreads[name] * features, *more) for name, (features, *more) in drawn.items()}
        found = made_reference(scaled)
        for name, spread in spreads.items():
            features, logits, _ = made_site(generator, (0, 0, 0, 0), samples=60)
            flags[name].append(source_p_values(found, moments_of(spread * features, logits))[name] < 0.05)
    assert all(0.01 < np.mean(each) <= 0.08 for each in flags.values())


def test_the_statistic_of_being_a_source_is_a_mahalanobis_distance_within_sources(reference):
    features, logits, _ = made_site(np.random.default_rng(9), (0.5, 0, 0, 0), samples=90)
    found, own = source_p_values(reference, moments_of(features, logits)), np.cov(features.T)
    squared = mahalanobis(features.mean(axis=0), reference.means["b"], np.linalg.inv(reference.within)) ** 2
    weights = np.linalg.eigvals(np.linalg.solve(reference.within, own)).real
    scale = (weights**2).sum() / weights.sum()
    expected = chi2.sf(squared / (1 / 90 + 1 / 120) / scale, weights.sum() / scale)
    assert found["b"] == pytest.approx(expected, rel=1e-6)


def test_a_domain_between_the_sources_is_new_but_not_different(reference):
    generator = np.random.default_rng(10)
    known = compared(reference, made_site(generator, (0.5, 0, 0, 0), samples=400))
    between = compared(reference, made_site(generator, (0, 0, 0, 0), samples=400))
    assert known.new is False and between.new is True and not between.different
    assert "a new domain" in " ".join(judge(between, None, None, samples=400).reasons)
    assert "source b" in " ".join(judge(known, None, None, samples=400).reasons)
    assert compared(reference, made_site(generator, (5, 0, 0, 0), samples=10)).new is None


def test_models_of_older_versions_have_no_means_of_sources(reference):
    older = {name: value for name, value in reference.to_dict().items() if name not in ("means", "within")}
    found = compared(SiteReference.from_dict(older), made_site(np.random.default_rng(11), (5, 0, 0, 0)))
    assert found.new is None and found.different
    again = SiteReference.from_dict(reference.to_dict())
    assert again.means.keys() == reference.means.keys()
    assert again.within == pytest.approx(reference.within, rel=1e-9)


def difference(p, unusual, distance=1.0):
    return SiteDifference(distance, 1.0, {"distance": unusual}, {"mean": p}, (), (), True)


@pytest.mark.parametrize(
    ("p", "unusual", "expected", "samples", "verdict", "half"),
    [
        (0.5, 0.02, 0.9, 100, FIT, 0.1),
        (0.01, 0.02, 0.9, 100, CARE, 0.1),
        (0.5, 0.02, 0.82, 100, CARE, 0.05),
        (0.5, 0.02, 0.9, 100, CARE, 0.3),
        (0.5, 0.02, 0.9, 5, CARE, 0.1),
        (0.5, 0.02, 0.7, 100, UNFIT, 0.1),
        (0.01, 0.8, 0.9, 100, UNFIT, 0.1),
    ],
)
def test_verdicts(p, unusual, expected, samples, verdict, half):
    estimate = AccuracyEstimate(expected, expected - half, expected + half)
    assert judge(difference(p, unusual), estimate, 0.9, samples=samples).name == verdict


@pytest.mark.parametrize(("p", "verdict"), [(0.001, UNFIT), (0.5, FIT)])
def test_no_estimate_reaches_a_far_site(p, verdict):
    estimate = AccuracyEstimate(0.95, 0.9, 1.0)
    assert judge(difference(p, 0.02, distance=2.1), estimate, 0.9, samples=100).name == verdict


@pytest.mark.parametrize(("measured", "verdict"), [(0.2, UNFIT), (0.82, CARE), (0.88, FIT)])
def test_a_measured_accuracy_counts_instead_of_the_estimate(measured, verdict):
    estimate = AccuracyEstimate(0.9, 0.5, 1.0)
    found = judge(difference(0.5, 0.02), estimate, 0.9, samples=100, measured=measured)
    assert found.name == verdict
