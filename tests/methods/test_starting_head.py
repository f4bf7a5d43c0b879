"""A head in closed form before the first round: what it sets, and that training goes on as without it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from unseen.callbacks.base import Callback
from unseen.engine import Schedule, ServerLoop
from unseen.engine.workers.pool import WorkerEngine
from unseen.errors import UsageError
from unseen.methods import METHODS, make_method
from unseen.methods.closed_form import make_starting_head
from unseen.methods.closed_form.feature_sums import SUMS
from unseen.models import Layout
from unseen.privacy import make_protection
from unseen.runs.folder import RunFolder
from unseen.training import LocalTrainingConfig

TRAINED = [name for name in METHODS if not METHODS[name].own_head and name != "copa"]


@pytest.fixture
def make_headed(make_experiment):
    """Makes experiments whose head starts in closed form."""

    def make(method="fedavg", head="ridge", **options):
        experiment = make_experiment(method, **options)
        return replace(experiment, head=make_starting_head(head, experiment.method))

    return make


def rounds_and_scores(records):
    rounds = [record for record in records.entries if record["event"] == "round"]
    evaluations = [record for record in records.entries if record["event"] == "evaluation"]
    return rounds, evaluations


@pytest.mark.parametrize("head", ["ridge", "class-means"])
def test_round_zero_is_the_closed_form_and_round_one_trains_from_it(head, make_experiment, make_headed, go):
    alone, alone_records = go(make_experiment(head), "alone", rounds=1)
    _, records = go(make_headed(head=head), "headed", rounds=1)
    rounds, evaluations = rounds_and_scores(records)
    assert [each["round"] for each in rounds] == [each["round"] for each in evaluations] == [0, 1]
    _, (only,) = rounds_and_scores(alone_records)
    assert evaluations[0]["scores"] == only["scores"]
    plain = make_experiment("fedavg")
    tensors = Layout.of(plain.network).tensors(alone.weights)
    plain.network.load_state_dict(tensors)
    trained, _ = go(plain, "from the head", rounds=1)
    headed, _ = go(make_headed(head=head), "again", rounds=1)
    assert torch.equal(trained.weights, headed.weights)


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_goes_on_from_the_head(method, make_headed, go):
    plan = LocalTrainingConfig(epochs=1, batch_size=4, lr=1e-4, momentum=0.5)
    checkpoint, records = go(make_headed(method, plan=plan), rounds=2)
    rounds, _ = rounds_and_scores(records)
    assert torch.isfinite(checkpoint.weights).all() and [each["round"] for each in rounds] == [0, 1, 2]
    left = [line["kind"] for line in rounds[0]["left"]]
    assert (SUMS in left) == (METHODS[method].topology != "pooled")
    assert SUMS not in [line["kind"] for each in rounds[1:] for line in each["left"]]


def test_resumed_run_equals_uninterrupted_run(make_headed, go):
    whole, records = go(make_headed("scaffold"), "whole", rounds=3)
    go(make_headed("scaffold"), "parts", rounds=1)
    resumed, others = go(make_headed("scaffold"), "parts", rounds=3)
    assert torch.equal(whole.weights, resumed.weights) and torch.equal(whole.selected, resumed.selected)
    assert len(rounds_and_scores(records)[0]) == len(rounds_and_scores(others)[0]) == 4


def test_a_run_that_ended_right_after_the_head_does_not_repeat_it(make_headed, go, monkeypatch):
    whole, _ = go(make_headed(), "whole", rounds=1)
    train = ServerLoop._train_round

    def fail_in_round_one(loop, number):
        if number == 1:
            raise KeyboardInterrupt
        return train(loop, number)

    with monkeypatch.context() as patched:
        patched.setattr(ServerLoop, "_train_round", fail_in_round_one)
        with pytest.raises(KeyboardInterrupt):
            go(make_headed(), "parts", rounds=1)
    resumed, records = go(make_headed(), "parts", rounds=1)
    assert torch.equal(whole.weights, resumed.weights)
    assert [each["round"] for each in rounds_and_scores(records)[0]] == [0, 1]


def test_workers_and_secure_sum_give_the_same(make_headed, go, tmp_path):
    plain, _ = go(make_headed(), "plain", rounds=1)
    experiment = make_headed()
    with ServerLoop(
        experiment,
        RunFolder(tmp_path / "workers"),
        Schedule(rounds=1),
        run_id="test",
        make_engine=lambda states: WorkerEngine(experiment, states, workers=2, threads=1, max_clients=3),
        callbacks=Callback(),
    ) as loop:
        assert torch.equal(loop.run().weights, plain.weights)
    hidden, _ = go(
        replace(make_headed(), protection=make_protection("secure-sum", {"batch_seed": "run"})),
        "hidden",
        rounds=1,
    )
    torch.testing.assert_close(hidden.weights, plain.weights, rtol=1e-4, atol=1e-5)


def test_a_head_with_parts_for_domains_is_refused(make_headed, go):
    with pytest.raises(UsageError, match="needs one linear head"):
        go(make_headed("copa"), rounds=1)


@pytest.mark.parametrize(
    ("head", "method", "message"),
    [
        ("ridge", "class-means", "computes the head itself"),
        ("fedavg", "fedavg", "start of the head"),
        ("ridg", "fedavg", "ridge"),
    ],
)
def test_wrong_names_are_refused(head, method, message):
    with pytest.raises(UsageError, match=message):
        make_starting_head(head, make_method(method))
