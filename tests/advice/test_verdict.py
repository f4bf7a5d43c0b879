"""Advice drawn from standings: the best candidate, or a simpler one that is as good."""

from __future__ import annotations

import statistics

import pytest

from unseen.advice.candidates import CANDIDATES, Candidate, choose_candidates, kind_of_data
from unseen.advice.race import RaceResult, Standing
from unseen.advice.verdict import advise, as_values, list_kinds_that_leave
from unseen.errors import UnseenError, UsageError

ORDER = ["simple", "middle", "costly"]


def standing(
    name: str, scores: list[float], fraction: float = 1.0, *, seeds: int = 1, method: str = "fedavg"
) -> Standing:
    """A candidate's scores on the sources d0, d1, ..., the same with every seed but for a little."""
    found = {(f"d{i}", seed): s + 0.001 * seed for i, s in enumerate(scores) for seed in range(seeds)}
    return Standing(Candidate(name, {"method": method}, ""), fraction, found, seconds=1.0, sent=8.0)


def decide(*standings: Standing):
    ranked = sorted(standings, key=lambda one: (-one.fraction, -one.mean))
    return advise(RaceResult(ranked, {}, "", "accuracy", spent=1.0), ORDER)


def test_a_clear_winner_is_taken_and_its_lead_is_stated():
    found = decide(standing("simple", [0.5, 0.6, 0.7]), standing("costly", [0.62, 0.71, 0.83]))
    assert found.chosen.candidate.name == "costly"
    assert "12.0 points against simple over 3 left-out sources" in found.certainty
    assert "a clear lead" in found.certainty


def test_a_simpler_candidate_within_one_standard_error_is_taken():
    found = decide(standing("simple", [0.60, 0.70, 0.62]), standing("costly", [0.68, 0.65, 0.63]))
    assert found.best.candidate.name == "costly" and found.chosen.candidate.name == "simple"
    assert "take the simple one" in found.reason and "not decided" in found.certainty


def test_short_runs_never_beat_long_ones():
    found = decide(standing("simple", [0.9, 0.9], fraction=0.25), standing("costly", [0.6, 0.7]))
    assert found.chosen.candidate.name == "costly"
    assert "nothing to compare" in found.certainty


def test_a_race_that_ended_early_does_not_decide_for_the_closed_form():
    short = standing("costly", [0.80, 0.81, 0.83], fraction=0.5)
    worse = standing("middle", [0.9, 0.9, 0.9], fraction=0.25)
    found = decide(standing("simple", [0.6, 0.62, 0.61], method="ridge"), short, worse)
    assert found.chosen is short and "at 50% of its length" in found.reason
    assert found.rival is not None and found.rival.candidate.name == "simple"


def test_more_seeds_are_no_more_sources():
    scores = [0.60, 0.70, 0.62], [0.68, 0.75, 0.63]
    one, many = (
        decide(standing("simple", scores[0], seeds=seeds), standing("costly", scores[1], seeds=seeds))
        for seeds in (1, 5)
    )
    assert one.against is not None and many.against is not None
    assert many.against.pairs == one.against.pairs == 3
    assert many.against.t_p == pytest.approx(one.against.t_p)
    values = as_values(many, data="d", common={})["candidates"][0]
    assert len(values["left_out"]) == 15
    assert values["standard_error"] == pytest.approx(statistics.stdev(scores[1]) / 3**0.5)


def test_the_best_of_many_needs_a_larger_lead():
    ours, theirs = [0.700, 0.710, 0.720, 0.730], [0.690, 0.690, 0.700, 0.710]
    alone = decide(standing("simple", theirs), standing("costly", ours))
    assert alone.against is not None and 0.005 < alone.against.t_p < 0.05
    assert "a clear lead, also as the best of 2" in alone.certainty
    order = [f"rival {number}" for number in range(9)]
    rivals = [standing(name, theirs) for name in order]
    ranked = sorted([*rivals, standing("costly", ours)], key=lambda one: -one.mean)
    among_ten = advise(RaceResult(ranked, {}, "", "accuracy", spent=1.0), [*order, "costly"])
    assert among_ten.chosen.candidate.name == "costly"
    assert "not decided, since it is the best of 10" in among_ten.certainty


def test_a_head_in_closed_form_leaves_more_than_weights():
    found = {one.name: list_kinds_that_leave(one) for one in CANDIDATES["photographs"]}
    assert found["last stage"] == ["model weights", "number of samples"]
    assert {"feature sums", "validation feature sums"} < {*found["last stage, ridge head"]}


def test_values_name_what_leaves_and_a_command():
    found = decide(standing("simple", [0.5, 0.6]), standing("costly", [0.7, 0.9]))
    values = as_values(found, data="my data", common={"image_size": 64})
    assert values["command"] == "unseen train 'my data' --image-size 64 --method fedavg"
    assert values["candidates"][0]["leaves"] == ["model weights", "number of samples"]


@pytest.mark.parametrize("kind", CANDIDATES)
def test_every_candidate_is_a_run_of_one_length(kind):
    """At equal effort the trained candidates take the same steps, so that a race compares like with like."""
    side = {"photographs": 128, "small images": 16, "table": 0}[kind]
    common = {"data": "rotated-digits", **({"image_size": side} if side else {})}
    steps = {}
    for candidate in CANDIDATES[kind]:
        if candidate.is_closed_form:
            continue
        options = candidate.options(common, fraction=0.5)
        length = options.get("rounds"), options.get("local_epochs"), options.get("batches_per_epoch")
        steps.setdefault(candidate.given.get("effort"), set()).add(length)
        if candidate.method == "csac":
            assert options["settings"]["acquisition_epochs"] == 1
    assert all(len(lengths) == 1 for lengths in steps.values()), steps


def test_a_warm_up_stays_the_same_part_of_a_shorter_run():
    whole = next(one for one in CANDIDATES["photographs"] if one.name == "whole network")
    common = {"data": "rotated-digits", "image_size": 128}
    full, half = whole.options(common), whole.options(common, fraction=0.5)
    assert half["rounds"] * 2 == full["rounds"] and half["warmup"] == full["warmup"] == 0.1


def test_long_candidates_wait_for_long_races():
    short = [one.name for one in choose_candidates("photographs", None, minutes=30)]
    long = [one.name for one in choose_candidates("photographs", None, minutes=120)]
    assert set(long) - set(short) == {"whole network"}


def test_one_line_for_wrong_names():
    with pytest.raises(UnseenError, match="ridge"):
        choose_candidates("table", ["rigde", "FedAvg"], minutes=1)
    with pytest.raises(UsageError, match="at least two"):
        choose_candidates("table", ["ridge"], minutes=1)
    assert kind_of_data(is_image=True, side=28) == "small images"
