"""Rounds with augmentations inside the network and mixed targets: methods, resuming, worker processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import unseen
from unseen.engine import RoundStart, SerialEngine
from unseen.engine.workers.pool import WorkerEngine
from unseen.errors import UsageError
from unseen.methods import METHODS, make_method
from unseen.runs.checkpoint import StateStore

EVERYTHING = "crop:0.6+flip+colour+trivial-augment+amplitude-mix+mixup+mixstyle:1+efdmix+dsu+rsc+sd"
STYLES = "rand-augment+mixstyle:1+sd"
MIXED = [name for name in METHODS if make_method(name).accepts_mixed_targets]


@pytest.fixture
def make_augmented(make_experiment):
    """Makes an experiment with a list of augmentations."""

    def make(augmentation, method="fedavg", **options):
        experiment = make_experiment(method, **options)
        classes = len(experiment.data.classes)
        return replace(
            experiment, prepare=replace(experiment.prepare, augmentation=augmentation, classes=classes)
        )

    return make


@pytest.mark.parametrize("method", MIXED)
def test_methods_that_accept_mixed_targets_train_on_them(method, make_augmented, go):
    mixed, _ = go(make_augmented("mixup:1+cutmix", method), "mixed", rounds=2)
    plain, _ = go(make_augmented("none", method), "plain", rounds=2)
    assert mixed.weights.isfinite().all()
    assert not torch.equal(mixed.weights, plain.weights)


def test_the_methods_that_need_one_label_per_sample_are_known():
    assert {"fedavg", "fedprox", "scaffold", "copa", "csac", "moon"} <= set(MIXED)
    assert not {"fedadg", "fedsr", "fedcmi", "mdfl"} & set(MIXED)


@pytest.mark.parametrize(
    "method", ["fedavg", "fedprox", "scaffold", "feddg", "fedsr", "fedadg", "mdfl", "moon"]
)
@pytest.mark.parametrize("augmentation", ["mixstyle:1", "sd:1", "rsc"])
def test_methods_train_differently_with_steps_inside_the_network(augmentation, method, make_augmented, go):
    changed, _ = go(make_augmented(augmentation, method), "changed", rounds=1)
    plain, _ = go(make_augmented("none", method), "plain", rounds=1)
    assert changed.weights.isfinite().all()
    assert not torch.equal(changed.weights, plain.weights)


def test_a_method_with_heads_of_its_own_refuses_rsc(make_augmented, go):
    with pytest.raises(UsageError, match="--augment rsc has no effect"):
        go(make_augmented("rsc", "copa"), rounds=1)


@pytest.mark.parametrize("augmentation", [EVERYTHING, STYLES])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(augmentation, make_augmented, go):
    whole, _ = go(make_augmented(augmentation), "whole", rounds=3)
    go(make_augmented(augmentation), "parts", rounds=1)
    resumed, _ = go(make_augmented(augmentation), "parts", rounds=3)
    assert torch.equal(whole.weights, resumed.weights)


def test_workers_send_the_bits_of_one_process(make_augmented, tmp_path):
    engines = [
        SerialEngine(make_augmented(EVERYTHING), StateStore(tmp_path / "one")),
        WorkerEngine(
            make_augmented(EVERYTHING), StateStore(tmp_path / "two"), workers=2, threads=1, max_clients=3
        ),
    ]
    try:
        start = engines[0].workspace.flat.read()
        one, two = (engine.train((0, 1, 2), RoundStart(1, start))[0].clone() for engine in engines)
    finally:
        for engine in engines:
            engine.close()
    assert torch.equal(one, two)
    assert not torch.equal(one[0], start)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"augment": "shift+mixup", "method": "fedsr"}, "fedsr needs one label per sample"),
        ({"augment": "shift+mixup", "protect": "dp-samples"}, "mixup mixes samples, so --protect dp-samples"),
        (
            {"augment": "mixstyle+sd", "protect": "dp-samples"},
            "mixstyle mixes samples, so --protect dp-samples",
        ),
        ({"augment": "mixstyle", "compile": True}, "mixstyle cannot be compiled"),
        ({"augment": "shift+mixstile"}, "Did you mean 'mixstyle'"),
        ({"augment": "mixstyle", "model": "mlp"}, "changes feature maps"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(options, message, tmp_path):
    with pytest.raises(UsageError) as error:
        unseen.train("rotated-digits", hold_out="75", rounds=1, workers=1, out=tmp_path / "run", **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
