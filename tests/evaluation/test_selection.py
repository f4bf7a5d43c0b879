from __future__ import annotations

import pytest

from unseen.evaluation.selection import (
    SELECTION_RULES,
    SelectionRule,
    list_rules,
    mean_metric,
    rule_label,
    rule_names,
    select,
)
from unseen.tasks import TASKS


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


class Spy(SelectionRule):
    """Remembers what it was shown."""

    name, label, summary = "spy", "spy", "remembers what it was shown"

    def __init__(self):
        self.seen = []

    def rank(self, evaluation, metric):
        self.seen.append(evaluation)
        return 0.0, 0.0, evaluation["round"]


@pytest.fixture
def spy(monkeypatch):
    rule = Spy()
    monkeypatch.setitem(SELECTION_RULES._entries, "spy", rule)
    return rule


def _with_groups(evaluation):
    groups = [
        {"split": split, "group": None, "metrics": {"accuracy": 0.5}} for split in ("validation", "target")
    ]
    return {**evaluation, "groups": groups}


def test_a_rule_that_does_not_declare_it_is_handed_no_target_score(spy):
    records = [_with_groups(_evaluation(1, [0.5], 0.9)), _evaluation(2, [0.5], 0.7)]
    assert select(records, "spy", "classification") is records[1], "the record itself, target scores and all"
    assert len(spy.seen) == 2
    for seen in spy.seen:
        assert [score["split"] for score in seen["scores"]] == ["validation"]
        assert all(score["split"] != "target" for score in seen.get("groups", ()))
    assert len(records[0]["scores"]) == len(records[0]["groups"]) == 2, "the records stay whole"


def test_a_rule_that_declares_it_is_handed_target_scores(spy, monkeypatch):
    monkeypatch.setattr(Spy, "uses_target", True)
    select(RECORDS, "spy", "classification")
    assert all(seen["scores"][-1]["split"] == "target" for seen in spy.seen)


def test_only_the_oracle_uses_the_target():
    assert [rule.name for rule in list_rules() if rule.uses_target] == ["oracle"]


def test_tables_list_the_honest_rules_first_and_the_oracle_last(spy):
    names = [rule.name for rule in list_rules()]
    assert names == [
        "source-validation",
        "leave-one-domain-out",
        "validation-domains",
        "spy",
        "last",
        "oracle",
    ]
    assert "leave-one-domain-out" not in rule_names(), "one run cannot apply it"


def test_texts_of_a_rule_follow_from_its_label_unless_given(spy):
    assert (spy.heading, spy.chosen_by, spy.hint) == ("spy", "spy", "round chosen by: spy")
    assert SELECTION_RULES["last"].chosen_by == "none: the last round"
    assert rule_label("of a plugin that is not here") == "of a plugin that is not here"


def test_a_primary_metric_that_is_an_error_is_minimized(monkeypatch):
    monkeypatch.setattr(type(TASKS["regression"]), "primary_metric", "rmse")
    records = [_evaluation(1, [0.5], 0), _evaluation(2, [0.5], 0)]
    records[0]["scores"][0]["metrics"]["rmse"], records[1]["scores"][0]["metrics"]["rmse"] = 1.0, 2.0
    chosen = select(records, "source-validation", "regression")
    assert chosen is not None and chosen["round"] == 1
