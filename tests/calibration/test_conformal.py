"""Conformal thresholds and sets from histograms, against MAPIE, crepes and literal definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unseen.calibration import (
    ERROR_EDGES,
    SCORE_EDGES,
    Calibration,
    Scaling,
    class_scores,
    count_bins,
    coverage_at,
    quantile_bin,
)
from unseen.calibration.conformal import FREE_CLASSES, PENALTY, SCORES, mean_domain_bin, rule_bins
from unseen.calibration.histograms import from_sparse, to_sparse, upper_edge
from unseen.errors import UnseenError, UsageError

SEEDS = st.integers(0, 1000)


def drawn(seed, samples=120, classes=4, shift=2.0):
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, classes, samples)
    logits = 2 * generator.normal(size=(samples, classes)) + shift * np.eye(classes)[targets]
    chances = np.exp(logits)
    return logits, chances / chances.sum(1, keepdims=True), targets


def true_counts(chances, targets, kind="lac"):
    return count_bins(class_scores(chances, kind)[np.arange(len(targets)), targets], SCORE_EDGES)


@settings(max_examples=15)
@given(seed=SEEDS, promise=st.sampled_from([0.5, 0.8, 0.9, 0.95]), samples=st.integers(1, 200))
def test_quantile_is_the_conformal_one_within_a_bin(seed, promise, samples):
    scores = np.sort(np.random.default_rng(seed).uniform(size=samples))
    found = upper_edge(SCORE_EDGES, quantile_bin(count_bins(scores, SCORE_EDGES), promise))
    rank = math.ceil((samples + 1) * promise - 1e-9)
    if rank > samples:
        assert found is None
    else:
        exact = scores[rank - 1]
        assert exact < found <= exact + 0.004


@settings(max_examples=15)
@given(seed=SEEDS, promise=st.sampled_from([0.8, 0.9, 0.95]))
def test_lac_sets_are_those_of_mapie_up_to_scores_in_the_threshold_s_bin(seed, promise):
    from mapie.conformity_scores import LACConformityScore

    _, chances, targets = drawn(seed)
    scores = LACConformityScore().get_conformity_scores(targets, chances, y_enc=targets)
    assert np.allclose(scores[:, 0], class_scores(chances, "lac")[np.arange(120), targets])
    exact = np.sort(scores[:, 0])[math.ceil(121 * promise - 1e-9) - 1]
    limit = upper_edge(SCORE_EDGES, quantile_bin(true_counts(chances, targets), promise))
    _, fresh, _ = drawn(seed + 5000)
    ours, theirs = class_scores(fresh, "lac") < limit, fresh >= 1 - exact
    between = (1 - fresh > exact) & (1 - fresh < limit)
    assert (ours == (theirs | between)).all()
    assert limit - exact <= 0.004


@settings(max_examples=15)
@given(seed=SEEDS)
def test_intervals_are_those_of_crepes_within_the_stated_width(seed):
    from crepes import ConformalRegressor

    errors = np.random.default_rng(seed).normal(size=100)
    theirs = ConformalRegressor().fit(errors).predict_int(np.zeros(1), confidence=0.9)[0, 1]
    ours = upper_edge(ERROR_EDGES, quantile_bin(count_bins(np.abs(errors), ERROR_EDGES), 0.9))
    assert theirs < ours <= theirs * 1.012


@settings(max_examples=15)
@given(seed=SEEDS)
def test_aps_is_the_mass_before_a_class_and_raps_adds_a_penalty(seed):
    _, chances, _ = drawn(seed, samples=5, classes=5)
    aps, raps = class_scores(chances, "aps"), class_scores(chances, "raps")
    for row, one in enumerate(chances):
        for number, chance in enumerate(one):
            before = one[one > chance].sum()
            rank = 1 + (one > chance).sum()
            assert aps[row, number] == pytest.approx(before, abs=1e-12)
            penalty = PENALTY * max(0, rank - FREE_CLASSES)
            assert raps[row, number] == pytest.approx((before + penalty) / (1 + 3 * PENALTY), abs=1e-12)


@pytest.mark.parametrize("kind", SCORES)
def test_coverage_holds_on_average_for_samples_of_the_same_domain(kind):
    found = []
    for seed in range(80):
        _, chances, targets = drawn(seed, samples=60)
        limit = quantile_bin(true_counts(chances, targets, kind), 0.9)
        _, fresh, truth = drawn(seed + 10_000, samples=100)
        found.append(coverage_at(true_counts(fresh, truth, kind), limit))
    assert 0.89 < np.mean(found) < (0.925 if kind == "lac" else 0.99)


@settings(max_examples=15)
@given(seed=SEEDS, promise=st.sampled_from([0.8, 0.9, 0.95]), kind=st.sampled_from(SCORES))
def test_rules_widen_in_their_order_and_cover_every_source(seed, promise, kind):
    domains = {str(number): true_counts(*drawn(seed + number, shift=number)[1:], kind) for number in range(4)}
    bins = rule_bins(domains, promise)
    assert bins["widened"] >= bins["worst-source"] >= bins["pooled"]
    total = sum(domains.values())
    for own in domains.values():
        assert coverage_at(own, bins["worst-source"]) >= promise
    levels = [coverage_at(total - own, quantile_bin(own, promise)) for own in domains.values()]
    assert coverage_at(total, bins["widened"]) >= max(levels) - 1e-9


def test_widened_needs_the_level_at_which_the_other_source_covers():
    easy, hard = np.zeros(100, dtype=np.int64), np.zeros(100, dtype=np.int64)
    easy[[10, 60]] = 96, 4
    hard[[10, 50, 70]] = 80, 15, 5
    assert rule_bins({"easy": easy, "hard": hard}, 0.9)["pooled"] == 50
    assert rule_bins({"easy": easy}, 0.9)["widened"] == 10
    bins = rule_bins({"easy": easy, "hard": hard}, 0.9)
    # hard's own quantile, bin 50, is the 96 % quantile of easy; of both together that is the bin 60.
    assert (bins["worst-source"], bins["widened"]) == (50, 60)


def test_unseen_domains_count_alike_whatever_their_size():
    large, small = np.array([1000, 0, 0]), np.array([0, 4, 6])
    assert mean_domain_bin([large, small], 0.6) == 1
    assert mean_domain_bin([large, small], 0.9) == 2
    assert rule_bins({"a": large}, 0.6, unseen={"v": small})["unseen"] == 2
    assert "unseen" not in rule_bins({"a": large}, 0.6)


def test_too_few_samples_allow_everything():
    counts = true_counts(*drawn(0, samples=5)[1:])
    assert upper_edge(SCORE_EDGES, quantile_bin(counts, 0.9)) is None


@settings(max_examples=15)
@given(seed=SEEDS)
def test_histograms_survive_json(seed):
    counts = true_counts(*drawn(seed)[1:])
    assert (from_sparse(to_sparse(counts), len(counts)) == counts).all()


@settings(max_examples=15)
@given(seed=SEEDS, kind=st.sampled_from(SCORES))
def test_a_model_s_sets_have_the_coverage_and_size_that_the_histograms_say(seed, kind):
    logits, _, targets = drawn(seed)
    scaling = Scaling("temperature", (0.5,))
    own = Calibration(scaling).probabilities(logits)
    bin = quantile_bin(true_counts(own, targets, kind), 0.9)
    limits = {kind: {"0.9": {"widened": upper_edge(SCORE_EDGES, bin)}}}
    calibration = Calibration.from_dict(Calibration(scaling, limits, {"a": 120}).to_dict())
    sets = calibration.sets(logits, score=kind)
    assert sets[np.arange(120), targets].mean() == coverage_at(true_counts(own, targets, kind), bin)
    assert sets.sum() == count_bins(class_scores(own, kind), SCORE_EDGES)[: bin + 1].sum()
    if kind == "aps":
        assert sets[np.arange(120), logits.argmax(1)].all()


def test_what_a_model_lacks_is_said():
    calibration = Calibration(limits={"error": {"0.9": {"widened": None}}})
    low, high = calibration.intervals(np.zeros(2), score="error")
    assert np.isneginf(low).all() and np.isposinf(high).all()
    with pytest.raises(UsageError, match=r"promise 0\.7; it has: 0\.9"):
        calibration.limit(score="error", promise=0.7)
    with pytest.raises(UnseenError, match="unreadable calibration"):
        Calibration.from_dict({"scaling": {}})
