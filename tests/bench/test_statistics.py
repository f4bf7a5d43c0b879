"""Statistics against scipy on random data, against examples worked out by hand, and where data is thin."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unseen.bench.statistics import (
    Comparison,
    holm,
    mean_and_error,
    paired_comparison,
    t_quantile,
    wilcoxon_p_value,
)

shares = st.floats(0, 1).map(lambda value: round(value, 6))


def keyed(values):
    return {(f"domain {place % 3}", place // 3): value for place, value in enumerate(values)}


def test_a_comparison_worked_out_by_hand():
    ours = {"a": 0.82, "b": 0.85, "c": 0.88, "d": 0.80}
    baseline = {"a": 0.80, "b": 0.84, "c": 0.85, "d": 0.80}
    found = paired_comparison(ours, baseline)
    # Differences 2, 1, 3, 0 points: mean 1.5, squared deviations 0.25 + 0.25 + 2.25 + 2.25 = 5.
    deviation = math.sqrt(5 / 3)
    t = 1.5 / (deviation / 2)
    x = t / math.sqrt(3)  # Student's distribution with three degrees of freedom in closed form
    tail = 0.5 - (x / (1 + x * x) + math.atan(x)) / math.pi
    assert found.pairs == 4
    assert found.missing == 0
    assert found.difference == pytest.approx(0.015)
    assert found.error == pytest.approx(deviation / 200)
    assert found.effect_size == pytest.approx(1.5 / deviation)
    assert found.t_p == pytest.approx(2 * tail)
    assert found.t_p == pytest.approx(0.1027, abs=5e-5)
    # Three differences are not zero and all are positive: one of eight ways to put signs at either end.
    assert found.wilcoxon_p == pytest.approx(2 / 8)


@given(st.lists(st.tuples(shares, shares), min_size=3, max_size=30))
def test_the_t_test_is_scipys(pairs):
    ours, baseline = map(list, zip(*pairs, strict=True))
    differences = np.subtract(ours, baseline)
    found = paired_comparison(keyed(ours), keyed(baseline))
    if differences.std() < 1e-9:
        return
    expected = stats.ttest_rel(ours, baseline)
    assert found.t_p == pytest.approx(expected.pvalue, rel=1e-6)
    interval = expected.confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.effect_size == pytest.approx(differences.mean() / differences.std(ddof=1))


@given(st.lists(shares, min_size=2, max_size=40))
def test_mean_and_error_are_scipys(values):
    found = mean_and_error(values)
    assert found is not None
    assert found.mean == pytest.approx(np.mean(values))
    assert found.error == pytest.approx(stats.sem(values), abs=1e-15)
    assert found.count == len(values)


@given(st.lists(st.integers(-(10**6), 10**6).filter(bool), min_size=1, max_size=30, unique_by=abs))
def test_wilcoxon_without_ties_is_scipys_exact_test(differences):
    expected = stats.wilcoxon(differences, method="exact").pvalue
    assert wilcoxon_p_value(differences) == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_wilcoxon_with_ties_and_zeros_counts_all_ways_to_put_signs(differences):
    moved = [value for value in differences if value]
    ranks = stats.rankdata([abs(value) for value in moved]) if moved else []
    centre = sum(ranks) / 2
    seen = abs(sum(rank for rank, value in zip(ranks, moved, strict=True) if value > 0) - centre)
    sums = [
        sum(rank for rank, positive in zip(ranks, signs, strict=True) if positive)
        for signs in itertools.product((0, 1), repeat=len(moved))
    ]
    expected = np.mean([abs(value - centre) >= seen - 1e-9 for value in sums])
    assert wilcoxon_p_value(differences) == pytest.approx(expected)


def test_wilcoxon_sees_ties_through_rounding():
    almost = [0.9 - 0.8, 0.8 - 0.7, 0.7 - 0.6, -(0.6 - 0.5)]
    assert len(set(map(abs, almost))) > 1
    assert wilcoxon_p_value(almost) == wilcoxon_p_value([1, 1, 1, -1])


def test_wilcoxon_of_many_pairs_comes_near_the_normal_approximation():
    differences = np.random.default_rng(5).normal(0.1, 1, 400)
    expected = stats.wilcoxon(differences, method="asymptotic").pvalue
    assert wilcoxon_p_value(differences) == pytest.approx(expected, abs=2e-3)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_the_step_down_procedure(p_values):
    corrected = holm(p_values)
    for level in (0.01, 0.05, 0.2, 0.5):
        rejected, order = set(), np.argsort(p_values, kind="stable")
        for step, place in enumerate(order):
            if p_values[place] * (len(p_values) - step) > level:
                break
            rejected.add(int(place))
        assert {place for place, p in enumerate(corrected) if p <= level} == rejected


def test_holm_by_hand():
    assert holm([0.01, 0.04, None, 0.03]) == pytest.approx([0.03, 0.06, None, 0.06])
    assert holm([0.8, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_pairs_count_only_where_both_runs_exist():
    ours = {("a", 0): 0.9, ("a", 1): 0.8, ("b", 0): math.nan, ("c", 0): 0.5}
    baseline = {("a", 0): 0.7, ("a", 1): 0.7, ("b", 0): 0.9, ("d", 0): 0.1}
    found = paired_comparison(ours, baseline)
    assert (found.pairs, found.missing) == (2, 3)
    assert found.difference == pytest.approx(0.15)


def test_without_pairs_nothing_is_claimed():
    found = paired_comparison({"a": 0.5}, {"b": 0.5})
    assert (found.pairs, found.missing, found.t_p, found.wilcoxon_p) == (0, 2, None, None)
    assert math.isnan(found.difference)
    assert not found.same


def test_one_pair_has_a_difference_and_no_test():
    assert paired_comparison({"a": 0.75}, {"a": 0.5}) == Comparison(1, 0, 0.25)


def test_identical_runs_are_the_same():
    found = paired_comparison(keyed([0.1 + 0.2, 0.5]), keyed([0.3, 0.5]))
    assert found.same
    assert (found.difference, found.t_p, found.wilcoxon_p, found.effect_size) == (0.0, 1.0, 1.0, None)


def test_equal_differences_leave_the_t_test_nothing_to_go_by():
    found = paired_comparison(keyed([0.6, 0.7, 0.8]), keyed([0.5, 0.6, 0.7]))
    assert found.t_p is None
    assert found.effect_size is None
    assert found.wilcoxon_p == pytest.approx(0.25)
    assert not found.same


def test_thin_data():
    assert mean_and_error([]) is None
    assert mean_and_error([math.nan]) is None
    single = mean_and_error([0.4, math.nan])
    assert single is not None
    assert (single.mean, single.error, single.count) == (0.4, None, 1)


def test_the_quantile_of_the_tables():
    assert t_quantile(2) == pytest.approx(4.303, abs=5e-4)
    assert t_quantile(10**6) == pytest.approx(1.96, abs=5e-4)
