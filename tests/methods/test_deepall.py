"""DeepAll against plain training on the pooled samples, and what distinguishes it from a federation."""

from __future__ import annotations

import torch
from literal_clients import assert_state, layout_of, samples_of, start_of, visit

from unseen.methods import METHODS
from unseen.training import LocalTrainingConfig

PLAN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.05, momentum=0.5)


def test_equals_training_on_all_samples_in_one_place(make_uneven_experiment, go):
    """Momentum starts anew in every round, as in a federation."""
    ours, _ = go(make_uneven_experiment("deepall", plan=PLAN), rounds=2)
    experiment = make_uneven_experiment("deepall", plan=PLAN)
    (everything,) = experiment.federation.names
    samples = samples_of(experiment, everything)
    parts = [samples_of(make_uneven_experiment("fedavg"), client) for client in "abc"]
    assert len(samples) == sum(map(len, parts))
    assert sorted(samples.domains.unique().tolist()) == [0, 1, 2], "every source, and not the held-out one"
    state = start_of(experiment)
    for number in (1, 2):
        state = visit(experiment, everything, round=number, start=state).state
    assert_state(ours.weights, state, layout_of(experiment))


def test_pooling_changes_the_outcome_and_says_that_samples_leave(make_experiment, go):
    pooled, _ = go(make_experiment("deepall", plan=PLAN), rounds=2)
    plain, _ = go(make_experiment("fedavg", plan=PLAN), "plain", rounds=2)
    assert (pooled.weights - plain.weights).abs().max() > 1e-3
    assert METHODS["deepall"].of_single_samples == METHODS["deepall"].sends == ("all training data",)


def test_one_source_is_fedavg_up_to_the_order_of_batches(make_experiment, make_tiny_data, go):
    """One batch holds all samples, so that the order, which is drawn per client, does not matter."""
    data = make_tiny_data(("a", "held"))
    plan = LocalTrainingConfig(epochs=3, batch_size=99, lr=0.05, momentum=0.5)
    pooled, _ = go(make_experiment("deepall", data=data, plan=plan), rounds=2)
    plain, _ = go(make_experiment("fedavg", data=data, plan=plan), "plain", rounds=2)
    torch.testing.assert_close(pooled.weights, plain.weights, rtol=1e-5, atol=1e-6)
