"""Learning rates in whole rounds: within a round, of the head, and those that react to validation."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from literal_training import assert_same_state, small_network, train_literally
from torch.optim import lr_scheduler

from unseen.engine import RoundStart, SerialEngine, Workspace
from unseen.engine.workers.pool import WorkerEngine
from unseen.errors import UsageError
from unseen.methods import METHODS
from unseen.runs.checkpoint import StateStore
from unseen.training import LocalTrainingConfig
from unseen.training.preprocessing import count_batches

PLAN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.05, momentum=0.5, rounds=2)
PLATEAU = {"gamma": 0.25, "patience": 0, "threshold": 0.9}
"""Falls after nearly every evaluation, since losses hardly ever fall by nine tenths."""


@pytest.fixture
def experiment(make_experiment):
    return lambda plan: replace(make_experiment(plan=plan), network=small_network())


def two_rounds(experiment):
    """Train client 0 in two rounds, each from where the last ended."""
    workspace = Workspace(replace(experiment, network=copy.deepcopy(experiment.network)))
    weights = workspace.flat.read()
    for number in (1, 2):
        weights = workspace.train_client(0, {}, RoundStart(number, weights)).weights
    return weights, workspace.flat.layout


@pytest.mark.parametrize("per", ["epoch", "step"])
@pytest.mark.parametrize("name", ["cosine", "exponential"])
def test_a_rate_within_rounds_equals_torchs_scheduler_in_a_plain_loop(experiment, per, name):
    settings = {"gamma": 0.7} if name == "exponential" else {}
    ready = experiment(replace(PLAN, schedule=name, schedule_settings=settings, schedule_per=per))
    steps = count_batches(len(ready.federation[0].train), PLAN.batch_size)
    total = 2 * PLAN.epochs * (steps if per == "step" else 1)
    expected = train_literally(
        ready,
        optimizer=lambda network: torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.5),
        rounds=2,
        per=per,
        scheduler=lambda descent: (
            lr_scheduler.CosineAnnealingLR(descent, total)
            if name == "cosine"
            else lr_scheduler.ExponentialLR(descent, 0.7)
        ),
    )
    found, layout = two_rounds(ready)
    assert_same_state(found, layout, expected)
    constant, _ = two_rounds(experiment(PLAN))
    assert float((found - constant).norm()) > 1e-3


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_head_has_its_own_rate(experiment, optimizer):
    ready = experiment(replace(PLAN, optimizer=optimizer, head_lr=3.0))

    def descent(network):
        head = {id(value) for value in network.head.parameters()}
        body = [value for value in network.parameters() if id(value) not in head]
        groups = [{"params": body}, {"params": network.head.parameters(), "lr": 0.15}]
        if optimizer == "adam":
            return torch.optim.Adam(groups, lr=0.05)
        return torch.optim.SGD(groups, lr=0.05, momentum=0.5)

    found, layout = two_rounds(ready)
    assert_same_state(found, layout, train_literally(ready, optimizer=descent, rounds=2), atol=2e-5)


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].needs_texts])
def test_every_method_has_a_head_in_its_flat_state(make_experiment, method):
    workspace = Workspace(make_experiment(method, plan=replace(PLAN, head_lr=2.0)))
    covered = sum(place.stop - place.start for place in workspace.head)
    assert 0 < covered < len(workspace.flat.parameters)


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffolds_control_variates_do_not_depend_on_the_heads_rate(make_experiment, option):
    plan = replace(PLAN, epochs=1, batches_per_epoch=1, momentum=0.0, optimizer="sgd-nesterov")
    changes = []
    for rate in (1.0, 5.0):
        ready = make_experiment("scaffold", plan=replace(plan, head_lr=rate), settings={"option": option})
        workspace = Workspace(ready)
        update = workspace.train_client(0, {}, RoundStart(1, workspace.flat.read()))
        changes.append(update.extras["change of the control variate"])
    torch.testing.assert_close(changes[0], changes[1], rtol=1e-3, atol=1e-5)
    assert float(changes[0].norm()) > 0.01


def plateau(make_experiment):
    return make_experiment(plan=replace(PLAN, rounds=4, schedule="plateau", schedule_settings=PLATEAU))


def test_a_plateau_lowers_the_rate_from_the_records_and_survives_a_resume(make_experiment, go):
    whole, records = go(plateau(make_experiment), "whole", rounds=4)
    factors = [r.get("lr_factor", 1.0) for r in records.entries if r["event"] == "round"]
    assert factors[0] == factors[1] == 1 and factors[3] < factors[2] < 1
    go(plateau(make_experiment), "parts", rounds=3)
    resumed, _ = go(plateau(make_experiment), "parts", rounds=4)
    assert torch.equal(whole.weights, resumed.weights)
    plain, _ = go(make_experiment(plan=replace(PLAN, rounds=4)), "plain", rounds=4)
    assert not torch.equal(whole.weights, plain.weights)


def test_a_plateau_without_validation_samples_is_refused(make_experiment, go, monkeypatch):
    ready = plateau(make_experiment)
    monkeypatch.setattr(type(ready), "evaluation_sets", lambda self, *splits: [])
    with pytest.raises(UsageError, match=r"--schedule plateau.*larger --validation"):
        go(ready)


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "plateau", "schedule_settings": PLATEAU},
        {"schedule": "cosine", "schedule_per": "step", "warmup": 1, "head_lr": 2.0},
        {"sharpness": "asam", "clip_norm": 0.5},
    ],
)
def test_workers_train_with_the_same_rates_to_the_bit(make_experiment, tmp_path, options):
    plan = replace(PLAN, **options)
    rows = []
    for workers in (1, 2):
        ready, states = make_experiment(plan=plan), StateStore(tmp_path / str(workers))
        engine = (
            SerialEngine(ready, states)
            if workers == 1
            else WorkerEngine(ready, states, workers=2, threads=1, max_clients=3)
        )
        try:
            start = RoundStart(2, engine.workspace.flat.read(), reaction=0.25)
            rows.append(engine.train((0, 1, 2), start)[0].clone())
        finally:
            engine.close()
    assert torch.equal(*rows)
