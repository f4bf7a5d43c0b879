"""The round loop: participation, faults, records."""

from __future__ import annotations

import gc
import math

import pytest
import torch

from unseen.callbacks.base import Callback
from unseen.engine.exchange import Exchange
from unseen.methods.fedavg import FedAvg
from unseen.training import DivergedError


class Sabotaged(FedAvg):
    """FedAvg with clients that send rubbish."""

    victims: tuple[str, ...] = ("b",)

    def client(self, work):
        update = super().client(work)
        if work.client in self.victims:
            update.weights[3] = math.nan
        return update


@pytest.fixture
def sabotaged(make_experiment):
    def make(*victims):
        experiment = make_experiment()
        method = Sabotaged(experiment.method.settings)
        method.victims = victims
        object.__setattr__(experiment, "method", method)
        return experiment

    return make


def test_a_client_that_sends_nan_is_set_aside(sabotaged, make_experiment, make_tiny_data, go):
    checkpoint, records = go(sabotaged("b"), rounds=1)
    faults = [record for record in records.entries if record["event"] == "fault"]
    assert [(fault["client"], fault["round"]) for fault in faults] == [("b", 1)]
    assert "NaN" in faults[0]["reason"]
    without, _ = go(make_experiment(data=make_tiny_data(("a", "c", "held"))), "without", rounds=1)
    assert torch.equal(checkpoint.weights, without.weights)


def test_a_round_without_any_usable_update_fails_with_advice(sabotaged, go):
    with pytest.raises(DivergedError, match=r"round 1.*NaN.*--lr"):
        go(sabotaged("a", "b", "c"))


def test_rounds_leave_no_weights_to_the_garbage_collector(make_experiment, go):
    gc.collect()
    gc.disable()
    try:
        go(make_experiment(), rounds=3)
        assert not [thing for thing in gc.get_objects() if type(thing) is Exchange]
    finally:
        gc.enable()


def test_undeclared_values_may_not_leave_a_client(make_experiment, go, monkeypatch):
    monkeypatch.setattr(FedAvg, "client", lambda self, work: work.update(extras={"faces": torch.zeros(2)}))
    with pytest.raises(ValueError, match="faces"):
        go(make_experiment())


def test_only_a_fraction_takes_part(make_experiment, go):
    _, records = go(make_experiment(), rounds=6, fraction=0.3)
    rounds = [record for record in records.entries if record["event"] == "round"]
    assert [len(record["clients"]) for record in rounds] == [1] * 6
    assert len({record["clients"][0] for record in rounds}) > 1


def test_records_count_samples_and_bytes(make_experiment, go):
    experiment = make_experiment()
    checkpoint, records = go(experiment, rounds=1)
    record = next(record for record in records.entries if record["event"] == "round")
    assert record["samples"] == int(experiment.federation.train_sizes.sum())
    assert record["bytes_up"] == record["bytes_down"] == 3 * 4 * len(checkpoint.weights)


def test_callbacks_count_every_sample(make_experiment, go):
    class Counter(Callback):
        total = expected = 0

        def on_train_start(self, *, first_round, rounds, samples):
            self.expected = rounds * samples

        def on_samples(self, count):
            self.total += count

    counter = Counter()
    go(make_experiment(), rounds=2, callbacks=counter)
    assert counter.total == counter.expected > 0


def test_the_held_out_domain_cannot_influence_training(make_experiment, make_tiny_data, go):
    """Noise in place of the held-out images and labels: same weights, same selected round."""
    data = make_tiny_data()
    noisy = make_tiny_data()
    rows = noisy.indices("held")
    noisy.inputs[rows] = 255 - noisy.inputs[rows]
    noisy.targets[rows] = (noisy.targets[rows] + 1) % 3
    one, _ = go(make_experiment(data=data), "one", rounds=3)
    other, _ = go(make_experiment(data=noisy), "other", rounds=3)
    assert torch.equal(one.weights, other.weights)
    assert torch.equal(one.selected, other.selected)
