"""Every method in bfloat16: forward passes are rounded, losses and whatever methods compute are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from unseen.methods import METHODS
from unseen.training.precision import has_bfloat16

pytestmark = pytest.mark.skipif(not has_bfloat16(), reason="this processor has no bfloat16")


@pytest.mark.parametrize("method", [name for name in METHODS if name != "zero-shot"])
def test_every_method_trains_and_evaluates_in_bfloat16(method, make_experiment, go):
    """The same rounds as in float32 but for rounding: finite, close, and not the same."""
    plain = make_experiment(method)
    rounded = replace(make_experiment(method), prepare=replace(plain.prepare, precision="bfloat16"))
    exact, _ = go(plain, "exact", rounds=2)
    checkpoint, records = go(rounded, "rounded", rounds=2)
    again, _ = go(
        replace(make_experiment(method), prepare=replace(plain.prepare, precision="bfloat16")),
        "again",
        rounds=2,
    )
    assert torch.isfinite(checkpoint.weights).all()
    assert torch.equal(checkpoint.weights, again.weights)
    assert not torch.equal(checkpoint.weights, exact.weights)
    assert "fault" not in [record["event"] for record in records.entries]
    trained = float((exact.weights - checkpoint.weights).norm() / exact.weights.norm())
    assert trained < 0.2


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].needs_texts])
def test_every_method_trains_a_network_of_the_zoo_in_bfloat16(method, make_experiment, make_tiny_data, go):
    data = make_tiny_data()
    larger = replace(data, inputs=data.inputs.repeat(4, axis=1).repeat(4, axis=2), fingerprint="")
    experiment = make_experiment(method, data=larger, model="test_resnet")
    experiment = replace(experiment, prepare=replace(experiment.prepare, precision="bfloat16"))
    checkpoint, records = go(experiment, rounds=1)
    assert torch.isfinite(checkpoint.weights).all()
    assert "fault" not in [record["event"] for record in records.entries]
