"""The server's rate and averages over rounds in the loop: what is broadcast, judged, kept and resumed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from unseen.aggregation import make_average
from unseen.engine import SerialEngine
from unseen.evaluation.selection import mean_metric
from unseen.models import Kind
from unseen.privacy import make_protection
from unseen.runs.checkpoint import StateStore

AVERAGES = {
    "ema": make_average("ema", {"beta": 0.6}),
    "swa": make_average("swa", {"start": 0.4}),
    "window": make_average("window", {"size": 2}),
    "swad": make_average("swad", {"n_converge": 2, "n_tolerance": 3, "tolerance": 1.3}),
}
WITH_BATCH_NORM = "resnet10t"
ROUNDS = 5


def evaluations(records):
    return [record for record in records.entries if record["event"] == "evaluation"]


@pytest.fixture
def plain_rounds(make_noisy, go):
    """The weights after every round of a run without an average."""

    return lambda: [go(make_noisy(), "plain", rounds=end)[0].weights for end in range(1, ROUNDS + 1)]


# the server's rate


def test_the_servers_rate_is_a_step_towards_what_the_method_computes(make_experiment, go):
    ours, _ = go(make_experiment(), "ours", rounds=3, server_lr=0.4)
    theirs, _ = go(
        make_experiment("fedavgm", settings={"momentum": 0.0, "server_lr": 0.4}), "theirs", rounds=3
    )
    assert torch.equal(ours.weights, theirs.weights), "FedAvg with a rate is FedAvgM without momentum"


def test_a_rate_of_one_is_no_step_at_all(make_experiment, go):
    one, _ = go(make_experiment(), "one", server_lr=1.0)
    other, _ = go(make_experiment(), "other")
    moved, _ = go(make_experiment(), "moved", server_lr=0.9)
    assert torch.equal(one.weights, other.weights) and not torch.equal(one.weights, moved.weights)


@pytest.mark.parametrize("method", ["fedavgm", "scaffold"])
def test_it_multiplies_the_rate_that_a_method_has_of_its_own(make_experiment, go, method):
    one, _ = go(make_experiment(method, settings={"server_lr": 0.5}), "one", server_lr=0.6)
    other, _ = go(make_experiment(method, settings={"server_lr": 0.3}), "other")
    torch.testing.assert_close(one.weights, other.weights, rtol=1e-5, atol=1e-6)


def test_buffers_are_those_of_the_aggregate_whatever_the_rate(make_experiment, go):
    aggregate, _ = go(make_experiment(model=WITH_BATCH_NORM), "one", rounds=1)
    moved, _ = go(make_experiment(model=WITH_BATCH_NORM), "other", rounds=1, server_lr=1.7)
    layout = SerialEngine(make_experiment(model=WITH_BATCH_NORM), StateStore("unused")).workspace.flat.layout
    for kind in (Kind.FLOAT_BUFFER, Kind.INTEGER_BUFFER):
        place = layout.extent(kind)
        assert place.stop > place.start
        assert torch.equal(aggregate.weights[place], moved.weights[place])
    trained = layout.extent(Kind.PARAMETER)
    assert not torch.allclose(aggregate.weights[trained], moved.weights[trained])


def test_a_serial_method_takes_the_step_once_per_round(make_experiment, go):
    experiment = make_experiment("cwt")
    start = SerialEngine(make_experiment("cwt"), StateStore("unused")).workspace.flat.read()
    visited, _ = go(experiment, "one", rounds=1)
    moved, _ = go(make_experiment("cwt"), "other", rounds=1, server_lr=0.3)
    torch.testing.assert_close(moved.weights, torch.lerp(start, visited.weights, 0.3))


@pytest.mark.parametrize("protect", ["secure-sum", "encrypted"])
def test_it_is_the_same_step_behind_a_protection(make_experiment, go, protect):
    plain, _ = go(make_experiment(), "plain", server_lr=0.5)
    hidden = replace(make_experiment(), protection=make_protection(protect, {"batch_seed": "run"}))
    protected, _ = go(hidden, "protected", server_lr=0.5)
    assert float((plain.weights - protected.weights).norm() / plain.weights.norm()) < 1e-4


# averages over rounds


@pytest.mark.parametrize("name", AVERAGES)
def test_the_average_is_judged_and_the_plain_weights_are_broadcast(make_noisy, go, plain_rounds, name):
    plain = plain_rounds()
    point, records = go(make_noisy(), rounds=ROUNDS, average=AVERAGES[name], selection="last")
    assert torch.equal(point.weights, plain[-1]), "training does not see the average"
    state = {}
    for number, weights in enumerate(plain, start=1):
        AVERAGES[name].collect(state, weights, round=number, rounds=ROUNDS)
        if AVERAGES[name].needs_loss:
            AVERAGES[name].observe(state, evaluations(records)[number - 1]["average"]["loss"])
    expected = AVERAGES[name].mean(state)
    assert torch.equal(point.selected, expected) and not torch.allclose(expected, plain[-1])
    assert set(point.average) == set(state)

    engine = SerialEngine(make_noisy(), StateStore("unused"))
    sets = engine.workspace.experiment.evaluation_sets("validation", "target")
    for score, found in zip(evaluations(records)[-1]["scores"], engine.evaluate(expected, sets), strict=True):
        assert score["metrics"] == found.metrics()


@pytest.mark.parametrize("name", AVERAGES)
def test_the_round_is_selected_by_the_scores_of_the_average(make_noisy, go, name):
    point, records = go(make_noisy(), rounds=ROUNDS, average=AVERAGES[name])
    best = max(
        evaluations(records),
        key=lambda one: (mean_metric(one, "validation", "accuracy"), -mean_metric(one, "validation", "loss")),
    )
    engine = SerialEngine(make_noisy(), StateStore("unused"))
    sets = engine.workspace.experiment.evaluation_sets("validation", "target")
    assert [score["metrics"] for score in best["scores"]] == [
        found.metrics() for found in engine.evaluate(point.selected, sets)
    ]


def test_swad_learns_the_loss_of_the_plain_weights_and_records_what_that_discloses(make_noisy, go):
    _, plain = go(make_noisy(), "plain", rounds=ROUNDS)
    _, records = go(make_noisy(), "swad", rounds=ROUNDS, average=AVERAGES["swad"])
    opened = 0
    for one, other in zip(evaluations(plain), evaluations(records), strict=True):
        assert other["average"]["loss"] == mean_metric(one, "validation", "loss")
        is_open = "first" in other["average"]
        opened += is_open
        assert (other["scores"] == one["scores"]) or is_open
        values = [sum(line["values"] * len(line["from"]) for line in each["left"]) for each in (one, other)]
        assert (values[1] > values[0]) == is_open, "a second evaluation on the sources' validation data"
    assert 0 < opened < ROUNDS
    assert "average" not in evaluations(plain)[0]


@pytest.mark.parametrize("name", AVERAGES)
@pytest.mark.parametrize("place", [("round", 3), ("evaluation", 4)])
def test_a_run_that_crashed_goes_on_to_the_same_bits(make_noisy, go, crash_at, without_times, name, place):
    options = {"rounds": 6, "evaluate_every": 2, "average": AVERAGES[name], "server_lr": 0.8}
    whole, records = go(make_noisy(), "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        go(make_noisy(), "parts", callbacks=crash_at(*place), **options)
    resumed, resumed_records = go(make_noisy(), "parts", **options)
    assert torch.equal(whole.weights, resumed.weights) and torch.equal(whole.selected, resumed.selected)
    assert whole.average.keys() == resumed.average.keys()
    assert all(torch.equal(value, resumed.average[key]) for key, value in whole.average.items())
    assert without_times(records.entries) == without_times(resumed_records.entries)


@pytest.mark.parametrize(
    ("protect", "settings"),
    [
        ("dp-clients", {"noise": 0.5, "clip": 0.1, "noise_seed": "run"}),
        ("secure-sum", {"batch_seed": "run"}),
        ("encrypted", {"batch_seed": "run"}),
    ],
)
def test_averages_work_behind_a_protection_and_change_nothing_that_it_protects(
    make_noisy, go, protect, settings
):
    def protected():
        return replace(make_noisy(), protection=make_protection(protect, settings))

    plain, before = go(protected(), "plain", rounds=3)
    averaged, after = go(protected(), "averaged", rounds=3, average=AVERAGES["ema"], selection="last")
    torch.testing.assert_close(plain.weights, averaged.weights)
    assert not torch.allclose(averaged.selected, averaged.weights)
    for one, other in zip(before.entries, after.entries, strict=True):
        if one["event"] == "round":
            kinds = [[(line["kind"], line["protected"]) for line in each["left"]] for each in (one, other)]
            assert kinds[0] == kinds[1] and one.get("protection") == other.get("protection")


def test_a_method_with_a_larger_module_averages_all_of_it(make_noisy, go):
    point, _ = go(make_noisy("fedadg"), rounds=2, average=AVERAGES["ema"], selection="last")
    assert len(point.selected) == len(point.weights)
    assert not torch.allclose(point.selected, point.weights)
