"""Training only the last stage or the head: what travels, what is saved, what resumes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import unseen
from unseen.callbacks.base import Callback
from unseen.data import DataSet, from_arrays
from unseen.errors import UsageError
from unseen.models import InputSpec, build_model
from unseen.serving import load_model

COMMON = {"rounds": 2, "batch_size": 16, "augment": "shift", "views": 2, "workers": 1}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def data() -> DataSet:
    generator = np.random.default_rng(0)
    targets = np.arange(240) % 3
    images = generator.integers(0, 60, (240, 16, 16), dtype=np.uint8)
    for number, target in enumerate(targets):
        images[number, 4 * target : 4 * target + 4] += 150
    return from_arrays(images, targets, np.repeat(["a", "b", "c"], 80), name="bars")


@pytest.mark.parametrize("part", ["head", "last-stage"])
def test_only_the_trained_part_changes_and_travels(data: DataSet, tmp_path: Path, part: str) -> None:
    result = unseen.train(data, hold_out="c", out=tmp_path / "run", train=part, **COMMON)
    saved = load_file(tmp_path / "run" / "model.safetensors")
    start = build_model("mnist-cnn", InputSpec((1, 16, 16), 3), seed=0).state_dict()
    changed = {name for name, value in saved.items() if not torch.equal(value, start[name])}
    expected = {name for name in start if name.startswith(("head.", "stages.hidden"))}
    assert set(saved) == set(start)
    assert changed == (expected if part == "last-stage" else {"head.weight", "head.bias"})
    trained = sum(start[name].numel() for name in changed)
    assert result.values["bytes_up"] == 2 * 2 * 4 * trained


def test_saved_model_predicts_from_images(data: DataSet, tmp_path: Path) -> None:
    result = unseen.train(data, hold_out="c", out=tmp_path / "run", train="last-stage", **COMMON)
    saved = load_model(tmp_path / "run")
    rows = data.indices("c")
    images = torch.from_numpy(data.inputs[rows]).permute(0, 3, 1, 2)
    right = (saved.outputs(images).argmax(1).numpy() == data.targets[rows]).mean()
    assert right == pytest.approx(result.metrics["target"]["accuracy"], abs=0.03)


@pytest.mark.parametrize(("method", "settings"), [("csac", {"acquisition_epochs": 1}), ("fedsr", {})])
def test_methods_that_need_maps_or_layers_train_the_last_stage(
    data: DataSet, tmp_path: Path, method: str, settings: dict[str, int]
) -> None:
    larger = np.repeat(np.repeat(data.inputs[::5], 2, axis=1), 2, axis=2)
    few = from_arrays(larger, data.targets[::5], np.repeat(["a", "b", "c"], 16), name="bars32")
    options = {**COMMON, "model": "resnet18", "rounds": 1, "batch_size": 8, "settings": settings}
    unseen.train(few, hold_out="c", out=tmp_path / "run", train="last-stage", method=method, **options)
    assert load_model(tmp_path / "run").network(torch.zeros(1, 1, 32, 32)).shape == (1, 3)


def test_method_whose_maps_are_frozen_says_so(data: DataSet, tmp_path: Path) -> None:
    unseen.train(data, hold_out="c", out=tmp_path / "run", train="head", method="csac", **COMMON)
    first = json.loads((tmp_path / "run" / "records.jsonl").read_text().splitlines()[0])
    assert any(
        "csac uses inner maps (conv1, conv2), of which none" in note for note in first["data"]["notes"]
    )


def test_workers_and_resume_change_nothing(data: DataSet, tmp_path: Path) -> None:
    whole = unseen.train(data, hold_out="c", out=tmp_path / "one", train="last-stage", **COMMON)
    two = {**COMMON, "workers": 2}
    unseen.train(data, hold_out="c", out=tmp_path / "two", train="last-stage", **two)

    class Stop(Callback):
        def on_record(self, record: dict[str, object]) -> None:
            if record["event"] == "evaluation":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unseen.train(
            data, hold_out="c", out=tmp_path / "three", train="last-stage", callbacks=Stop(), **COMMON
        )
    unseen.train(data, hold_out="c", out=tmp_path / "three", train="last-stage", resume=True, **COMMON)
    first = load_file(whole.folder / "model.safetensors")
    for other in ("two", "three"):
        again = load_file(tmp_path / other / "model.safetensors")
        assert all(torch.equal(first[name], again[name]) for name in first)


def test_part_is_recorded_and_unknown_part_refused(data: DataSet, tmp_path: Path) -> None:
    unseen.train(data, hold_out="c", out=tmp_path / "run", train="head", **COMMON)
    assert 'train = "head"' in (tmp_path / "run" / "config.toml").read_text()
    first = json.loads((tmp_path / "run" / "records.jsonl").read_text().splitlines()[0])
    assert any("cached" in note for note in first["data"]["notes"])
    with pytest.raises(UsageError, match="tail"):
        unseen.train(data, hold_out="c", out=tmp_path / "other", train="tail", **COMMON)


@pytest.mark.parametrize(
    ("augment", "message"), [("standard+mixup", "mixes the samples"), ("mixstyle", "--train all")]
)
def test_augmentation_that_cannot_be_cached_is_refused(
    data: DataSet, tmp_path: Path, augment: str, message: str
) -> None:
    options = {**COMMON, "train": "last-stage", "augment": augment}
    with pytest.raises(UsageError, match=message):
        unseen.train(data, hold_out="c", out=tmp_path / "run", **options)
