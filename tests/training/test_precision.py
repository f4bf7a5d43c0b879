"""Precision and compilation: what is chosen is what computes, and it is refused where it cannot serve."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace

import pytest
import torch

import unseen
from unseen.engine.experiment import Workspace
from unseen.engine.workers.worker import own_device
from unseen.errors import UnseenError, UsageError
from unseen.fileio import cache_folder
from unseen.models import InputSpec, blocked_maps, build_model, set_precision
from unseen.privacy import make_protection
from unseen.training import check_precision, choose_precision, precision
from unseen.training.precision import (
    Bfloat16Speed,
    layer_with_tiny_maps,
    probe_processor,
    processor_speed,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda")
supported = pytest.mark.skipif(not precision.has_bfloat16(), reason="this processor has no bfloat16")


@pytest.fixture
def speed(monkeypatch):
    """Replace what was measured on this processor."""

    def put(speedup, reason=""):
        monkeypatch.setattr(precision, "processor_speed", lambda: Bfloat16Speed(speedup, reason))

    return put


@supported
@pytest.mark.parametrize("model", ["mnist-cnn", "mini-vit", "resnet18"])
def test_the_extractor_computes_in_bfloat16_and_returns_float32(model):
    network = build_model(model, InputSpec((3, 32, 32), 3), seed=0).eval()
    exact, inputs = copy.deepcopy(network), torch.randn(4, 3, 32, 32)
    set_precision(network, "bfloat16")
    seen = []
    network.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    with blocked_maps():
        rounded, plain = network.full(inputs), exact.full(inputs)
    assert rounded.logits.dtype == rounded.features.dtype == torch.float32
    assert all(tap.dtype is torch.float32 for tap in rounded.taps)
    assert seen == [torch.float32], "the head is exact"
    assert not torch.equal(rounded.features, plain.features)
    gap = (rounded.features - plain.features).norm() / plain.features.norm()
    assert gap < 0.05
    network.train()(inputs).sum().backward()
    assert all(value.grad.dtype is torch.float32 for value in network.parameters() if value.grad is not None)


def test_float32_networks_are_left_alone():
    network = build_model("mnist-cnn", InputSpec((3, 8, 8), 3), seed=0).eval()
    inputs = torch.randn(2, 3, 8, 8)
    assert torch.equal(network.features(inputs), network.extract(inputs)[0])
    assert network.precision == "float32"


@supported
def test_copies_and_pickles_keep_the_precision():
    network = build_model("mnist-cnn", InputSpec((3, 8, 8), 3), seed=0)
    set_precision(network, "bfloat16")
    assert copy.deepcopy(network).precision == pickle.loads(pickle.dumps(network)).precision == "bfloat16"


@supported
def test_gradients_of_single_samples_in_bfloat16(make_experiment, go):
    pytest.importorskip("opacus")
    experiment = make_experiment("fedavg")
    experiment = replace(
        experiment,
        prepare=replace(experiment.prepare, precision="bfloat16"),
        protection=make_protection("dp-samples", {"noise": 0.1, "noise_seed": "run", "delta": 1e-5}),
    )
    assert torch.isfinite(go(experiment, rounds=1)[0].weights).all()


@supported
def test_a_run_records_bfloat16_and_saves_a_float32_model(make_tiny_data, tmp_path, monkeypatch, speed):
    speed(2.0)
    monkeypatch.setattr(precision, "_is_large", lambda *_: True)
    monkeypatch.setattr(precision, "_is_convolutional", lambda *_: True)
    options = {"hold_out": "held", "rounds": 1, "batch_size": 4, "workers": 1, "precision": "auto"}
    result = unseen.train(make_tiny_data(), out=tmp_path / "run", **options)
    assert 'precision = "bfloat16"' in (result.folder / "config.toml").read_text()
    assert result.model.network.precision == "float32"
    assert {value.dtype for value in result.model.network.parameters()} == {torch.float32}
    speed(0.5)
    again = unseen.train(make_tiny_data(), out=tmp_path / "run", resume=True, **options)
    assert again.values["run_id"] == result.values["run_id"], "a run that is resumed keeps its precision"


@supported
def test_what_a_run_records_is_what_the_saved_model_predicts_but_for_rounding(make_tiny_data, tmp_path):
    data = make_tiny_data(per_class=24)
    result = unseen.train(
        data,
        hold_out="held",
        rounds=3,
        batch_size=4,
        lr=0.05,
        workers=1,
        precision="bfloat16",
        out=tmp_path / "run",
    )
    rows = data.indices("held")
    images = torch.from_numpy(data.inputs[rows]).permute(0, 3, 1, 2) / 255
    network = result.model.network.eval()
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (network.pixel_mean, network.pixel_std))
    with torch.inference_mode():
        predicted = network((images - mean) / std).argmax(1)
    accuracy = float((predicted == torch.from_numpy(data.targets[rows])).double().mean())
    assert accuracy == pytest.approx(result.metrics["target"]["accuracy"], abs=0.03)


@supported
def test_augmentation_inside_the_network_computes_in_float32(make_experiment, go):
    experiment = make_experiment("fedavg")
    prepare = replace(experiment.prepare, precision="bfloat16", augmentation="mixstyle")
    assert torch.isfinite(go(replace(experiment, prepare=prepare), rounds=1)[0].weights).all()


def test_auto_chooses_bfloat16_only_where_it_gains(speed):
    shape = (3, 64, 64)
    large, *others = (
        {"network": build_model(name, InputSpec(shape, 3), seed=0), "input_shape": shape}
        for name in ("resnet18", "mini-vit", "mnist-cnn", "efficientnet-lite0", "vit-tiny")
    )
    speed(1.9)
    assert choose_precision("auto", CPU, **large) == "bfloat16"
    assert {choose_precision("auto", CPU, **other) for other in others} == {"float32"}
    assert choose_precision("auto", CPU, **{**large, "input_shape": (3, 32, 32)}) == "float32"
    assert choose_precision("auto", torch.device("mps"), **large) == "float32"
    assert choose_precision("float32", CPU, **large) == "float32"
    assert choose_precision("bfloat16", CPU, **others[0]) == "bfloat16"
    speed(1.05)
    assert choose_precision("auto", CPU, **large) == "float32"
    speed(0.0, "crashed")
    assert choose_precision("auto", CPU, **large) == "float32"


@pytest.mark.parametrize("able", [True, False])
def test_a_gpu_decides_by_what_it_supports(able, monkeypatch):
    network = build_model("resnet18", InputSpec((3, 64, 64), 3), seed=0)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: able)
    chosen = choose_precision("auto", GPU, network=network, input_shape=(3, 64, 64))
    assert chosen == ("bfloat16" if able else "float32")


def test_strides_larger_than_the_maps_are_found_and_refused():
    """oneDNN leaves a part of the weight gradient uninitialized there, in bfloat16 only."""
    network = build_model("resnet18", InputSpec((3, 8, 8), 3), seed=0).train()
    network.body.layer1.eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert layer_with_tiny_maps(network, (3, 8, 8)) == "body.layer3.0.conv1"
    assert layer_with_tiny_maps(network, (3, 64, 64)) == ""
    assert network.training and network.body.layer2.training and not network.body.layer1.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    with pytest.raises(UsageError, match="larger --image-size"):
        choose_precision("bfloat16", CPU, network=network, input_shape=(3, 8, 8))


def test_bfloat16_is_refused_where_it_does_not_work_and_unknown_names_everywhere(speed):
    speed(0.0, "a test ended with signal 4")
    check_precision("float32", CPU)
    check_precision("auto", CPU)
    check_precision("bfloat16", GPU)
    with pytest.raises(UsageError, match=r"does not work on this processor \(a test ended with signal 4\)"):
        check_precision("bfloat16", CPU)
    speed(0.7)
    check_precision("bfloat16", CPU)
    with pytest.raises(UnseenError, match="float32"):
        check_precision("float23", CPU)


def test_a_processor_that_ends_the_test_is_unusable(tmp_path):
    program = tmp_path / "illegal.py"
    program.write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert probe_processor(program) == Bfloat16Speed(0.0, "a test ended with signal 4")
    program.write_text("raise SystemExit(3)")
    assert probe_processor(program) == Bfloat16Speed(0.0, "a test ended with exit code 3")
    program.write_text("print(1.75)")
    assert probe_processor(program) == Bfloat16Speed(1.75)


def test_a_processor_is_measured_once(monkeypatch):
    measured = []
    monkeypatch.setattr(precision, "has_bfloat16", lambda: True)
    monkeypatch.setattr(precision, "probe_processor", lambda: measured.append(1) or Bfloat16Speed(1.5))
    path = cache_folder() / "bfloat16.json"
    path.unlink(missing_ok=True)
    assert processor_speed() == processor_speed() == Bfloat16Speed(1.5)
    assert len(measured) == 1
    assert [1.5, ""] in json.loads(path.read_text()).values()
    path.write_text("spoilt")
    assert processor_speed() == Bfloat16Speed(1.5)
    assert len(measured) == 2
    monkeypatch.setattr(precision, "has_bfloat16", lambda: False)
    assert processor_speed().speedup == 0
    path.unlink()


@supported
def test_the_real_test_finds_a_speed():
    assert probe_processor().speedup > 0


@pytest.mark.parametrize(
    ("device", "number", "gpus", "expected"),
    [("cpu", 3, 0, "cpu"), ("cuda:1", 3, 2, "cuda:1"), ("cuda", 3, 2, "cuda:1"), ("cuda", 3, 1, "cuda:0")],
)
def test_workers_spread_over_gpus(device, number, gpus, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert own_device(torch.device(device), number) == torch.device(expected)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_model_is_compiled_where_that_was_asked_for(make_experiment, wanted):
    workspace = Workspace(replace(make_experiment("fedavg"), compile=wanted))
    assert (workspace.module._compiled_call_impl is not None) == wanted
