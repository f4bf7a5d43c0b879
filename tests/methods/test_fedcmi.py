"""FedCMI is FedSR without the length term; test_fedsr.py holds it to the algorithm."""

from __future__ import annotations

import pytest
import torch

from unseen.engine import Workspace
from unseen.errors import UsageError
from unseen.methods import make_method


@pytest.mark.parametrize("reference", ["shared", "local"])
def test_it_is_the_half_of_fedsr_without_the_length(reference, make_experiment, go, rounds_of):
    terms = {"cmi_weight": 0.05, "reference": reference}
    ours, records = go(make_experiment("fedcmi", settings=terms))
    half, _ = go(make_experiment("fedsr", settings=terms | {"l2r_weight": 0}), "half")
    assert torch.equal(ours.weights, half.weights)
    told = rounds_of(records)[-1]["diagnostics"]
    assert set(told) == {"cmi_term", "mean_deviation", "reference_scale"}
    assert min(told["cmi_term"].values()) > 0.1


def test_the_term_moves_the_network_too_and_not_only_the_reference(make_experiment, go):
    def head(weight):
        experiment = make_experiment("fedcmi", settings={"cmi_weight": weight})
        checkpoint, _ = go(experiment, str(weight))
        return Workspace(experiment).flat.layout.tensors(checkpoint.weights)["network.head.weight"]

    assert not torch.allclose(head(0.001), head(0), atol=1e-6)


def test_representations_of_a_class_come_nearer_to_one_another(make_experiment, go):
    """What the bound is for: within a class, less is told of which input it was."""

    def spread_within_classes(weight):
        experiment = make_experiment("fedcmi", settings={"cmi_weight": weight})
        checkpoint, _ = go(experiment, str(weight), rounds=6)
        workspace = Workspace(experiment)
        workspace.flat.load(checkpoint.weights)
        inputs = experiment.prepare.normalize(torch.from_numpy(experiment.data.inputs).permute(0, 3, 1, 2))
        with torch.no_grad():
            _, mean, deviation = workspace.module.represent(inputs, noise=torch.Generator())
        targets = torch.from_numpy(experiment.data.targets)
        within = torch.stack([mean[targets == label].var(0).mean() for label in range(3)]).mean()
        return float(within / deviation.square().mean())

    assert spread_within_classes(0.1) < 0.8 * spread_within_classes(0)


def test_the_paper_s_divergence_has_no_factor(make_experiment):
    names = {}
    for scale in (True, False):
        module = Workspace(make_experiment("fedcmi", settings={"scale": scale})).module
        names[scale] = set(module.state_dict())
    assert names[True] - names[False] == {"reference.scale"}


def test_impossible_settings_are_refused():
    with pytest.raises(UsageError, match="cmi_weight"):
        make_method("fedcmi", {"cmi_weight": -0.1})
    with pytest.raises(UsageError, match="shared"):
        make_method("fedcmi", {"reference": "shard"})
