"""What every method must do, whatever it does. The registry names them, so a new file is tested at once."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from tiny_data import fitting_partition
from unseen.callbacks.base import Callback
from unseen.engine import Schedule, ServerLoop
from unseen.engine.workers.pool import WorkerEngine
from unseen.errors import UsageError
from unseen.methods import METHODS, describe_settings, make_method
from unseen.runs.folder import RunFolder
from unseen.training import LocalTrainingConfig

UNTRAINED = "zero-shot"
pytestmark = pytest.mark.parametrize("method", list(METHODS))


def test_two_rounds_train_a_usable_model(method, make_experiment, go):
    if method == UNTRAINED:
        pytest.skip("it has no update: test_zero_shot.py has what is true of it")
    experiment = make_experiment(method)
    sources = experiment.federation.sources
    start = experiment.method.build_for(experiment.network, sources=sources, seed=0)
    before = torch.cat([value.flatten().clone() for value in start.parameters()])
    checkpoint, records = go(experiment, rounds=2)
    assert torch.isfinite(checkpoint.weights).all()
    assert checkpoint.weights.shape == checkpoint.selected.shape
    assert not torch.equal(checkpoint.weights[: len(before)], before)
    events = [record["event"] for record in records.entries]
    assert events.count("round") == 2 and events.count("evaluation") == 2 and "fault" not in events
    splits = {score["split"] for score in records.entries[-1]["scores"]}
    assert splits == {"validation", "target"}


def test_learns_the_sources(method, make_experiment, go):
    if METHODS[method].needs_texts:
        pytest.skip(
            "the towers are frozen, and random ones know no class: their own tests show what is learnt"
        )
    batch_size = 4 if METHODS[method].domains_per_client < 2 else 12  # of three domains
    experiment = make_experiment(
        method, plan=LocalTrainingConfig(epochs=5, batch_size=batch_size, lr=0.05, momentum=0.5)
    )
    _, records = go(experiment, rounds=4)
    last = [record for record in records.entries if record["event"] == "evaluation"][-1]
    accuracies = [score["metrics"]["accuracy"] for score in last["scores"] if score["split"] == "validation"]
    assert sum(accuracies) / len(accuracies) > 0.8


def test_one_client(method, make_experiment, make_tiny_data, go):
    experiment = make_experiment(method, data=make_tiny_data(("a", "held")))
    if METHODS[method].domains_per_client > 1:
        with pytest.raises(UsageError, match=f"{method} compares the domains.* holds only 'a'"):
            go(experiment)
        return
    checkpoint, _ = go(experiment)
    assert torch.isfinite(checkpoint.weights).all()


def test_a_client_with_a_missing_class(method, make_experiment, make_tiny_data, go):
    checkpoint, records = go(make_experiment(method, data=make_tiny_data(missing=("b", 1))))
    assert torch.isfinite(checkpoint.weights).all()
    assert "fault" not in [record["event"] for record in records.entries]


def test_several_clients_a_domain(method, make_experiment, go):
    mixed = METHODS[method].domains_per_client > 1
    partition = replace(fitting_partition(method), kind="mixed" if mixed else "iid", clients_per_domain=2)
    checkpoint, _ = go(make_experiment(method, partition=partition), fraction=0.5)
    assert torch.isfinite(checkpoint.weights).all()


def test_the_order_of_clients_does_not_matter(method, make_experiment, make_tiny_data, go):
    if METHODS[method].topology != "parallel":
        pytest.skip(f"{method} is {METHODS[method].topology}: the order is part of the method")
    if METHODS[method].domains_per_client > 1:
        pytest.skip(f"{method} has clients of several domains, and the order decides which samples they hold")
    one, _ = go(make_experiment(method, data=make_tiny_data(("a", "b", "c", "held"))), "one")
    other, _ = go(make_experiment(method, data=make_tiny_data(("c", "held", "a", "b"))), "other")
    torch.testing.assert_close(one.weights, other.weights, rtol=1e-4, atol=1e-5)


def test_same_seed_same_weights_other_seed_other_weights(method, make_experiment, go):
    if method == UNTRAINED:
        pytest.skip("it has no update: test_zero_shot.py has what is true of it")
    one, _ = go(make_experiment(method), "one")
    again, _ = go(make_experiment(method), "again")
    other, _ = go(make_experiment(method, seed=1), "other")
    assert torch.equal(one.weights, again.weights)
    assert not torch.equal(one.weights, other.weights)


def test_resumed_run_equals_uninterrupted_run(method, make_experiment, go):
    whole, records = go(make_experiment(method), "whole", rounds=3)
    go(make_experiment(method), "parts", rounds=1)
    resumed, resumed_records = go(make_experiment(method), "parts", rounds=3)
    assert torch.equal(whole.weights, resumed.weights)
    assert torch.equal(whole.selected, resumed.selected)
    assert _without_times(records.entries) == _without_times(resumed_records.entries)


def test_workers_give_the_same_bits_as_one_process(method, make_experiment, go, tmp_path):
    if METHODS[method].topology != "parallel":
        pytest.skip(f"{method} is {METHODS[method].topology}: one client trains at a time")
    one, records = go(make_experiment(method), "one")
    experiment, start = make_experiment(method), Schedule(rounds=2)
    loop = ServerLoop(
        experiment,
        RunFolder(tmp_path / "two"),
        start,
        run_id="test",
        make_engine=lambda states: WorkerEngine(experiment, states, workers=2, threads=1, max_clients=3),
        callbacks=Callback(),
    )
    loop.run()
    assert torch.equal(loop.checkpoint.weights, one.weights)
    assert _without_times(loop.records.entries) == _without_times(records.entries)


def test_says_what_it_is(method):
    kind = METHODS[method]
    assert kind.__doc__ and kind.title and kind.summary and kind.paper.title and kind.sends
    assert kind.paper.url.startswith("https://")
    assert kind.title.lower() == method, "a title is the name in the paper's letters"
    assert len(describe_settings(kind.settings_type())) == len(fields(kind.settings_type()))
    assert all(meaning for _, _, meaning in describe_settings(kind.settings_type()))
    assert make_method(method).settings == kind.settings_type()()


def _without_times(entries):
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in entries]
