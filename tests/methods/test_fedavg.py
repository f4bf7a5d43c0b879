"""FedAvg against its algorithm 1 written out, which every other method's degenerate case is compared with."""

from __future__ import annotations

import pytest
from literal_clients import assert_state, layout_of, mean_state, start_of, visit

from unseen.methods import make_method
from unseen.training import LocalTrainingConfig

PLAN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.05, momentum=0.5, weight_decay=1e-3)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_equals_the_literal_algorithm(weighting, make_uneven_experiment, go):
    """Client b holds fewer samples."""
    settings = {"weighting": weighting}
    ours, _ = go(make_uneven_experiment("fedavg", settings=settings, plan=PLAN), rounds=3)
    experiment = make_uneven_experiment("fedavg", plan=PLAN)
    state = start_of(experiment)
    for number in (1, 2, 3):
        visits = [visit(experiment, client, round=number, start=state) for client in "abc"]
        weights = [each.samples if weighting == "samples" else 1 for each in visits]
        state = mean_state([each.state for each in visits], weights)
    assert_state(ours.weights, state, layout_of(experiment))


def test_averaging_and_its_weights_change_the_outcome(make_uneven_experiment, go):
    def trained(name, method="fedavg", **settings):
        return go(make_uneven_experiment(method, settings=settings, plan=PLAN), name, rounds=2)[0].weights

    by_samples, uniform = trained("samples"), trained("uniform", weighting="uniform")
    assert (by_samples - uniform).abs().max() > 1e-3
    assert (by_samples - trained("cycle", method="cwt")).abs().max() > 1e-3
    assert make_method("fedavg").weighting == "samples"


def test_one_client_is_plain_training(make_experiment, make_tiny_data, go):
    data = make_tiny_data(("a", "held"))
    ours, _ = go(make_experiment("fedavg", data=data, plan=PLAN), rounds=2)
    experiment = make_experiment("fedavg", data=data, plan=PLAN)
    state = start_of(experiment)
    for number in (1, 2):
        state = visit(experiment, "a", round=number, start=state).state
    assert_state(ours.weights, state, layout_of(experiment))
