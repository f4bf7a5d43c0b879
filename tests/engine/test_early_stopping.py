"""Early stopping: after which evaluation a run ends, what says so, and what may never decide it."""

from __future__ import annotations

import pytest
import torch

from unseen.aggregation import make_average
from unseen.config import RunConfig
from unseen.errors import UsageError
from unseen.evaluation.selection import evaluations_since_best, select

ROUNDS, PATIENCE = 20, 2


def events(records, kind):
    return [record for record in records.entries if record["event"] == kind]


def test_a_run_ends_after_its_patience_and_keeps_the_best_round(make_noisy, go):
    whole, every = go(make_noisy(), "whole", rounds=ROUNDS)
    point, records = go(make_noisy(), "early", rounds=ROUNDS, patience=PATIENCE)
    (stop,) = events(records, "stop")
    assert point.round == stop["round"] < ROUNDS == stop["rounds"]
    assert "--patience" in stop["reason"]
    best = select(records.entries, "source-validation", "classification")
    assert stop["round"] == best["round"] + PATIENCE
    for end in range(1, point.round):
        seen = [record for record in every.entries if record.get("round", 0) <= end]
        assert evaluations_since_best(seen, "source-validation", "classification") < PATIENCE
    kept, _ = go(make_noisy(), "until the best", rounds=best["round"])
    assert torch.equal(point.selected, kept.selected)
    assert not torch.equal(point.weights, whole.weights)


def test_patience_counts_evaluations_and_not_rounds(make_noisy, go):
    _, records = go(make_noisy(), rounds=ROUNDS, patience=PATIENCE, evaluate_every=2)
    best = select(records.entries, "source-validation", "classification")
    (stop,) = events(records, "stop")
    assert stop["round"] == best["round"] + 2 * PATIENCE
    assert events(records, "round")[-1]["round"] == stop["round"]


def test_a_run_that_reaches_its_last_round_did_not_stop_early(make_noisy, go):
    point, records = go(make_noisy(), rounds=3, patience=ROUNDS)
    assert point.round == 3 and not events(records, "stop")
    _, records = go(make_noisy(), "as long", rounds=ROUNDS, patience=PATIENCE)
    (stop,) = events(records, "stop")
    _, records = go(make_noisy(), "exactly", rounds=stop["round"], patience=PATIENCE)
    assert not events(records, "stop")


def test_a_stopped_run_does_not_go_on_when_it_is_resumed(make_noisy, go):
    point, records = go(make_noisy(), rounds=ROUNDS, patience=PATIENCE)
    before = list(records.entries)
    again, records = go(make_noisy(), rounds=ROUNDS, patience=PATIENCE)
    assert records.entries == before and again.round == point.round
    assert torch.equal(again.selected, point.selected)


@pytest.mark.parametrize("event", ["evaluation", "stop"])
def test_a_crash_before_the_last_checkpoint_gives_the_same_end(
    make_noisy, go, crash_at, without_times, event
):
    point, records = go(make_noisy(), "whole", rounds=ROUNDS, patience=PATIENCE)
    with pytest.raises(KeyboardInterrupt):
        go(make_noisy(), "parts", rounds=ROUNDS, patience=PATIENCE, callbacks=crash_at(event, point.round))
    resumed, resumed_records = go(make_noisy(), "parts", rounds=ROUNDS, patience=PATIENCE)
    assert torch.equal(point.selected, resumed.selected)
    assert without_times(records.entries) == without_times(resumed_records.entries)


def test_the_held_out_domain_cannot_decide_when_a_run_ends(make_noisy, go):
    """Other images and labels of the held-out domain: other scores on it, the same end, the same model."""
    options = {"rounds": ROUNDS, "patience": PATIENCE}
    one, records = go(make_noisy(), "one", **options)
    other, others = go(make_noisy(other_target=True), "other", **options)
    on_target = [
        [score for score in each["scores"] if score["split"] == "target"]
        for found in (records, others)
        for each in events(found, "evaluation")
    ]
    half = len(on_target) // 2
    assert on_target[:half] != on_target[half:]
    assert events(records, "stop") == events(others, "stop")
    assert torch.equal(one.selected, other.selected)


def test_rules_that_use_the_target_or_nothing_do_not_combine_with_patience():
    digits = {"data": "rotated-digits", "hold_out": "75", "patience": 3}
    with pytest.raises(UsageError, match=r"--selection oracle: it looks at the held-out domain"):
        RunConfig.from_mapping({**digits, "selection": "oracle"})
    with pytest.raises(UsageError, match=r"--selection last: it prefers every round"):
        RunConfig.from_mapping({**digits, "selection": "last"})
    with pytest.raises(UsageError, match="--patience must be at least 1, not 0"):
        RunConfig.from_mapping({**digits, "patience": 0})
    assert RunConfig.from_mapping(digits).patience == 3


def test_a_run_ends_when_the_window_of_swad_closes(make_noisy, go):
    average = make_average("swad", {"n_converge": 2, "n_tolerance": 3, "tolerance": 1.01})
    point, records = go(make_noisy(), rounds=ROUNDS, average=average, selection="last")
    (stop,) = events(records, "stop")
    window = events(records, "evaluation")[-1]["average"]
    assert stop["reason"] == f"SWAD's window, rounds {window['first']} to {window['last']}, is closed"
    assert point.round == stop["round"] == window["last"] + 3
    rows = [go(make_noisy(), "plain", rounds=end)[0].weights for end in range(1, window["last"] + 1)]
    torch.testing.assert_close(point.selected, torch.stack(rows[window["first"] - 1 :]).mean(dim=0))
