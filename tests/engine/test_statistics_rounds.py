"""Rounds with frozen and with pooled batch norm: every method, secure sums, resuming, worker processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import unseen
from unseen.engine import RoundStart, SerialEngine
from unseen.engine.workers.pool import WorkerEngine
from unseen.errors import UsageError
from unseen.methods import METHODS
from unseen.models import FlatState, Kind, StagedNetwork, freeze_statistics
from unseen.privacy import make_protection
from unseen.runs.checkpoint import StateStore
from unseen.seeding import global_torch_seed

TRAINED = [name for name in METHODS if not METHODS[name].needs_texts]
AVERAGING = [
    name for name in TRAINED if METHODS[name].topology == "parallel" and not METHODS[name].keeps_statistics
]


@pytest.fixture
def make_normed(make_experiment):
    """Makes an experiment with a small batch-norm network and a choice for its statistics."""

    def make(choice, method="fedavg", *, protect="none", **options):
        with global_torch_seed(3, "test network"):
            stages = {
                "conv": nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
                "hidden": nn.Sequential(nn.Flatten(), nn.Linear(54, 12), nn.ReLU()),
            }
            network = StagedNetwork(stages, head=nn.Linear(12, 3), taps=("conv",))
            stages["conv"][1].running_mean.uniform_(-1, 1)
        if choice == "frozen":
            freeze_statistics(network)
        return replace(
            make_experiment(method, **options),
            network=network,
            batch_norm=choice,
            protection=make_protection(protect, {"batch_seed": "run"} if protect == "secure-sum" else {}),
        )

    return make


def buffers(layout, weights):
    return {entry.name: entry.view(weights) for entry in layout.entries if entry.kind is not Kind.PARAMETER}


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_trains_with_frozen_batch_norm_and_leaves_the_statistics(method, make_normed, go):
    experiment = make_normed("frozen", method)
    module = experiment.method.build_for(
        experiment.network, sources=experiment.federation.sources, seed=experiment.seed
    )
    flat = FlatState(module)
    start = flat.read()
    checkpoint, _ = go(experiment, rounds=2)
    assert not torch.equal(checkpoint.weights, start)
    before, after = buffers(flat.layout, start), buffers(flat.layout, checkpoint.weights)
    frozen = [name for name in before if "conv.1." in name]
    assert len(frozen) == 3
    assert all(torch.equal(before[name], after[name]) for name in frozen)


@pytest.mark.parametrize("method", AVERAGING)
def test_every_averaging_method_trains_with_pooled_statistics(method, make_normed, go):
    pooled, _ = go(make_normed("pooled", method), "pooled", rounds=2)
    plain, _ = go(make_normed("train", method), "plain", rounds=2)
    assert torch.isfinite(pooled.weights).all()
    assert not torch.equal(pooled.weights, plain.weights)


def test_the_first_round_merges_the_moments_that_clients_computed(make_normed, go, tmp_path):
    experiment = make_normed("train")
    engine = SerialEngine(experiment, StateStore(tmp_path / "states"))
    rows, replies = engine.train((0, 1, 2), RoundStart(1, engine.workspace.flat.read()))
    own = [buffers(engine.workspace.flat.layout, row) for row in rows.double()]
    sizes = torch.tensor([float(reply.update.samples) for reply in replies], dtype=torch.float64)
    share = sizes / sizes.sum()
    mean = sum(p * one["stages.conv.1.running_mean"] for p, one in zip(share, own, strict=True))
    within = sum(p * one["stages.conv.1.running_var"] for p, one in zip(share, own, strict=True))
    between = sum(
        p * (one["stages.conv.1.running_mean"] - mean).square() for p, one in zip(share, own, strict=True)
    )
    layout = engine.workspace.flat.layout
    pooled = buffers(layout, go(make_normed("pooled"), "pooled", rounds=1)[0].weights)
    averaged = buffers(layout, go(make_normed("train"), "averaged", rounds=1)[0].weights)
    name = "stages.conv.1.running_var"
    torch.testing.assert_close(pooled[name].double(), within + between, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(averaged[name].double(), within, rtol=1e-5, atol=1e-6)
    assert between.max() > 1e-3, "clients differ"


def test_secure_sums_merge_moments_as_plain_runs_do(make_normed, go):
    plain, _ = go(make_normed("pooled"), "plain", rounds=2)
    masked, _ = go(make_normed("pooled", protect="secure-sum"), "masked", rounds=2)
    assert not torch.equal(plain.weights, masked.weights)
    numbers = slice(0, -1)  # the batch counter is a rounded mean there
    torch.testing.assert_close(plain.weights[numbers], masked.weights[numbers], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("choice", ["frozen", "pooled"])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(choice, make_normed, go):
    whole, _ = go(make_normed(choice, "fedga"), "whole", rounds=3)
    go(make_normed(choice, "fedga"), "parts", rounds=1)
    resumed, _ = go(make_normed(choice, "fedga"), "parts", rounds=3)
    assert torch.equal(whole.weights, resumed.weights)


@pytest.mark.parametrize("choice", ["frozen", "pooled"])
def test_workers_send_the_bits_of_one_process(choice, make_normed, tmp_path):
    engines = [
        SerialEngine(make_normed(choice), StateStore(tmp_path / "one")),
        WorkerEngine(make_normed(choice), StateStore(tmp_path / "two"), workers=2, threads=1, max_clients=3),
    ]
    try:
        start = engines[0].workspace.flat.read()
        one, two = (engine.train((0, 1, 2), RoundStart(1, start))[0].clone() for engine in engines)
    finally:
        for engine in engines:
            engine.close()
    assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"method": "fedbn"}, "keeps every client's own batch norm"),
        ({"method": "cwt"}, "nothing is averaged"),
        ({"update_dtype": "float16"}, "too coarse"),
    ],
)
def test_pooled_statistics_are_refused_where_they_make_no_sense(options, reason, make_tiny_data, tmp_path):
    with pytest.raises(UsageError, match=reason):
        unseen.train(
            make_tiny_data(),
            hold_out="held",
            batch_norm="pooled",
            batch_size=4,
            out=tmp_path / "run",
            **options,
        )


def test_a_whole_run_records_the_choice_and_saves_a_plain_model(make_tiny_data, tmp_path):
    result = unseen.train(
        make_tiny_data(),
        hold_out="held",
        model="resnet18",
        batch_norm="frozen",
        rounds=1,
        batches_per_epoch=1,
        batch_size=4,
        out=tmp_path / "run",
    )
    assert 'batch_norm = "frozen"' in (result.folder / "config.toml").read_text()
    saved = result.model.network
    assert torch.equal(saved.body.bn1.running_mean, torch.zeros(64))
    assert type(saved.body.bn1).__name__.startswith("BatchNorm"), "only training needs the marks"


def test_differential_privacy_takes_batch_norm_that_is_frozen(make_tiny_data, tmp_path):
    result = unseen.train(
        make_tiny_data(),
        hold_out="held",
        model="resnet18",
        batch_norm="frozen",
        rounds=1,
        batches_per_epoch=1,
        batch_size=2,
        protect="dp-samples",
        out=tmp_path / "run",
    )
    assert torch.equal(result.model.network.body.bn1.running_var, torch.ones(64))
