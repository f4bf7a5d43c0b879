"""FedCLIP and PromptFL are FedAvg on the small part that they put on the frozen towers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from unseen.engine.experiment import Workspace
from unseen.methods import make_method


@pytest.mark.parametrize(("method", "weighting"), [("fedclip", "uniform"), ("promptfl", "samples")])
def test_on_the_same_module_fedavg_gives_the_same_bits(
    method, weighting, make_experiment, make_tiny_data, go
):
    """Client b holds fewer samples, so that weights matter."""
    experiment = make_experiment(method, data=make_tiny_data(missing=("b", 1)))
    ours, _ = go(experiment, rounds=2)
    module = experiment.method.build(experiment.network, seed=experiment.seed)
    fedavg = make_method("fedavg", weighting=weighting)
    plain, _ = go(replace(experiment, network=module, method=fedavg), "plain", rounds=2)
    assert torch.equal(ours.weights, plain.weights)
    assert (ours.weights - Workspace(experiment).flat.read()).abs().max() > 1e-4
