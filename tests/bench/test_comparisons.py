"""Sentences say what the numbers allow: winners only where significant, and always over how many pairs."""

from __future__ import annotations

import pytest

from unseen.bench.comparisons import comparison_sentence, difference_text, p_number, p_text
from unseen.bench.statistics import Comparison, expectation_sentence, expected_accuracy, paired_comparison


def say(comparison, **more):
    return comparison_sentence(comparison, ours="CSAC", baseline="FedAvg", **more)


def made(**values):
    given = {"pairs": 18, "missing": 0, "difference": 0.012, "t_p": 0.03, "wilcoxon_p": 0.02, "error": 0.005}
    return Comparison(**{**given, **values})


def test_the_sentence_of_a_winner():
    assert say(made()) == "CSAC beats FedAvg by 1.2 points, p = 0.03, over 18 pairs"
    assert say(made(difference=-0.012)) == "CSAC falls behind FedAvg by 1.2 points, p = 0.03, over 18 pairs"


def test_the_corrected_p_value_decides():
    told = say(made(), corrected_p=0.09, comparisons=3)
    assert told == (
        "No significant difference between CSAC and FedAvg: CSAC is 1.2 points above on average, "
        "p = 0.09 (Holm), over 18 pairs"
    )


def test_a_winner_that_only_one_test_sees_is_doubted():
    assert say(made(wilcoxon_p=0.08)).endswith(
        "Wilcoxon's test, which assumes less, does not confirm it (p = 0.08)"
    )
    assert "so few pairs" in say(made(pairs=4, wilcoxon_p=0.125))


def test_missing_runs_are_told():
    assert "over 12 pairs (6 of 18 pairs lack a finished run)" in say(made(pairs=12, missing=6))


@pytest.mark.parametrize(
    ("ours", "baseline", "told"),
    [
        ({}, {"a": 0.5}, "CSAC and FedAvg cannot be compared: they have no pair of finished runs"),
        ({"a": 0.6}, {"a": 0.5}, "CSAC is 10.0 points above FedAvg in the only pair of runs; one pair shows "
         "nothing about chance"),
        ({"a": 0.5}, {"a": 0.5}, "CSAC is level with FedAvg in the only pair of runs; one pair shows nothing "
         "about chance"),
        ({"a": 0.5, "b": 0.6}, {"a": 0.5, "b": 0.6}, "CSAC and FedAvg are exactly level in all 2 pairs"),
        ({"a": 0.4, "b": 0.5}, {"a": 0.5, "b": 0.6}, "CSAC is 10.0 points below FedAvg in each of 2 pairs; "
         "without spread no t-test can be made"),
        ({"a": 0.5, "b": 0.7}, {"a": 0.7, "b": 0.5}, "No significant difference between CSAC and FedAvg: "
         "equal on average, p = 1, over 2 pairs; 2 pairs are few, so a real difference may hide"),
    ],
)  # fmt: skip
def test_thin_data_is_called_thin(ours, baseline, told):
    assert say(paired_comparison(ours, baseline)) == told


def test_p_values_in_words():
    assert p_text(None) == "no p-value"
    assert p_text(0.00001) == "p < 0.001"
    assert p_number(0.0496) == "0.0496"
    assert p_number(0.049999999) == "0.049999999"
    assert p_number(0.0504) == "0.05"
    assert p_number(0.05) == "0.05"


def test_differences_in_their_unit():
    assert difference_text(0.0123, "accuracy") == "1.2 points"
    assert difference_text(0.0002, "accuracy") == "0.02 points"
    assert difference_text(0.0, "accuracy") == "0.0 points"
    assert difference_text(0.01234, "pearson_r") == "0.0123 in Pearson r"


def test_the_expected_accuracy_by_hand():
    found = expected_accuracy({"a": [0.7, 0.9], "b": [0.6], "c": [0.9, 0.5, 0.7]})
    assert found is not None
    # Domain means 0.8, 0.6, 0.7: mean 0.7, deviation 0.1, and t = 4.3027 for two degrees of freedom.
    assert found.mean == pytest.approx(0.7)
    assert (found.low, found.high) == pytest.approx(
        (0.7 - 0.43027 / 3**0.5, 0.7 + 0.43027 / 3**0.5), abs=1e-5
    )
    assert found.site_low == pytest.approx(0.7 - 0.43027 * (4 / 3) ** 0.5, abs=1e-5)
    assert found.site_high == 1.0
    assert found.domains == 3
    told = expectation_sentence(found, "CSAC")
    assert "expect 70.0\u00a0% on a new site, the mean over 3 held-out domains" in told
    assert "between 45.2\u00a0% and 94.8\u00a0%" in told
    assert "very uncertain" in told


def test_more_seeds_do_not_narrow_the_interval():
    few = expected_accuracy({"a": [0.7], "b": [0.6], "c": [0.8], "d": [0.5]})
    many = expected_accuracy({"a": [0.7] * 9, "b": [0.6] * 9, "c": [0.8] * 9, "d": [0.5] * 9})
    assert few == many


def test_one_domain_gives_no_interval():
    found = expected_accuracy({"a": [0.7, 0.8], "b": []})
    assert found is not None
    assert found.low is None
    assert "no interval" in expectation_sentence(found, "CSAC")
    assert expected_accuracy({}) is None


def test_other_metrics_keep_their_unit_and_bounds():
    found = expected_accuracy({"a": [0.9], "b": [0.1]}, metric="pearson_r")
    assert found is not None
    assert found.site_low == -1.0
    assert "Pearson r 0.5000" in expectation_sentence(found, "FedAvg")
