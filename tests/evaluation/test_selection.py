from __future__ import annotations

import pytest

from unseen.evaluation.selection import mean_metric, select


def _evaluation(number, validation, target, loss=1.0):
    score = lambda domain, split, value: {  # noqa: E731
        "domain": domain, "split": split, "count": 10, "metrics": {"accuracy": value, "loss": loss},
    }  # fmt: skip
    values = [score(f"s{i}", "validation", value) for i, value in enumerate(validation)]
    return {"event": "evaluation", "round": number, "scores": [*values, score("t", "target", target)]}


RECORDS = [
    {"event": "start"},
    _evaluation(1, [0.5, 0.5], 0.9),
    _evaluation(2, [0.9, 0.7], 0.3),
    {"event": "round", "round": 3},
    _evaluation(3, [0.6, 0.6], 0.5),
]


@pytest.mark.parametrize(("rule", "number"), [("source-validation", 2), ("last", 3), ("oracle", 1)])
def test_every_rule_looks_at_its_own_numbers(rule, number):
    chosen = select(RECORDS, rule, "classification")
    assert chosen is not None and chosen["round"] == number


def test_ties_go_to_the_lower_loss_then_to_the_earlier_round():
    tied = [_evaluation(1, [0.5], 0, 0.9), _evaluation(2, [0.5], 0, 0.4), _evaluation(3, [0.5], 0, 0.4)]
    chosen = select(tied, "source-validation", "classification")
    assert chosen is not None and chosen["round"] == 2


def test_a_missing_metric_never_wins():
    records = [_evaluation(1, [None], 0), _evaluation(2, [0.1], 0)]
    chosen = select(records, "source-validation", "classification")
    assert chosen is not None and chosen["round"] == 2


def test_nothing_evaluated_nothing_selected():
    assert select([], "source-validation", "classification") is None


def test_domains_count_alike_whatever_their_size():
    evaluation = _evaluation(1, [1.0, 0.0], 0.5)
    evaluation["scores"][0]["count"] = 1000
    assert mean_metric(evaluation, "validation", "accuracy") == 0.5


def test_honest_rules_do_not_see_the_target():
    """Scrambling the held-out scores changes no choice but the oracle's."""
    scrambled = [
        _evaluation(1, [0.5, 0.5], 0.0),
        _evaluation(2, [0.9, 0.7], 0.9),
        _evaluation(3, [0.6, 0.6], 1.0),
    ]
    for rule in ("source-validation", "last"):
        one, other = select(RECORDS, rule, "classification"), select(scrambled, rule, "classification")
        assert one is not None and other is not None and one["round"] == other["round"]
