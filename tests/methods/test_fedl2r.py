"""FedL2R is FedSR without draws and without a reference; test_fedsr.py holds it to the algorithm."""

from __future__ import annotations

import pytest
import torch

from unseen.errors import UsageError
from unseen.methods import make_method


@pytest.mark.parametrize("model", ["mnist-cnn", "cnn-2"])
def test_weight_zero_is_fedavg_to_the_last_bit(model, make_experiment, go, rounds_of):
    ours, records = go(make_experiment("fedl2r", model=model, settings={"l2r_weight": 0}))
    plain, _ = go(make_experiment("fedavg", model=model), "plain")
    assert torch.equal(ours.weights, plain.weights)
    assert not rounds_of(records)[-1]["diagnostics"]


@pytest.mark.parametrize("squared", [True, False])
def test_it_is_the_deterministic_half_of_fedsr(squared, make_experiment, go):
    terms = {"l2r_weight": 0.1, "squared": squared}
    ours, _ = go(make_experiment("fedl2r", settings=terms))
    half, _ = go(make_experiment("fedsr", settings=terms | {"cmi_weight": 0, "probabilistic": False}), "half")
    assert torch.equal(ours.weights, half.weights)


def test_it_sends_nothing_but_the_network(make_experiment, go):
    ours, _ = go(make_experiment("fedl2r"))
    plain, _ = go(make_experiment("fedavg"), "plain")
    assert len(ours.weights) == len(plain.weights) and not ours.client_states
    assert not torch.allclose(ours.weights, plain.weights, atol=1e-5)
    assert make_method("fedl2r").sends == make_method("fedavg").sends


def test_the_term_shortens_representations(make_experiment, go, rounds_of):
    def length(weight):
        _, records = go(make_experiment("fedl2r", settings={"l2r_weight": weight}), str(weight), rounds=3)
        return rounds_of(records)[-1]["diagnostics"]["l2r_term"]

    free, held = length(1e-9), length(0.3)
    assert all(0 < held[client] < 0.5 * free[client] for client in ("a", "b", "c"))


def test_the_bottleneck_makes_the_representation(make_experiment, go):
    experiment = make_experiment("fedl2r", settings={"bottleneck": True})
    module = experiment.method.build(experiment.network, seed=0)
    inputs = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    z, _, _ = module.represent(inputs, noise=torch.Generator())
    layer = experiment.method.deployed(module).layer
    torch.testing.assert_close(z, experiment.network.features(inputs) @ layer.weight.T + layer.bias)
    assert (z < 0).any() and (experiment.network.features(inputs) >= 0).all()
    checkpoint, _ = go(experiment)
    assert torch.isfinite(checkpoint.weights).all()


def test_regression_works_and_learns(make_experiment, tiny_regression, go, rounds_of):
    _, records = go(make_experiment("fedl2r", data=tiny_regression), rounds=6)
    losses = [record["loss"] for record in rounds_of(records)]
    assert losses[-1] < 0.5 * losses[0]
    assert set(rounds_of(records)[-1]["diagnostics"]) == {"l2r_term"}


def test_settings_of_the_other_half_are_unknown_here():
    with pytest.raises(UsageError, match="cmi_weight"):
        make_method("fedl2r", {"cmi_weight": 0.1})
    with pytest.raises(UsageError, match="l2r_weight"):
        make_method("fedl2r", {"l2r_weight": -0.1})
