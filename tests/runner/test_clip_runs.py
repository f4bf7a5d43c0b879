"""Whole runs on a CLIP: cached features, what leaves, resume, the saved model, and refusals in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tiny_data import tiny_data
from unseen.config import RunConfig
from unseen.data import Samples
from unseen.engine.round_loop import ServerLoop
from unseen.errors import UsageError
from unseen.models import InputSpec, build_model
from unseen.models.weight_sources import find_initial_weights
from unseen.runner.effort import with_effort
from unseen.runner.prepare import prepare_run
from unseen.runner.run import run
from unseen.runs.folder import RunFolder
from unseen.serving import load_model
from unseen.serving.export import export_model

DATA = tiny_data()
NUMBERS = {"zero-shot": 0, "fedclip": 2 * (32 * 32 + 32), "promptfl": 16 * 32}
"""Numbers that a client sends in a round."""


def configure(method: str = "fedclip", **options: Any) -> RunConfig:
    values = {
        **{"data": "tiny", "hold_out": "held", "model": "clip-tiny", "weights": "random", "method": method},
        **{"rounds": 2, "batch_size": 4, "batches_per_epoch": 2, "lr": 0.05, "workers": 1},
    }
    return RunConfig.from_mapping({**values, **options})


def finish(folder: Path, method: str = "fedclip", **options: Any) -> Path:
    run(configure(method, **options), out=folder, report=False, data=DATA, resume=True)
    return folder


@pytest.mark.parametrize("method", list(NUMBERS))
def test_a_run_sends_the_small_part_and_saves_a_model_that_stands_alone(method: str, tmp_path: Path) -> None:
    folder = finish(tmp_path / "run", method)
    records = [json.loads(line) for line in RunFolder(folder).records.read_text().splitlines()]
    rounds = [record for record in records if record["event"] == "round"]
    assert len(rounds) == (1 if method == "zero-shot" else 2)
    for record in rounds:
        assert record["bytes_up"] == record["bytes_down"] == 4 * NUMBERS[method] * 3
    result = json.loads(RunFolder(folder).result.read_text())
    saved = load_model(folder)
    assert saved.network.texts is None, "no text tower is needed"
    held = Samples(DATA, DATA.indices("held"))
    batch = held.gather(torch.arange(len(held)))
    outputs = saved.outputs(batch.inputs)
    accuracy = float((outputs.argmax(1) == batch.targets).double().mean())
    assert accuracy == pytest.approx(result["metrics"]["target"]["accuracy"])
    loss = float(torch.nn.functional.cross_entropy(outputs, batch.targets))
    assert loss == pytest.approx(result["metrics"]["target"]["loss"], rel=2e-3), (
        "features are cached in float16"
    )
    exported = export_model(folder, to="safetensors")
    assert set(load_file(exported.file)) == set(saved.network.state_dict())


@pytest.mark.parametrize("method", ["fedclip", "promptfl"])
def test_resumed_and_parallel_runs_end_with_the_same_bits(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = load_file(RunFolder(finish(tmp_path / "once", method)).model)
    evaluate = ServerLoop._evaluate

    def fail_in_round_two(self: ServerLoop, number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt
        evaluate(self, number)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ServerLoop, "_evaluate", fail_in_round_two)
        finish(tmp_path / "resumed", method)
    finish(tmp_path / "resumed", method)
    finish(tmp_path / "parallel", method, workers=2)
    for other in ("resumed", "parallel"):
        found = load_file(RunFolder(tmp_path / other).model)
        assert all(torch.equal(tensor, found[name]) for name, tensor in once.items())


def test_zero_shot_runs_in_worker_processes(tmp_path: Path) -> None:
    one, two = (finish(tmp_path / str(workers), "zero-shot", workers=workers) for workers in (1, 2))
    assert torch.equal(*(load_file(RunFolder(folder).model)["head.weight"] for folder in (one, two)))


def test_a_trained_head_starts_from_zero_shot() -> None:
    plain = prepare_run(configure("zero-shot"), data=DATA).experiment
    started = prepare_run(configure("fedavg", train="head", head="zero-shot"), data=DATA).experiment
    expected = plain.method.build(plain.network, seed=0).head.weight
    assert torch.equal(started.network.head.weight, expected) and started.head is None
    with pytest.raises(UsageError, match="and copa has another"):
        prepare_run(configure("copa", train="head", head="zero-shot"), data=DATA)


def test_a_file_given_as_weights_is_used_with_its_text_tower(tmp_path: Path) -> None:
    from open_clip.model import CLIP

    vision = {"layers": 2, "width": 32, "head_width": 16, "patch_size": 2, "image_size": 8}
    clip = CLIP(32, vision, {"width": 32, "heads": 2, "layers": 2})
    save_file(
        {key: value.contiguous() for key, value in clip.state_dict().items()}, tmp_path / "w.safetensors"
    )
    experiment = prepare_run(configure(weights=str(tmp_path / "w.safetensors")), data=DATA).experiment
    assert experiment.whole is not None and experiment.network.texts is not None
    torch.testing.assert_close(experiment.whole.body.proj.data, clip.visual.proj.data)
    own = experiment.network.texts.tower.state_dict()
    assert all(torch.equal(own[name], clip.state_dict()[name]) for name in own)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": None}, "clip-tiny is of no use with random weights, and there is no --weights"),
        ({"weights": "auto"}, "there is no weights/clip-tiny.safetensors below the data root"),
        ({"weights": "imagenet"}, "put weights/clip-tiny.safetensors below"),
        ({"model": None}, "fedclip reads class names.*--model clip-vit-b-32 --weights FILE"),
        ({"model": "mnist-cnn"}, "method fedclip reads class names.*model 'mnist-cnn' has none"),
        ({"model": "clip-tiny+bottleneck"}, "leave out .bottleneck"),
        ({"train": "all"}, "leave out --train all"),
        ({"method": "zero-shot", "protect": "secure-sum"}, "clients send no update"),
        ({"head": "ridge"}, "--head ridge cannot act on --method fedclip"),
    ],
)
def test_refusals_say_in_one_line_what_to_do(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNSEEN_DATA", raising=False)
    with pytest.raises(Exception, match=message) as error:
        prepare_run(configure(**options), data=DATA)
    assert "\n" not in str(error.value)


def test_random_weights_that_were_asked_for_are_recorded_and_others_keep_their_ids() -> None:
    assert find_initial_weights("random", "clip-tiny", None).recorded == "random"
    assert find_initial_weights("random", "resnet18", None).recorded is None
    again = replace(configure(), weights=find_initial_weights("none", "clip-tiny", None).recorded)
    assert prepare_run(again, data=DATA).config.weights == "random"


def test_effort_takes_the_papers_optimizer_and_the_models_own_image_size() -> None:
    given = {"data": "photos", "hold_out": "c", "method": "fedclip", "model": "clip-vit-b-32"}
    options = with_effort(given, data=tiny_photos())
    assert (options["optimiser"], options["lr"], options["train"]) == ("adam", 5e-5, "head")
    assert options["augment"] == "none" and options["head_lr"] == 1
    assert with_effort({**given, "image_size": 200})["image_size"] == 200
    sized = with_effort({**given, "method": "zero-shot", "image_size": 96, "data": "x"})
    assert sized["rounds"] == 1 and "lr" not in sized


def tiny_photos() -> Any:
    return replace(DATA, inputs=DATA.inputs.repeat(8, axis=1).repeat(8, axis=2), fingerprint="")


def test_the_names_of_classes_reach_the_text_tower() -> None:
    network = build_model("clip-tiny", InputSpec(DATA.input_shape, 3, DATA.classes), seed=0)
    assert network.texts is not None and network.texts.names == ("class 0", "class 1", "class 2")
